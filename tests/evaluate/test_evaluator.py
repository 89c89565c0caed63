"""Losses along a layer path equal those of a transformers model with exactly these layers, in this order."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from model.small import LAYERS, VOCABULARY, config_of, parts_of, state_of, tokens
from numpy.typing import NDArray
from torch.nn import functional

from skippipe.evaluate.evaluator import Evaluator
from skippipe.model.families import family_of

CPU = torch.device("cpu")
PATHS = [(0, 1, 2, 3), (0, 1, 3), (0, 2, 1, 3), (1, 0), (0,), (3, 2, 1, 0)]


def rebuilt(config: Any, state: dict[str, torch.Tensor], path: Sequence[int]) -> Any:
    """The transformers model with the layers of a path."""
    smaller = copy.deepcopy(config)
    smaller.num_hidden_layers = len(path)
    if getattr(config, "layer_types", None) is not None:
        smaller.layer_types = [config.layer_types[layer] for layer in path]
    weights = {name: tensor for name, tensor in state.items() if ".layers." not in name}
    for index, layer in enumerate(path):
        mark = f".layers.{layer}."
        weights |= {name.replace(mark, f".layers.{index}."): t for name, t in state.items() if mark in name}
    model: Any = family_of(config.model_type).model_class()(smaller)
    model.load_state_dict(weights, strict=True)
    return model.eval()


def reference(model: Any, blocks: torch.Tensor) -> NDArray[np.float64]:
    with torch.no_grad():
        logits = model(blocks[:, :-1], use_cache=False).logits
    losses = functional.cross_entropy(logits.transpose(1, 2), blocks[:, 1:], reduction="none")
    summed: NDArray[np.float64] = losses.double().sum(1).numpy()
    return summed


@pytest.mark.parametrize(
    "name", ["llama", "llama-tied", "qwen2", "qwen3-mixed", "gpt_neox", "gpt_neox-serial", "mixtral"]
)
def test_losses_equal_those_of_a_model_with_these_layers(name: str) -> None:
    config = config_of(name)
    (part,) = parts_of(config, [LAYERS])
    state = copy.deepcopy(state_of([part]))
    blocks = tokens(5, 21)
    evaluator = Evaluator(part, blocks.numpy(), batch=2, device=CPU)
    seen = []
    for path in PATHS:
        expected = reference(rebuilt(config, state, path), blocks)
        np.testing.assert_allclose(evaluator.losses(path), expected, rtol=1e-6)
        seen.append(expected.sum())
    assert len(set(seen)) == len(PATHS), "each path gives different losses"


def test_dropout_is_off_and_batches_do_not_matter() -> None:
    config = config_of("gpt_neox", hidden_dropout=0.5, attention_dropout=0.5)
    blocks = tokens(7, 12).numpy()
    (part,) = parts_of(config, [LAYERS])
    once = Evaluator(part, blocks, batch=7, device=CPU).losses((0, 2))
    np.testing.assert_allclose(Evaluator(part, blocks, batch=3, device=CPU).losses((0, 2)), once, rtol=1e-6)
    assert once.shape == (7,)
    assert once.dtype == np.float64


def test_autocast_changes_only_the_dtype() -> None:
    config, blocks = config_of("llama"), tokens(3, 40).numpy()
    exact = Evaluator(parts_of(config, [LAYERS])[0], blocks, batch=2, device=CPU).losses((0, 1, 2))
    rounded = Evaluator(parts_of(config, [LAYERS])[0], blocks, batch=2, device=CPU, autocast=torch.bfloat16)
    found = rounded.losses((0, 1, 2))
    np.testing.assert_allclose(found, exact, rtol=1e-2)
    assert not np.array_equal(found, exact)


def test_compiled_losses_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the traced graph eagerly: generating code would take too long for the test suite."""
    make = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **_: make(run, backend="eager"))
    config, blocks = config_of("llama"), tokens(3, 16).numpy()
    plain = Evaluator(parts_of(config, [LAYERS])[0], blocks, batch=2, device=CPU)
    (part,) = parts_of(config, [LAYERS])
    monkeypatch.setattr(part, "enable_compile", lambda: None)
    compiled = Evaluator(part, blocks, batch=2, device=CPU, compiled=True)
    np.testing.assert_allclose(compiled.losses((0, 3)), plain.losses((0, 3)), rtol=1e-6)


def test_time_is_relative_to_the_full_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that says how long each pass has taken: along the path and the full model in turn."""
    (part,) = parts_of(config_of("llama"), [LAYERS])
    evaluator = Evaluator(part, tokens(2, 8).numpy() % VOCABULARY, batch=2, device=CPU)
    passes = [seconds for own in (1.0, 1.0, 9.0, 2.0, 0.5) for seconds in (own, 4.0)]
    ticks = iter([tick for i, seconds in enumerate(passes) for tick in (100.0 * i, 100.0 * i + seconds)])
    monkeypatch.setattr("skippipe.evaluate.evaluator.time.perf_counter", lambda: next(ticks))
    assert evaluator.time_ratio((0,)) == 0.25
