"""Predicted memory against what real passes keep."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from effort import cases
from model.small import MODELS, SIZES, config_of, full_model_of, parts_of
from torch.profiler import ProfilerActivity, profile

from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.memory import parameter_count, saved_bytes, stage_memory
from skippipe.model.settings import model_config
from skippipe.runtime.stage import Stage

MICROBATCH_SIZE, SEQUENCE = 2, 24
DTYPES = [torch.float32, torch.bfloat16]
estimate = partial(stage_memory, microbatch_size=MICROBATCH_SIZE, sequence=SEQUENCE)
"""Of a stage and the microbatches of these tests."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    cases([*itertools.product(MODELS, DTYPES)], [*zip(MODELS, itertools.cycle(DTYPES), strict=False)]),
    ids=str,
)
def test_predicted_bytes_are_those_of_real_passes(name: str, dtype: torch.dtype) -> None:
    config = config_of(name)
    for stage, layers in enumerate(stage_layers([1, 3], config)):
        predicted = estimate(config, stage=stage, layers=layers, first=stage == 0, dtype=dtype)
        part = build_stage_module(config, stage=stage, layers=layers, first=stage == 0, seed=0, dtype=dtype)
        hidden = torch.randn(MICROBATCH_SIZE, SEQUENCE, 32, dtype=dtype, requires_grad=True)
        weights = sum(parameter.nbytes for parameter in part.parameters())
        assert predicted.parameters == parameter_count(part)
        assert (predicted.weight_bytes, predicted.gradient_bytes) == (weights, weights)
        assert predicted.optimizer_bytes == 2 * weights
        kept = saved_bytes(partial(part, hidden), [*part.parameters(), hidden])
        assert predicted.activation_bytes == pytest.approx(kept + 2 * hidden.nbytes, rel=0.02)
        assert stage == 0 or predicted.loss_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore")  # of the profiler, where it finds no GPU
def test_head_and_loss_take_what_is_predicted(dtype: torch.dtype) -> None:
    config = model_config({"model_type": "llama", **SIZES, "vocab_size": 8000})
    predicted = estimate(config, stage=0, layers=range(1), first=True, dtype=dtype).loss_bytes
    stage = Stage(build_stage_module(config, stage=0, layers=range(1), first=True, seed=0, dtype=dtype))
    hidden = torch.randn(MICROBATCH_SIZE, SEQUENCE, 32).to(dtype)
    labels = torch.randint(8000, (MICROBATCH_SIZE, SEQUENCE))
    stage.begin(labels.numel())
    stage.run_head(hidden, labels, 1.0)  # gradients of weights stay
    assert most_allocated(lambda: stage.run_head(hidden, labels, 1.0)) == pytest.approx(predicted, rel=0.05)


def most_allocated(run: Callable[[], Any]) -> int:
    """Most bytes that the CPU's allocator has given out at one time, beyond those at the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    assert profiled.profiler is not None
    events: Any = profiled.profiler.kineto_results.events()
    changes: list[int] = [
        event.nbytes() for event in sorted(events, key=lambda e: e.start_ns()) if event.name() == "[memory]"
    ]
    return max(itertools.accumulate(changes))


@pytest.mark.parametrize("name", MODELS)
def test_graphs_keep_a_layer_more(name: str) -> None:
    config = config_of(name)
    eager, graphs = (estimate(config, stage=1, layers=range(1, 3), first=False, graphs=g) for g in (False, True))
    assert replace(graphs, backward_bytes=0) == eager
    assert graphs.backward_bytes == graphs.activation_bytes // 2


@pytest.mark.parametrize("every", [1, 2])
def test_what_recomputed_layers_save(every: int) -> None:
    config, layers = config_of("llama"), range(1, 4)
    predicted, complete = (
        estimate(config, stage=1, layers=layers, first=False, activation_checkpointing=n) for n in (every, 0)
    )
    part = build_stage_module(config, stage=1, layers=layers, first=False, seed=0)
    part.enable_activation_checkpointing(every)
    hidden = torch.randn(MICROBATCH_SIZE, SEQUENCE, 32, requires_grad=True)
    kept = saved_bytes(partial(part, hidden), [*part.parameters(), hidden])
    assert predicted.activation_bytes == pytest.approx(kept + 2 * hidden.nbytes, rel=0.02)
    recomputed = {1: 3, 2: 2}[every]
    assert complete.activation_bytes == pytest.approx(
        predicted.activation_bytes + recomputed * predicted.backward_bytes, abs=recomputed
    )
    assert complete.backward_bytes == 0 < predicted.backward_bytes


def test_chunks_of_the_loss_take_their_share() -> None:
    config = config_of("llama")
    whole, chunked = (
        estimate(config, stage=0, layers=range(1), first=True, loss_chunk=chunk)
        for chunk in (None, MICROBATCH_SIZE * SEQUENCE // 4)
    )
    assert chunked.loss_bytes == pytest.approx(whole.loss_bytes / 4, rel=0.05)
    assert chunked.activation_bytes == whole.activation_bytes


@pytest.mark.parametrize("name", MODELS)
def test_stages_together_are_the_whole_model(name: str) -> None:
    config = config_of(name)
    full_model = full_model_of(config, parts_of(config, [4]))
    for cut in cases(([4], [1, 3], [2, 1, 1]), ([2, 1, 1],)):
        counts = [
            stage_memory(config, stage=stage, layers=layers, first=stage == 0, microbatch_size=1, sequence=4).parameters
            for stage, layers in enumerate(stage_layers(cut, config))
        ]
        assert sum(counts) == sum(parameter.numel() for parameter in full_model.parameters())


def test_saved_bytes_count_what_is_kept_and_nothing_else() -> None:
    weight, given = torch.randn(8, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)

    def run() -> Any:
        return (given @ weight.T).exp().sum()

    assert saved_bytes(run, [weight, given]) == 2 * 8 * 4, "the result of exp"
    assert saved_bytes(run, [weight]) == 2 * 8 * 4 + 2 * 4 * 4


def test_double_precision_experts() -> None:
    config = config_of("mixtral")
    single, double = (
        stage_memory(config, stage=0, layers=range(4), first=True, microbatch_size=1, sequence=8, dtype=dtype)
        for dtype in (torch.float32, torch.float64)
    )
    assert double.activation_bytes == pytest.approx(2 * single.activation_bytes, rel=0.1)
    assert double.weight_bytes == 2 * single.weight_bytes


@pytest.mark.timeout(60)
def test_a_model_far_larger_than_this_machine() -> None:
    config = model_config(
        {
            "model_type": "llama",
            "vocab_size": 128_256,
            "hidden_size": 8192,
            "intermediate_size": 28_672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
        }
    )
    stages = [
        stage_memory(
            config,
            stage=stage,
            layers=layers,
            first=stage == 0,
            microbatch_size=1,
            sequence=2048,
            dtype=torch.bfloat16,
        )
        for stage, layers in enumerate(stage_layers([20, 60], config))
    ]
    assert sum(stage.parameters for stage in stages) == pytest.approx(70.55e9, rel=0.001)
    assert stages[1].activation_bytes == pytest.approx(3 * stages[0].activation_bytes, rel=0.01)
