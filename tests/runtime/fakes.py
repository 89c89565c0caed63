"""Stages without layers whose tensors count the tasks they pass, and functions that run programs in a worker."""

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skippipe.runtime.actions import Program, Task
from skippipe.runtime.executor import Executor
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import ReadyGradients

MESSAGE_SPEC = MessageSpec(1, 2, 2)
START = 1000


class CountingStage:
    """Adds one per task; a microbatch's tensor begins at 1000 times its number. Gradients are integers."""

    def __init__(self, stage: int, rank: int) -> None:
        self.stage = stage
        self.ended: dict[int, float] = {}
        self.held: set[int] = set()
        self.parameters = [torch.full((3, 2), 10.0 * stage + rank), torch.full((5,), 1.0 + rank)]

    def embed(self, microbatch: int, tokens: Tensor) -> Tensor:
        assert self.stage == 0
        assert tokens.tolist() == [[microbatch, microbatch]]
        return torch.full(MESSAGE_SPEC.shape, START * float(microbatch))

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        self.held.add(microbatch)
        return hidden + 1

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        assert self.stage == 0
        assert labels.tolist() == [[-microbatch, -microbatch]]
        return hidden + 1

    def backward(self, microbatch: int, gradient: Tensor, ready: ReadyGradients | None = None) -> Tensor:
        self.held.remove(microbatch)
        return gradient + 1

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        assert self.stage == 0
        (value,) = set(gradient.flatten().tolist())
        self.ended[microbatch] = value - START * microbatch

    def gradient_parts(self) -> list[list[Tensor]]:
        return [self.parameters]

    def gradients(self) -> list[Tensor]:
        return self.parameters


class EvaluatingStage(CountingStage):
    """Saves nothing, and records what reaches the loss."""

    def __init__(self, stage: int, rank: int) -> None:
        super().__init__(stage, rank)
        self.results: list[weakref.ref[Tensor]] = []
        """what its losses gave, which nobody needs"""

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        return hidden + 1

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        (self.ended[microbatch],) = set(hidden.flatten().tolist())
        result = hidden.new_empty(0)
        self.results.append(weakref.ref(result))
        return result


def numbered(microbatch: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels that identify their microbatch."""
    tokens = torch.full((1, 2), microbatch, dtype=torch.int64)
    return tokens, -tokens


@dataclass(frozen=True)
class Ran:
    """Result of one program on one rank."""

    ended: dict[int, float]
    """tasks passed by the tensor of each microbatch of this rank's sources"""
    gradients: dict[int, list[list[float]]]
    norms: list[float]
    seconds: float
    starts: list[float]
    ends: list[float]


def stages_of(program: Program, stages: Sequence[int]) -> dict[int, CountingStage]:
    return {stage: CountingStage(stage, program.rank) for stage in stages}


def run_programs(
    rank: int, programs: Sequence[tuple[Program, Sequence[int], tuple[int, int]]], timeout_s: float
) -> list[Ran]:
    """Run programs of this rank one after the other, each with its stages and limits."""
    link = GlooLink()
    found = []
    for program, serving, (window, sends) in programs:
        stages = stages_of(program, serving)
        norms: list[float] = []
        executor = Executor(
            program, stages, link, buffers=MessageBuffers(MESSAGE_SPEC), recv_buffers=window, sends_in_flight=sends
        )
        began = time.perf_counter()
        timings = executor.run(numbered, norms.append, timeout_s)
        seconds = time.perf_counter() - began
        assert not any(stage.held for stage in stages.values())
        found.append(
            Ran(
                {b: n for stage in stages.values() for b, n in stage.ended.items()},
                {s: [g.flatten().tolist() for g in stage.gradients()] for s, stage in stages.items()},
                norms,
                seconds,
                list(timings.starts),
                list(timings.ends),
            )
        )
    return found


def evaluate(rank: int, program: Program, serving: Sequence[int], window: int) -> dict[int, float]:
    """Run an evaluation twice; return what reached the loss of each microbatch here."""
    stages = {stage: EvaluatingStage(stage, rank) for stage in serving}
    executor = Executor(
        program, stages, GlooLink(), buffers=MessageBuffers(MESSAGE_SPEC), recv_buffers=window, sends_in_flight=1
    )
    for _ in range(2):
        executor.run(numbered, lambda _: None, 20.0)
        assert all(result() is None for stage in stages.values() for result in stage.results)
    return {b: value for stage in stages.values() for b, value in stage.ended.items()}


def expected_ends(programs: Sequence[Program]) -> Mapping[int, int]:
    """Number of tasks that each microbatch passes."""
    counts: dict[int, int] = {}
    for program in programs:
        for action in program.actions:
            if isinstance(action, Task) and action.kind in "FLB":
                counts[action.microbatch] = counts.get(action.microbatch, 0) + 1
    return counts


def serving(ranks: Sequence[int], stages: Sequence[Sequence[int]], rank: int) -> list[int]:
    """The stages that a rank serves."""
    return [s for s, nodes in enumerate(stages) if rank in {ranks[n] for n in nodes}]


def failing(rank: int, *_: Any) -> None:
    """Raise on one rank."""
    raise ValueError(f"on purpose on rank {rank}")
