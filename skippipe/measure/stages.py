"""Times of stages, and of head and loss, with random microbatches."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from skippipe.devices import synchronize
from skippipe.measure.timing import Timing, seconds_of, summarize
from skippipe.runtime.executor import StageCompute
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.runtime.stage_graphs import launched

STAGE_S = 0.6
"""How long each stage is timed."""
HEAD_S = 0.2
"""How long head and loss are timed, and the embedding."""
LEAST_RUNS = 5
STEPS = 3
"""Optimizer steps that are timed."""


@dataclass(frozen=True)
class StageTimes:
    """A stage on one rank, for one microbatch and for the optimizer step; medians and spreads in seconds."""

    forward_s: float
    backward_s: float
    step_s: float
    gradient_bytes: int
    forward_spread_s: float = 0.0
    backward_spread_s: float = 0.0
    samples: int = 0
    """forwards that were timed, and as many backwards"""


def random_microbatch(message_spec: MessageSpec, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Tokens below `vocabulary` and a hidden state, on the device of the messages."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, message_spec.shape[:2], generator=random)
    hidden = torch.randn(message_spec.shape, generator=random)
    return tokens.to(message_spec.device), hidden.to(message_spec.device, message_spec.dtype)


def time_stage(stage: Stage, message_spec: MessageSpec, vocabulary: int, host_share: float | None = None) -> StageTimes:
    """Run random microbatches through a stage; weights and random state are unchanged.

    Args:
        stage: one that this rank serves.
        message_spec: shape and type of messages.
        vocabulary: tokens are drawn below it.
        host_share: whether training records its work as CUDA graphs, as for `launched`.

    """
    tokens, hidden = random_microbatch(message_spec, vocabulary)
    device = message_spec.device
    forwards: list[float] = []
    backwards: list[float] = []

    def forward(compute: StageCompute) -> None:
        compute.forward(0, compute.embed(0, tokens) if stage.module.first else hidden)

    def backward(compute: StageCompute) -> None:
        gradient = compute.backward(0, hidden)
        if stage.module.first:
            compute.embed_backward(0, gradient)

    with torch.random.fork_rng(devices=[]):
        stage.begin(tokens.numel())
        with launched(stage, message_spec, host_share) as compute:
            synchronize(device)
            end = time.perf_counter() + STAGE_S
            while len(forwards) <= LEAST_RUNS or time.perf_counter() < end:
                forwards.append(seconds_of(partial(forward, compute), device))
                backwards.append(seconds_of(partial(backward, compute), device))
    gradient_bytes = sum(gradient.nbytes for gradient in stage.gradients())
    step_s = _time_steps(stage)
    stage.begin(1)
    # The first run of each is the slow one.
    forward_, backward_ = summarize(forwards[1:]), summarize(backwards[1:])
    return StageTimes(
        forward_.median_s, backward_.median_s, step_s, gradient_bytes,
        forward_.spread_s, backward_.spread_s, forward_.samples,
    )  # fmt: skip


def time_head(head: Stage, message_spec: MessageSpec, vocabulary: int) -> Timing:
    """Time head and loss, forward and backward together, of one microbatch; the gradients of the stage are discarded.

    Args:
        head: a stage with the head, whatever decoder layers it has.
        message_spec: shape and type of messages.
        vocabulary: tokens are drawn below it.

    """
    tokens, hidden = random_microbatch(message_spec, vocabulary)
    return _time_head(head, message_spec, tokens, lambda: head.loss(0, hidden, tokens))


def time_embedding(head: Stage, message_spec: MessageSpec, vocabulary: int) -> Timing:
    """Time the embedding, forward and backward together, as `time_head` does for head and loss."""
    tokens, hidden = random_microbatch(message_spec, vocabulary)

    def embed() -> None:
        head.embed(0, tokens)
        head.embed_backward(0, hidden)

    return _time_head(head, message_spec, tokens, embed)


def _time_head(head: Stage, message_spec: MessageSpec, tokens: Tensor, run: Callable[[], object]) -> Timing:
    seconds: list[float] = []
    head.begin(tokens.numel())
    synchronize(message_spec.device)
    end = time.perf_counter() + HEAD_S
    while len(seconds) <= LEAST_RUNS or time.perf_counter() < end:
        seconds.append(seconds_of(run, message_spec.device))
    head.begin(1)
    return summarize(seconds[1:])


def _time_steps(stage: Stage) -> float:
    """Seconds of an optimizer step that changes nothing: zero learning rate and decay; a first one makes the state."""
    device = stage.parameters[0].device
    optimizer = torch.optim.AdamW(
        stage.parameters, lr=0.0, weight_decay=0.0, foreach=False, fused=device.type == "cuda"
    )
    for gradient in stage.gradients():
        gradient.zero_()
    synchronize(device)
    return statistics.median([seconds_of(optimizer.step, device) for _ in range(STEPS + 1)][1:])
