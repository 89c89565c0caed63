"""Stages at work, in one process, against the plain model of transformers."""

import gc
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from effort import cases
from model.small import MODELS, TIED, config_of, full_model_of, parts_of, run_along, tokens
from torch import Tensor, nn

from skippipe.runtime.stage import Stage, gradient_scale

BATCH, SEQUENCE = 2, 12
Route = Sequence[int]


def microbatch(number: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels; some labels do not count, other ones in each."""
    labels = tokens(BATCH, SEQUENCE, seed=100 + number)
    labels[0, : number + 1] = -100
    return tokens(BATCH, SEQUENCE, seed=number), labels


def valid_tokens(microbatches: int) -> int:
    return sum(int((microbatch(number)[1] != -100).sum()) for number in range(microbatches))


def forward(stages: Sequence[Stage], number: int, route: Route) -> Tensor:
    hidden = stages[0].embed(number, microbatch(number)[0])
    for stage in route:
        hidden = stages[stage].forward(number, hidden)
    return hidden


def backward(stages: Sequence[Stage], number: int, route: Route, gradient: Tensor) -> None:
    for stage in reversed(route):
        gradient = stages[stage].backward(number, gradient)
    stages[0].embed_backward(number, gradient)


def run(stages: Sequence[Stage], routes: Sequence[Route]) -> None:
    """One iteration, one microbatch after the other."""
    for stage in stages:
        stage.begin(valid_tokens(len(routes)))
    for number, route in enumerate(routes):
        hidden = forward(stages, number, route)
        backward(stages, number, route, stages[0].loss(number, hidden, microbatch(number)[1]))


def gradients_of(stages: Sequence[Stage]) -> dict[str, Tensor]:
    """All gradients by name."""
    named: dict[str, Tensor] = {}
    for stage in stages:
        names = [name for name, _ in stage.module.named_parameters()]
        named.update(zip(names, stage.gradients(), strict=True))
    return named


def plain_gradients(model: Any, cut: Sequence[int], routes: Sequence[Route]) -> dict[str, Tensor]:
    """Gradients of the mean token loss, by a plain loop over the microbatches."""
    model.zero_grad(set_to_none=True)
    ends = list(itertools.accumulate(cut, initial=0))
    for number, route in enumerate(routes):
        given, labels = microbatch(number)
        logits = run_along(model, [layer for s in route for layer in range(ends[s], ends[s + 1])], given).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        torch.autograd.backward(loss / valid_tokens(len(routes)))
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


def built(name: str, cut: Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[list[Stage], Any]:
    """Stages of a model, and the full model; without router losses."""
    config = config_of(name, **({"output_router_logits": False} if name == "mixtral" else {}))
    parts = parts_of(config, cut, dtype=dtype)
    return [Stage(part) for part in parts], full_model_of(config, parts, dtype)


UNTIED = [name for name in MODELS if name not in TIED]


@pytest.mark.parametrize("cut", cases([[4], [1, 3], [2, 1, 1], [1, 1, 1, 1]], [[2, 1, 1]]), ids=str)
@pytest.mark.parametrize("name", UNTIED)
def test_gradients_of_the_full_pipeline_are_bit_equal(name: str, cut: list[int]) -> None:
    stages, full_model = built(name, cut)
    routes = [range(len(cut))] * 3
    run(stages, routes)
    staged, plain = gradients_of(stages), plain_gradients(full_model, cut, routes)
    assert staged.keys() == plain.keys()
    different = [name for name in plain if not torch.equal(staged[name], plain[name])]
    assert not different


@pytest.mark.parametrize("cut", cases([[4], [1, 3], [1, 2, 1]], [[1, 3], [1, 2, 1]]), ids=str)
@pytest.mark.parametrize("name", TIED)
def test_gradients_of_tied_embeddings(name: str, cut: list[int]) -> None:
    """The shared weights get head and embedding in two steps, where the plain loop adds both up first."""
    stages, full_model = built(name, cut, torch.float64)
    routes = [range(len(cut))] * 3
    run(stages, routes)
    staged, plain = gradients_of(stages), plain_gradients(full_model, cut, routes)
    assert staged.keys() == plain.keys()
    shared = next(name for name, parameter in full_model.named_parameters() if parameter is full_model.lm_head.weight)
    assert shared in staged
    for key, expected in plain.items():
        if key == shared:
            torch.testing.assert_close(staged[key], expected, rtol=1e-12, atol=1e-15)
        else:
            assert torch.equal(staged[key], expected)


@pytest.mark.parametrize("name", UNTIED)
def test_skips_and_swaps_are_bit_equal_to_the_layers_run_in_that_order(name: str) -> None:
    cut = [1, 2, 1]
    stages, full_model = built(name, cut)
    routes = [[0, 2], [0, 2, 1], [0, 1], [0], [0, 1, 2], [1, 2], [1]]
    run(stages, routes)
    staged, plain = gradients_of(stages), plain_gradients(full_model, cut, routes)
    assert all(torch.equal(staged[key], plain[key]) for key in plain)


def test_microbatches_may_overlap_in_any_order() -> None:
    cut = [2, 2]
    stages, full_model = built("llama", cut, torch.float64)
    for stage in stages:
        stage.begin(valid_tokens(3))
    hidden = [forward(stages, number, [0, 1]) for number in range(3)]
    for number in (1, 0, 2):
        backward(stages, number, [0, 1], stages[0].loss(number, hidden[number], microbatch(number)[1]))
    plain = plain_gradients(full_model, cut, [[0, 1]] * 3)
    for key, gradient in gradients_of(stages).items():
        torch.testing.assert_close(gradient, plain[key], rtol=1e-10, atol=1e-15)


def test_replicas_add_up_to_the_gradient_of_one() -> None:
    cut = [1, 2, 1]
    alone, _ = built("llama", cut, torch.float64)
    routes = [[0, 1, 2], [0, 2], [0, 2, 1], [0, 1]]
    run(alone, routes)
    replicas = [built("llama", cut, torch.float64)[0] for _ in range(2)]
    for stages in replicas:
        for stage in stages:
            stage.begin(valid_tokens(len(routes)))
    for number, route in enumerate(routes):
        mixed = [replicas[(number + stage) % 2 if stage else 0][stage] for stage in range(3)]
        hidden = forward(mixed, number, route)
        backward(mixed, number, route, mixed[0].loss(number, hidden, microbatch(number)[1]))
    for one, *two in zip(alone, *replicas, strict=True):
        gradients = zip(one.gradients(), *(stage.gradients() for stage in two), strict=True)
        for expected, first, second in gradients:
            torch.testing.assert_close(first + second, expected, rtol=1e-10, atol=1e-15)


def test_five_steps_of_adamw_are_bit_equal() -> None:
    cut = [1, 2, 1]
    stages, full_model = built("qwen2", cut)
    routes = [range(3)] * 3
    optimizers = [torch.optim.AdamW(stage.parameters, lr=0.01) for stage in stages]
    plain = torch.optim.AdamW(full_model.parameters(), lr=0.01)
    for _ in range(5):
        run(stages, routes)
        gradients_of(stages)
        plain_gradients(full_model, cut, routes)
        for optimizer in [*optimizers, plain]:
            optimizer.step()
    weights = {name: value for stage in stages for name, value in stage.module.state_dict().items()}
    assert all(torch.equal(weights[name], value) for name, value in full_model.state_dict().items())


def test_a_stage_without_visits_has_zeros() -> None:
    stages, _ = built("llama", [1, 2, 1])
    run(stages, [[0, 2], [0, 2]])
    assert len(stages[1].gradients()) == len(stages[1].parameters)
    assert all(not gradient.any() for gradient in stages[1].gradients())
    assert all(gradient.any() for gradient in stages[2].gradients())


def test_per_visit_gradients() -> None:
    assert gradient_scale("exact", visits=1, microbatches=4) == 1
    assert gradient_scale("per_visit", visits=0, microbatches=4) == 1
    assert gradient_scale("per_visit", visits=1, microbatches=4) == 4
    routes = [[0, 1], [0], [0], [0]]
    exact, _ = built("llama", [1, 3])
    run(exact, routes)
    scaled, _ = built("llama", [1, 3])
    for stage, visits in zip(scaled, (4, 1), strict=True):
        stage.begin(valid_tokens(4), scale=gradient_scale("per_visit", visits=visits, microbatches=4))
    for number, route in enumerate(routes):
        hidden = forward(scaled, number, route)
        backward(scaled, number, route, scaled[0].loss(number, hidden, microbatch(number)[1]))
    for seen, plain, factor in zip(scaled, exact, (1, 4), strict=True):
        for _ in range(2):  # asked for twice (REDUCE, NORM), scaled once
            pairs = zip(seen.gradients(), plain.gradients(), strict=True)
            assert all(torch.equal(first, factor * second) for first, second in pairs)


def test_gradients_are_the_parameters_own() -> None:
    stages, _ = built("llama", [1, 3])
    run(stages, [[0, 1]])
    for parameter, gradient in zip(stages[1].parameters, stages[1].gradients(), strict=True):
        gradient.zero_()
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_losses_are_kept_by_microbatch() -> None:
    stages, full_model = built("llama", [1, 3])
    run(stages, [[0, 1]] * 3)
    losses = stages[0].take_losses()
    assert list(losses) == [0, 1, 2]
    assert stages[0].take_losses() == {}
    for number, loss in losses.items():
        given, labels = microbatch(number)
        logits = full_model(given, use_cache=False).logits
        expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_evaluation_holds_nothing_and_leaves_gradients_alone() -> None:
    config = config_of("gpt_neox", hidden_dropout=0.5)
    stages = [Stage(part) for part in parts_of(config, [1, 3])]
    run(stages, [[0, 1]])
    before = {name: gradient.clone() for name, gradient in gradients_of(stages).items()}
    trained = stages[0].take_losses()
    given, labels = microbatch(0)
    with stages[0].evaluating(), stages[1].evaluating():
        for number in (0, 1):
            hidden = stages[1].forward(number, stages[0].forward(number, stages[0].embed(number, given)))
            assert not hidden.requires_grad
            assert stages[0].loss(number, hidden, labels).numel() == 0
        losses = stages[0].take_losses()
    expected = full_model_of(config, [stage.module for stage in stages]).eval()(given, use_cache=False).logits
    summed = nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum").item()
    assert losses == {0: pytest.approx(summed, rel=1e-6), 1: losses[0]}
    assert losses[0] != trained[0], "no dropout in evaluation"
    assert all(torch.equal(gradient, before[name]) for name, gradient in gradients_of(stages).items())
    assert stages[0].module.training


def test_backward_frees_what_a_microbatch_held() -> None:
    stages, _ = built("llama", [1, 3])
    for stage in stages:
        stage.begin(valid_tokens(2))
    inputs, hidden = [], []
    for number in (0, 1):
        sent = forward(stages, number, [0]).clone()
        inputs.append(weakref.ref(sent.untyped_storage()))
        hidden.append(stages[1].forward(number, sent))
        del sent
    assert all(storage() is not None for storage in inputs)
    backward(stages, 0, [0, 1], stages[0].loss(0, hidden[0], microbatch(0)[1]))
    gc.collect()
    assert inputs[0]() is None
    assert inputs[1]() is not None
    backward(stages, 1, [0, 1], stages[0].loss(1, hidden[1], microbatch(1)[1]))
    gc.collect()
    assert inputs[1]() is None


def test_what_is_handed_on_carries_no_graph() -> None:
    stages, _ = built("llama", [1, 3])
    for stage in stages:
        stage.begin(valid_tokens(1))
    given, labels = microbatch(0)
    embedded = stages[0].embed(0, given)
    hidden = stages[1].forward(0, stages[0].forward(0, embedded))
    gradient = stages[0].loss(0, hidden, labels)
    assert not any(tensor.requires_grad for tensor in (embedded, hidden, gradient))
    assert gradient.shape == hidden.shape == embedded.shape == (BATCH, SEQUENCE, 32)


def test_an_iteration_starts_clean_after_a_failed_one() -> None:
    stages, _ = built("llama", [1, 3])
    run(stages, [[0, 1]])
    expected = {name: gradient.clone() for name, gradient in gradients_of(stages).items()}
    for stage in stages:
        stage.begin(7)
    stages[0].loss(0, forward(stages, 0, [0, 1]), microbatch(0)[1])
    with pytest.raises(AssertionError, match=r"stage 1: no backward of microbatches \[0\]"):
        stages[1].gradients()
    run(stages, [[0, 1]])
    assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients_of(stages).items())


def test_misuse_raises() -> None:
    stages, _ = built("llama", [1, 3])
    with pytest.raises(ValueError, match="0 valid tokens"):
        stages[0].begin(0)
    stages[1].begin(1)
    stages[1].forward(4, torch.zeros(1, 4, 32))
    with pytest.raises(AssertionError, match="microbatch 4 visits stage 1 twice"):
        stages[1].forward(4, torch.zeros(1, 4, 32))
    with pytest.raises(AssertionError, match="stage 1 has no embed_tokens"):
        stages[1].embed(0, tokens(1, 4))


@pytest.mark.parametrize("cut", [[4], [1, 2, 1]], ids=str)
def test_router_losses_take_their_share_by_tokens(cut: list[int]) -> None:
    config = config_of("mixtral")
    parts = parts_of(config, cut, dtype=torch.float64)
    stages, full_model = [Stage(part) for part in parts], full_model_of(config, parts, torch.float64)
    routes = [range(len(cut))] * 2
    run(stages, routes)
    total, valid = 0.0, valid_tokens(2)
    shares: list[float] = []
    for number in range(2):
        given, labels = microbatch(number)
        outputs = full_model(given, use_cache=False, output_router_logits=True)
        tokens_loss = nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        balance = torch.zeros((), dtype=torch.float64)
        for logits in outputs.router_logits:
            probabilities = logits.softmax(-1)
            chosen = torch.zeros_like(logits).scatter(1, logits.topk(2, -1).indices, 1.0)
            balance = balance + 4 * (chosen.mean(0) * probabilities.mean(0)).sum() / 4
        share = 0.5 * balance * BATCH * SEQUENCE
        shares.append(share.item())
        torch.autograd.backward((tokens_loss + share) / valid)
        total += (tokens_loss + share).item()
    for name, gradient in gradients_of(stages).items():
        torch.testing.assert_close(gradient, full_model.get_parameter(name).grad, rtol=1e-4, atol=1e-7)
    local = [stage.take_local_losses() for stage in stages]
    assert [sum(own[number] for own in local) for number in range(2)] == pytest.approx(shares, rel=1e-6)
    assert sum(stages[0].take_losses().values()) + sum(shares) == pytest.approx(total, rel=1e-6)


def test_a_validation_never_has_all_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama")
    (stage,) = (Stage(part) for part in parts_of(config, [4]))
    hidden = torch.randn(BATCH, SEQUENCE, config.hidden_size)
    with stage.evaluating():
        stage.loss(0, hidden, microbatch(0)[1])
        (whole,) = stage.take_losses().values()
        monkeypatch.setattr("skippipe.runtime.stage.EVALUATED_TOKENS", 7)
        seen: list[int] = []
        stage.module.head.register_forward_hook(lambda _module, _given, logits: seen.append(logits.shape[:2].numel()))
        stage.loss(0, hidden, microbatch(0)[1])
        (cut,) = stage.take_losses().values()
    assert seen == [7, 7, 7, 3]
    assert cut == pytest.approx(whole, rel=1e-5)
