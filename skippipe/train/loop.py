"""Iterations and validations of one rank, in step with the others.

What the ranks tell each other between iterations goes over the same links as the messages, once everything of the
iteration has arrived: a sum to which every rank gives its own places.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from skippipe._scheduler import Plan
from skippipe.errors import SchedulerError
from skippipe.runtime.actions import Program
from skippipe.runtime.check import least_limits, prove
from skippipe.runtime.executor import Batches, Boundary, Executor, Timings
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import tree_sum
from skippipe.runtime.lower import lower, lower_evaluation
from skippipe.runtime.stage import Stage, StageGradient, gradient_scale
from skippipe.train.config import RuntimeConfig, TrainConfig
from skippipe.train.optimizer import clip, learning_rate, make_optimizer, take_step
from skippipe.train.team import Team


class DivergedError(SchedulerError, ArithmeticError):
    """The norm of the gradient is no finite number any more."""


@dataclass(frozen=True)
class Iteration:
    """What came of one iteration; on every rank the same, but for `timings`."""

    loss: float
    """mean over the iteration's tokens in nats, without the losses of routers"""
    norm: float
    """of the whole model's gradient, before clipping"""
    seconds: float
    """from the start to the end of the last rank's step"""
    timings: Timings
    """of this rank's actions"""


@dataclass(frozen=True)
class Limits:
    """What an executor may have under way."""

    recv_buffers: int
    sends_in_flight: int


@dataclass(frozen=True)
class Station:
    """What one rank works with, whatever the plan."""

    team: Team
    """the ranks, met"""
    rank_of: Sequence[int]
    """the rank that serves each node"""
    stages: Mapping[int, Stage]
    """those that this rank serves"""
    link: Link
    """to the other ranks"""
    boundary: Boundary
    """what messages look like"""
    runtime: RuntimeConfig
    validation_microbatches: int
    """of one validation"""
    vocabulary: int
    """tokens are below it"""


class Engine:
    """One rank's stages under a plan: runs iterations and validations."""

    def __init__(self, station: Station, plan: Plan) -> None:
        """Lower the plan, and prove that it cannot hang.

        Raises:
            DeadlockError: no limits make the plan safe.

        """
        team, config = station.team, station.runtime
        self.plan, self.stages, self.rank_of = plan, station.stages, station.rank_of
        self._rank, self._ranks, self._link = team.rank, range(team.world), station.link
        self._timeout_s = config.timeout_s
        training = lower(plan, station.rank_of)
        validation = lower_evaluation(plan, station.rank_of, station.validation_microbatches)
        self.limits = safe_limits([training, validation], config)
        names = {rank: ", ".join(served) for rank, served in enumerate(team.names_by_rank)}

        def executor(programs: Sequence[Program]) -> Executor:
            return Executor(
                programs[team.rank],
                station.stages,
                station.link,
                boundary=station.boundary,
                recv_buffers=self.limits.recv_buffers,
                sends_in_flight=self.limits.sends_in_flight,
                timeout_s=config.timeout_s,
                names=names,
            )

        self._training, self._validation = executor(training), executor(validation)
        self._places = {number: place for place, number in enumerate(sorted(m.id for m in plan.microbatches))}
        self._validated = {number: number for number in range(station.validation_microbatches)}
        self._visits = [sum(s in m.stages for m in plan.microbatches) for s in range(len(plan.stages))]
        tokens = station.boundary.microbatch_size * station.boundary.sequence
        self.tokens = len(self._places) * tokens
        """of an iteration"""
        self.validation_tokens = station.validation_microbatches * tokens

    def iterate(self, batches: Batches, mode: StageGradient, step: Callable[[float], None]) -> Iteration:
        """Run one iteration.

        Args:
            batches: tokens and labels by a microbatch's place in the iteration, from 0.
            mode: how the gradients of stages are scaled.
            step: the optimizer step, given the norm of the whole model's gradient.

        Raises:
            ActionError: a message did not come, or another rank is gone.

        """
        for number, stage in self.stages.items():
            scale = gradient_scale(mode, visits=self._visits[number], microbatches=len(self._places))
            stage.begin(self.tokens, scale=scale)
        norm = math.nan

        def finish(agreed: float) -> None:
            nonlocal norm
            norm = agreed
            step(agreed)

        timings = self._training.run(lambda microbatch: batches(self._places[microbatch]), finish)
        loss, seconds = self._gather(self._places, timings.ends[-1])
        return Iteration(loss / self.tokens, norm, seconds, timings)

    def validate(self, batches: Batches) -> float:
        """Mean loss of the whole model over the validation's tokens, in nats; raises as `iterate` does."""
        with ExitStack() as stack:
            for stage in self.stages.values():
                stack.enter_context(stage.evaluating())
            self._validation.run(batches, lambda _: None)
            loss, _ = self._gather(self._validated, 0.0)
        return loss / self.validation_tokens

    def _gather(self, places: Mapping[int, int], seconds: float) -> tuple[float, float]:
        """Sum of the losses of all ranks, in the order of the microbatches, and the longest of their times."""
        world = len(self._ranks)
        values = torch.zeros(world + len(places), dtype=torch.float64)
        values[self._rank] = seconds
        for stage in self.stages.values():
            for microbatch, loss in stage.take_losses().items():
                values[world + places[microbatch]] = loss
        tree_sum(self._link, values, self._rank, self._ranks, self._timeout_s)
        return sum(values[world:].tolist()), float(values[:world].max())


def safe_limits(groups: Sequence[Sequence[Program]], config: RuntimeConfig) -> Limits:
    """Raise the limits of the settings as far as the proof needs it, for all groups of programs.

    Raises:
        DeadlockError: no limits help; the message names the circle.

    """
    found = config.recv_buffers, config.sends_in_flight
    for programs in groups:
        enough = least_limits(programs, *found)
        if enough is None:
            prove(programs, *found)
        else:
            found = enough
    return Limits(*found)


class Optimization:
    """The optimizer of one rank over a run: its step is a function of the norm and of the tokens so far."""

    def __init__(self, stages: Mapping[int, Stage], config: TrainConfig, tokens: int) -> None:
        """Make the optimizer; `tokens` are those of one iteration."""
        self._stages, self._config, self._tokens = stages, config, tokens
        self._optimizer = make_optimizer(config, [stage.module for stage in stages.values()])
        self._seen = 0
        self.rate = 0.0
        """learning rate of the latest step"""

    def step(self, norm: float) -> None:
        """Clip by the norm of the whole model's gradient, and step; a norm that is no number changes nothing."""
        if not math.isfinite(norm):
            return
        self._seen += self._tokens
        self.rate = learning_rate(self._config, self._seen, self._tokens * self._config.iterations)
        clip((g for stage in self._stages.values() for g in stage.gradients()), norm, self._config.clip_norm)
        take_step(self._optimizer, self.rate)


def check_finite(iteration: Iteration, number: int) -> None:
    """Raise `DivergedError` where the gradient is no number; all ranks know the same norm, so all raise."""
    if not math.isfinite(iteration.norm):
        raise DivergedError(
            f"training has diverged: the norm of the gradient is {iteration.norm} in iteration {number}, the loss "
            f"{iteration.loss:.4f}; a lower train.learning_rate or train.clip_norm may help"
        )
