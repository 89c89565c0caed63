"""Losses along a way are those of a model of transformers that has these layers, in this order, and no others."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from model.small import LAYERS, VOCABULARY, config_of, parts_of, state_of, tokens
from numpy.typing import NDArray
from torch.nn import functional

from skippipe.evaluate.measure import Evaluator
from skippipe.model.families import family_of

CPU = torch.device("cpu")
WAYS = [(0, 1, 2, 3), (0, 1, 3), (0, 2, 1, 3), (1, 0), (0,), (3, 2, 1, 0)]


def rebuilt(config: Any, state: dict[str, torch.Tensor], way: Sequence[int]) -> Any:
    """The model that has the layers of a way, as transformers builds it."""
    smaller = copy.deepcopy(config)
    smaller.num_hidden_layers = len(way)
    if getattr(config, "layer_types", None) is not None:
        smaller.layer_types = [config.layer_types[layer] for layer in way]
    weights = {name: tensor for name, tensor in state.items() if ".layers." not in name}
    for place, layer in enumerate(way):
        mark = f".layers.{layer}."
        weights |= {name.replace(mark, f".layers.{place}."): t for name, t in state.items() if mark in name}
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
def test_losses_are_those_of_a_model_of_these_layers(name: str) -> None:
    config = config_of(name)
    (part,) = parts_of(config, [LAYERS])
    state = copy.deepcopy(state_of([part]))
    blocks = tokens(5, 21)
    evaluator = Evaluator(part, blocks.numpy(), batch=2, device=CPU)
    seen = []
    for way in WAYS:
        expected = reference(rebuilt(config, state, way), blocks)
        np.testing.assert_allclose(evaluator.losses(way), expected, rtol=1e-6)
        seen.append(expected.sum())
    assert len(set(seen)) == len(WAYS), "each way gives losses of its own"


def test_dropout_is_off_and_batches_do_not_matter() -> None:
    config = config_of("gpt_neox", hidden_dropout=0.5, attention_dropout=0.5)
    blocks = tokens(7, 12).numpy()
    (part,) = parts_of(config, [LAYERS])
    once = Evaluator(part, blocks, batch=7, device=CPU).losses((0, 2))
    np.testing.assert_allclose(Evaluator(part, blocks, batch=3, device=CPU).losses((0, 2)), once, rtol=1e-6)
    assert once.shape == (7,)
    assert once.dtype == np.float64


def test_autocast_is_another_type_of_the_same() -> None:
    config, blocks = config_of("llama"), tokens(3, 40).numpy()
    exact = Evaluator(parts_of(config, [LAYERS])[0], blocks, batch=2, device=CPU).losses((0, 1, 2))
    rounded = Evaluator(parts_of(config, [LAYERS])[0], blocks, batch=2, device=CPU, autocast=torch.bfloat16)
    found = rounded.losses((0, 1, 2))
    np.testing.assert_allclose(found, exact, rtol=1e-2)
    assert not np.array_equal(found, exact)


def test_compiled_losses_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what torch traces, run as it is: its code takes longer to make than the test suite has."""
    make = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run: make(run, backend="eager"))
    config, blocks = config_of("llama"), tokens(3, 16).numpy()
    plain = Evaluator(parts_of(config, [LAYERS])[0], blocks, batch=2, device=CPU)
    (part,) = parts_of(config, [LAYERS])
    monkeypatch.setattr(part, "enable_compile", lambda: None)
    compiled = Evaluator(part, blocks, batch=2, device=CPU, compiled=True)
    np.testing.assert_allclose(compiled.losses((0, 3)), plain.losses((0, 3)), rtol=1e-6)


def test_a_time_is_a_share_of_the_whole() -> None:
    (part,) = parts_of(config_of("llama"), [LAYERS])
    evaluator = Evaluator(part, tokens(2, 8).numpy() % VOCABULARY, batch=2, device=CPU)
    seconds = {tuple(range(LAYERS)): [4.0] * 5, (0,): [1.0, 1.0, 9.0, 2.0, 0.1]}
    evaluator._seconds = lambda way: seconds[tuple(way)].pop(0)  # type: ignore[method-assign]
    assert evaluator.time_ratio((0,)) == 0.25
