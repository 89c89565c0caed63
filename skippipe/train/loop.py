"""Iterations and validations of one rank, in step with the others.

What the ranks tell each other between iterations goes over the same links as the messages, once everything of the
iteration has arrived: a sum to which every rank gives its own places.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from skippipe._scheduler import Plan
from skippipe.errors import SchedulerError
from skippipe.runtime.actions import Program
from skippipe.runtime.deadlock import min_recv_buffers, prove_deadlock_free
from skippipe.runtime.executor import Batches, Executor, MessageSpec, Timings
from skippipe.runtime.grouped import GroupedExecutor
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import tree_sum
from skippipe.runtime.lower import lower, lower_evaluation
from skippipe.runtime.stage import Stage, StageGradient, gradient_scale
from skippipe.train.config import RuntimeConfig, TrainConfig, TrainJob
from skippipe.train.optimizer import clip, learning_rate, make_optimizer, moments, take_step
from skippipe.train.team import Team


class DivergedError(SchedulerError, ArithmeticError):
    """Gradient or loss is no finite number any more."""


class Says(NamedTuple):
    """What a rank says to all others at the end of an iteration, so that all decide alike; of all: whether any does."""

    stop: bool = False
    """it was asked to stop"""
    saving: bool = False
    """it is still busy with a checkpoint"""


@dataclass(frozen=True)
class Iteration:
    """What came of one iteration; on every rank the same, but for `timings`."""

    loss: float
    """mean over the iteration's tokens in nats, without the losses of routers"""
    router_loss: float | None
    """mean of those over the iteration's tokens, their coefficient included; None where no layer has one"""
    norm: float
    """of the whole model's gradient, before clipping"""
    seconds: float
    """from the start to the end of the last rank's step"""
    says: Says
    """what any rank has said"""
    timings: Timings
    """of this rank's actions"""


class Gathered(NamedTuple):
    """What all ranks know together at the end of an iteration or validation."""

    loss: float
    """sum over tokens, added up in the order of the microbatches"""
    router_loss: float | None
    """the same of the losses of routers; None where there were none"""
    seconds: float
    """the longest of the ranks' times"""
    says: Says
    """what any rank has said"""


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
    boundary: MessageSpec
    """what messages look like"""
    runtime: RuntimeConfig
    validation_microbatches: int
    """of one validation"""
    vocabulary: int
    """tokens are below it"""

    def owner(self, stage: int, nodes: Sequence[Sequence[int]]) -> int:
        """The lowest rank that serves a stage, which speaks for all its replicas; `nodes` are those of each stage."""
        return min(self.rank_of[node] for node in nodes[stage])


class Engine:
    """One rank's stages under a plan: runs iterations and validations."""

    def __init__(self, station: Station, plan: Plan, *, predicts: bool = True) -> None:
        """Lower the plan, and prove that it cannot hang.

        Args:
            station: what the rank works with.
            plan: what is run.
            predicts: whether the plan's times hold for this run.

        Raises:
            DeadlockError: no number of receive buffers makes the plan safe.

        """
        team, config = station.team, station.runtime
        self.plan, self.stages, self.rank_of = plan, station.stages, station.rank_of
        self.predicted_s = plan.predicted.iteration_s if predicts else None
        """iteration time of the plan, where this is what measured ones are to be held against"""
        self._team, self._link, self._timeout_s = team, station.link, config.timeout_s
        self._measured_s = 0.0
        self._device = station.boundary.device
        self.recv_buffers = config.recv_buffers
        """receives posted and not consumed, per sending rank"""
        self._training: Executor | GroupedExecutor
        self._validation: Executor | GroupedExecutor
        if config.group > 1:
            self._training, self._validation = self._grouped(station)
        else:
            self._training, self._validation = self._in_order(station)
        self._places = {number: place for place, number in enumerate(sorted(m.id for m in plan.microbatches))}
        self._validated = {number: number for number in range(station.validation_microbatches)}
        self._visits = [sum(s in m.stages for m in plan.microbatches) for s in range(len(plan.stages))]
        tokens = station.boundary.microbatch_size * station.boundary.sequence
        self.tokens = len(self._places) * tokens
        """of an iteration"""
        self.blocks = len(self._places) * station.boundary.microbatch_size
        """sequences of an iteration"""
        self.validation_tokens = station.validation_microbatches * tokens

    def _in_order(self, station: Station) -> tuple[Executor, Executor]:
        """Give what runs the plan's order, and validations."""
        training = lower(self.plan, station.rank_of)
        validation = lower_evaluation(self.plan, station.rank_of, station.validation_microbatches)
        self.recv_buffers = safe_buffers([training, validation], station.runtime)

        def executor(programs: Sequence[Program]) -> Executor:
            return Executor(
                programs[self._team.rank],
                station.stages,
                station.link,
                message_spec=station.boundary,
                recv_buffers=self.recv_buffers,
                sends_in_flight=station.runtime.sends_in_flight,
                title=self._team.title,
            )

        return executor(training), executor(validation)

    def _grouped(self, station: Station) -> tuple[GroupedExecutor, GroupedExecutor]:
        """Give what runs the plan's routes in one process, several microbatches at a time, and validations."""
        routes = {microbatch.id: microbatch.stages for microbatch in self.plan.microbatches}
        present = [stage for stage, nodes in enumerate(self.plan.stages) if nodes]
        whole = dict.fromkeys(range(station.validation_microbatches), present)
        most = station.runtime.group
        return (
            GroupedExecutor(routes, station.stages, most),
            GroupedExecutor(whole, station.stages, most, train=False),
        )

    def iterate(
        self,
        batches: Batches,
        mode: StageGradient,
        step: Callable[[float], None],
        say: Callable[[], Says] = Says,
    ) -> Iteration:
        """Run one iteration.

        Args:
            batches: tokens and labels by a microbatch's place in the iteration, from 0.
            mode: how the gradients of stages are scaled.
            step: the optimizer step, given the norm of the whole model's gradient.
            say: asked at the end for what this rank has to say to all.

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

        wait_s = self._patience_s()
        timings = self._training.run(self._there(lambda m: batches(self._places[m])), finish, wait_s)
        loss, router_loss, seconds, says = self._gather(self._places, wait_s, timings.ends[-1], say())
        self._measured_s = seconds
        if router_loss is not None:
            router_loss /= self.tokens
        return Iteration(loss / self.tokens, router_loss, norm, seconds, says, timings)

    def validate(self, batches: Batches) -> float:
        """Mean loss of the whole model over the validation's tokens, in nats; raises as `iterate` does."""
        # A microbatch of a validation goes forward alone, but through all stages.
        wait_s = self._patience_s(max(1.0, len(self._validated) / len(self._places)))
        with ExitStack() as stack:
            for stage in self.stages.values():
                stack.enter_context(stage.evaluating())
            self._validation.run(self._there(batches), lambda _: None, wait_s)
            return self._gather(self._validated, wait_s, 0.0, Says()).loss / self.validation_tokens

    def _there(self, batches: Batches) -> Batches:
        """Bring texts to where the stages compute."""

        def moved(microbatch: int) -> tuple[Tensor, Tensor]:
            tokens, labels = batches(microbatch)
            return tokens.to(self._device), labels.to(self._device)

        return moved

    def _patience_s(self, iterations: float = 1.0) -> float:
        """The most that may be waited for in something that takes as long as so many iterations."""
        return patience_s(self._timeout_s, self.plan.predicted.iteration_s, self._measured_s, iterations)

    def _gather(self, places: Mapping[int, int], timeout_s: float, seconds: float, says: Says) -> Gathered:
        """Tell the others this rank's losses, time and what it has to say; `places` are those of the microbatches."""
        world, rank = self._team.world, self._team.rank
        losses = torch.zeros(len(places), dtype=torch.float64)
        routed: list[float] = []
        for stage in self.stages.values():
            routed += stage.take_local_losses().values()
            for microbatch, loss in stage.take_losses().items():
                losses[places[microbatch]] = loss
        by_rank = torch.zeros(2, world, dtype=torch.float64)
        by_rank[:, rank] = torch.tensor([seconds, sum(routed)], dtype=torch.float64)
        flags = torch.tensor([bool(routed), *says], dtype=torch.float64)
        values = torch.cat([losses, *by_rank, flags])
        with self._team.transferring("the sum of the losses", range(world)):
            tree_sum(self._link, values, rank, range(world), timeout_s)
        summed = iter(values.tolist())
        losses_, times, routers = (list(islice(summed, count)) for count in (len(places), world, world))
        any_routed, *said = map(bool, summed)
        return Gathered(sum(losses_), sum(routers) if any_routed else None, max(times), Says(*said))


PATIENCE = 3.0
"""So many times as long as expected may an iteration take and still be a healthy one."""


def patience_s(timeout_s: float, predicted_s: float, measured_s: float, iterations: float = 1.0) -> float:
    """Give the most that a message may be waited for, in seconds.

    A rank that has little to do waits for the busiest one: for up to a whole iteration, in which nothing need be wrong.

    Args:
        timeout_s: what is waited beyond that, `runtime.timeout_s`.
        predicted_s: an iteration, as the plan predicts it.
        measured_s: the latest iteration; 0 before the first.
        iterations: as how many iterations that takes in which the message is waited for.

    """
    return timeout_s + PATIENCE * iterations * max(predicted_s, measured_s)


def safe_buffers(groups: Sequence[Sequence[Program]], config: RuntimeConfig) -> int:
    """Give the receive buffers of the settings, or as many more as the proof needs, for all groups of programs.

    Raises:
        DeadlockError: no number helps; the message names the circle.

    """
    buffers = config.recv_buffers
    for programs in groups:
        enough = min_recv_buffers(programs, buffers, config.sends_in_flight)
        if enough is None:
            prove_deadlock_free(programs, buffers, config.sends_in_flight)
        else:
            buffers = enough
    return buffers


def number_type(job: TrainJob) -> torch.dtype:
    """Type of weights, messages and gradients."""
    found: torch.dtype = getattr(torch, job.train.dtype)
    return found


class Optimization:
    """The optimizer of one rank over a run: its step is a function of the norm and of the tokens so far."""

    def __init__(
        self, stages: Mapping[int, Stage], config: TrainConfig, tokens: int, *, done: int = 0, seen: int = 0
    ) -> None:
        """Make the optimizer.

        Args:
            stages: those of this rank.
            config: the settings.
            tokens: of one iteration.
            done: iterations done before, by a run that this one goes on with.
            seen: tokens of those.

        """
        self._stages, self._config, self._tokens = stages, config, tokens
        self._optimizer = make_optimizer(config, [stage.module for stage in stages.values()])
        self._total = seen + (config.iterations - done) * tokens
        self.seen = seen
        """tokens trained on so far"""
        self.rate = 0.0
        """learning rate of the latest step"""

    def step(self, norm: float) -> None:
        """Clip by the norm of the whole model's gradient, and step; a norm that is no number changes nothing."""
        if not math.isfinite(norm):
            return
        self.seen += self._tokens
        self.rate = learning_rate(self._config, self.seen, self._total)
        clip((g for stage in self._stages.values() for g in stage.gradients()), norm, self._config.clip_norm)
        take_step(self._optimizer, self.rate)

    def tensors(self, number: int) -> dict[str, Tensor]:
        """What the optimizer keeps of a stage's parameters, by `parameter/kind`; they may be filled in place."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._stages[number].module.named_parameters():
            for kind, tensor in moments(self._optimizer, parameter).items():
                found[f"{name}/{kind}"] = tensor
        return found


def check_finite(iteration: Iteration, number: int) -> None:
    """Raise `DivergedError` where gradient or loss is no number; all ranks know the same ones, so all raise."""
    if not (math.isfinite(iteration.norm) and math.isfinite(iteration.loss)):
        raise DivergedError(
            f"training has diverged: the norm of the gradient is {iteration.norm} in iteration {number}, the loss "
            f"{iteration.loss:.4f}; {LESS}"
        )


def check_validation(loss: float, iteration: int, text: str) -> None:
    """Raise `DivergedError` where a validation's loss is no number, on all ranks; `text` is what it was taken on."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"training has diverged: the validation loss after iteration {iteration} is {loss} on {text}; {LESS}"
        )


LESS = "a lower train.learning_rate or train.clip_norm may help"
