"""All stages in one process, several microbatches per pass: gradients of the plain loop, up to float64 rounding."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from runtime.models import LLAMA, Training, arrays, config_of, make_plan, token_batch, train_plain, valid_tokens
from runtime.test_exactness import NEOX, QWEN3, TIED

from skippipe import Plan
from skippipe.errors import ActionError
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.runtime.grouped import GroupedExecutor
from skippipe.runtime.stage import Stage

CPU = torch.device("cpu")


def stages_of(training: Training, device: torch.device = CPU) -> dict[int, Stage]:
    config, dtype = config_of(training), getattr(torch, training.dtype)
    return {
        s: Stage(
            build_stage_module(
                config, stage=s, layers=layers, first=s == 0, seed=training.seed, dtype=dtype, device=device
            )
        )
        for s, layers in enumerate(stage_layers(training.layers, config))
    }


@pytest.mark.parametrize("most", [2, 3, 64])
@pytest.mark.parametrize(
    ("settings", "sizes", "layers", "skip_ratio", "rules"),
    [
        (LLAMA, [2, 1, 1], (1, 2, 1), 0.0, {}),
        (TIED, [2, 2, 1, 1, 1], (1, 1, 2, 1, 1), 0.3, {}),
        (QWEN3, [2, 1, 1, 1], (2, 1, 1, 1), 0.25, {"cc2": False}),
        (NEOX, [3, 1, 1], (1, 1, 1), 1 / 3, {"cc3": False}),
        (TIED, [2, 1, 1, 1, 1], (1, 1, 1, 1, 1), 0.4, {"cc1": False}),
    ],
)
def test_gradients_are_those_of_the_plain_loop(
    settings: dict[str, Any],
    sizes: list[int],
    layers: tuple[int, ...],
    skip_ratio: float,
    rules: dict[str, Any],
    most: int,
) -> None:
    plan = make_plan(Random(sum(sizes)), sizes, skip_ratio, 3, **rules)
    training = Training(settings, layers, plan, tuple(range(sum(sizes))), dtype="float64")
    stages, plain = stages_of(training), train_plain(training)
    routes = {m.id: m.stages for m in Plan.from_json(plan).microbatches}
    norms: list[float] = []
    for stage in stages.values():
        stage.begin(valid_tokens(training, 0))
    GroupedExecutor(routes, stages, most, CPU).run(lambda b: token_batch(training.seed, 0, b), norms.append, 1.0)
    seen = set()
    for stage in stages.values():
        for name, gradient in arrays(
            {n: p.grad for n, p in stage.module.named_parameters() if p.grad is not None}
        ).items():
            wanted = plain.gradients[0][name]
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(gradient, wanted, rtol=1e-10, atol=1e-10 * scale, err_msg=name)
            seen.add(name)
    assert seen == set(plain.gradients[0])
    np.testing.assert_allclose(np.array(norms), np.array(plain.norms), rtol=1e-10)
    total = sum(loss for stage in stages.values() for loss in stage.take_losses().values())
    assert total == pytest.approx(sum(plain.losses[0].values()), rel=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU is needed")
@pytest.mark.parametrize("most", [2, 64])
def test_a_cuda_graph_computes_the_same(most: int) -> None:
    plan = make_plan(Random(1), [2, 1, 1], 1 / 3, 3)
    training = Training(LLAMA, (1, 2, 1), plan, (0, 1, 2, 3))
    routes = {m.id: m.stages for m in Plan.from_json(plan).microbatches}
    device = torch.device("cuda")

    def run(*, graph: bool) -> list[tuple[float, dict[str, Any], dict[int, float]]]:
        stages = stages_of(training, device)
        executor = GroupedExecutor(routes, stages, most, device, graph=graph)
        found = []
        for iteration in range(8):
            if iteration == 5:
                executor.release()
            norms: list[float] = []
            for stage in stages.values():
                stage.begin(1000)
            executor.run(lambda b, i=iteration: token_batch(training.seed, i, b), norms.append, 1.0)
            named = [named for stage in stages.values() for named in stage.module.named_parameters()]
            gradients = arrays({name: p.grad for name, p in named if p.grad is not None})
            losses = {b: loss for stage in stages.values() for b, loss in stage.take_losses().items()}
            found.append((norms[0], gradients, losses))
            with torch.no_grad():  # weights change in place, as by an optimizer
                for _, parameter in named:
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
        return found

    torch.use_deterministic_algorithms(mode=True)
    try:
        eager, graphed = run(graph=False), run(graph=True)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert len({norm for norm, _, _ in eager}) == len(eager)
    for (norm, gradients, losses), (own_norm, own_gradients, own_losses) in zip(eager, graphed, strict=True):
        assert (norm, losses) == (own_norm, own_losses)
        assert all(np.array_equal(gradients[name], own_gradients[name]) for name in gradients)


def test_a_failure_is_an_action_error() -> None:
    training = Training(LLAMA, (1, 1), make_plan(Random(1), [1, 1], 0.0, 2), (0, 1), dtype="float64")

    def failing(microbatch: int) -> Any:
        assert microbatch == 0
        raise OSError("the disk is gone")

    stages = stages_of(training)
    with pytest.raises(ActionError, match="the disk is gone"):
        GroupedExecutor({0: [0, 1], 1: [0, 1]}, stages, 2, CPU).run(failing, lambda _: None, 1.0)
