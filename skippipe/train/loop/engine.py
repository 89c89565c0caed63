"""Iterations and validations of one rank under one plan, in step with the other ranks.

After an iteration, ranks exchange losses, times and flags over the same links as the messages, once all of these have
arrived, by a sum in which every rank fills its own entries.
"""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch

from skippipe._scheduler import Plan
from skippipe.devices import on_device
from skippipe.errors import SchedulerError
from skippipe.phases import layers_in_use
from skippipe.ranks import iteration_s_on
from skippipe.runtime.actions import Program, Reduce
from skippipe.runtime.deadlock import min_recv_buffers, prove_deadlock_free
from skippipe.runtime.executor import Batches, Executor, StageCompute, Timings, overlapping_sums
from skippipe.runtime.grouped import GroupedExecutor
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import tree_sum
from skippipe.runtime.lower import lower, lower_evaluation
from skippipe.runtime.stage import gradient_scale
from skippipe.runtime.stage_graphs import StageGraphs
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.loss_scale import LossScale
from skippipe.train.loop.recording import all_may_be_recorded, recorded_above
from skippipe.train.loop.timelines import RankTimeline, TimelineExchange
from skippipe.train.resolve.spec import SLOWEST_HEALTHY, CommunicationSpec, PlanPhase
from skippipe.train.signals import SIGNALS


class DivergedError(SchedulerError, ArithmeticError):
    """Gradient or loss is no longer finite."""


class RankFlags(NamedTuple):
    """Flags that a rank shares after an iteration, so that all decide alike; combined by `or`."""

    saving: bool = False
    """it is still writing a checkpoint"""
    replan: bool = False
    """it has another plan for the next iteration"""
    join: bool = False
    """others ask to join"""
    renewing: bool = False
    """it is still renewing copies of stages"""
    sigterm: bool = False
    """it was asked to stop by SIGTERM; and so on for the other `skippipe.train.signals.SIGNALS`"""
    sigint: bool = False
    sighup: bool = False
    sigusr1: bool = False

    @staticmethod
    def asked_to_stop(by: signal.Signals | None) -> Mapping[str, bool]:
        """The fields that say whether a rank was asked to stop, and by which signal."""
        return {number.name.lower(): number == by for number in SIGNALS}

    @property
    def stopped_by(self) -> signal.Signals | None:
        """A signal that has asked some rank to stop."""
        return next((number for number in SIGNALS if getattr(self, number.name.lower())), None)


@dataclass(frozen=True)
class IterationResult:
    """One iteration; the same on every rank, but for `timings` and `timelines`."""

    loss: float
    """mean over the iteration's tokens in nats, without router losses"""
    router_loss: float | None
    """mean of those over the iteration's tokens, with their coefficient; None: no layer has one"""
    norm: float
    """of the gradient of the full model, before clipping"""
    loss_scale: LossScale | None
    """None: the losses were not scaled"""
    seconds: float
    """from the start to the end of the last rank's step"""
    flags: RankFlags
    """set by any rank"""
    timings: Timings
    """of this rank's actions"""
    timelines: Sequence[RankTimeline]
    """of all ranks, on rank 0; empty elsewhere, and where microbatches share passes"""


class Gathered(NamedTuple):
    """Values combined over all ranks after an iteration or validation."""

    loss: float
    """sum over tokens, added in the order of the microbatches"""
    router_loss: float | None
    """the same for router losses; None: there are none"""
    seconds: float
    """maximum over the ranks"""
    flags: RankFlags
    timelines: Sequence[RankTimeline]
    """of all ranks, on rank 0"""


class Engine:
    """One rank's stages under the plan of a phase: runs iterations and validations."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        context: RankContext,
        phase: PlanPhase,
        plan: Plan,
        *,
        predicts: bool = True,
        request_sha256: str = "",
        flops: float = 0.0,
    ) -> None:
        """Lower the plan, and prove that it cannot deadlock.

        Args:
            context: what the rank works with.
            phase: the iterations that follow the plan.
            plan: what is run, on the processors of `skippipe.ranks.planned_processors`.
            predicts: whether the plan's times hold for this run.
            request_sha256: hash of what the plan was asked for.
            flops: of an iteration, over all ranks.

        Raises:
            DeadlockError: no number of receive buffers makes the plan safe.

        """
        self.phase, self.plan, self.request_sha256, self.flops = phase, plan, request_sha256, flops
        self.planned_s = iteration_s_on(plan, context.rank_of)
        """iteration time of the plan"""
        self.predicted_s = self.planned_s if predicts else None
        """iteration time of the plan, if it is a prediction for this run"""
        self.rank_of = context.rank_of
        self._spec, self._stages, self._device = context.spec, context.stages, context.device
        self._rendezvous, self._links = context.rendezvous, context.links
        self.stages_in_use = [stage for stage, nodes in enumerate(plan.stages) if nodes]
        self.serving = context.serving(plan.stages)
        """the ranks that serve each stage in use"""
        self.layers = frozenset(
            layer for stage in self.stages_in_use for layer in layers_in_use(phase.layers, context.layers[stage])
        )
        """decoder layers in use"""
        self._measured_s = 0.0
        self.recv_buffers = context.spec.communication.recv_buffers
        """receives posted and not consumed, per sending rank"""
        self.programs: Sequence[Program] = ()
        """of all ranks; none where microbatches share passes"""
        self.shared = context.spec.communication.planned_contention(plan.cluster)
        """what messages have to take turns on"""
        self._clock_offset_s = context.clock_offset_s
        self._context = context
        self._graphs: StageGraphs | None = None
        self._training: Executor | GroupedExecutor
        self._validation: Executor | GroupedExecutor
        if context.spec.device.group > 1:
            self._training, self._validation = self._grouped(context)
        else:
            self._training, self._validation = self._in_order(context)
        self._index_of = {number: index for index, number in enumerate(sorted(m.id for m in plan.microbatches))}
        self._validation_index_of = {number: number for number in range(context.validation_microbatches)}
        self._visits = [sum(s in m.stages for m in plan.microbatches) for s in range(len(plan.stages))]
        rank = context.rendezvous.rank
        self._visited_here = {s for s, ranks in self.serving.items() if rank in ranks and self._visits[s]}
        self.tokens = len(self._index_of) * context.microbatch_tokens
        """of an iteration"""
        self.sequences = len(self._index_of) * context.message_spec.microbatch_size
        """of an iteration"""
        self.validation_tokens = context.validation_microbatches * context.microbatch_tokens

    def prove(self, plan: Plan) -> None:
        """Prove that another plan cannot deadlock on the same ranks; raises as `lower_safely` does."""
        lower_safely(plan, self._context)

    def _in_order(self, context: RankContext) -> tuple[Executor, Executor]:
        """Executors of the plan's order, and of validations."""
        training, validation, self.recv_buffers = lower_safely(self.plan, context)
        communication = context.spec.communication
        connect(context.links.messages, [*training, *validation])
        self.programs = training
        own = training[context.rendezvous.rank].actions
        host_share = recorded_above(context.spec.device, context.spec.precision, context.stages.values())
        if host_share is not None:
            watched = overlapping_sums(own, context.links.messages)
            self._graphs = StageGraphs(own, context.stages, context.message_spec, watched, host_share=host_share)

        def executor(programs: Sequence[Program], stages: Mapping[int, StageCompute]) -> Executor:
            return Executor(
                programs[context.rendezvous.rank],
                stages,
                context.links.messages,
                buffers=context.buffers,
                control=context.links.control,
                recv_buffers=self.recv_buffers,
                sends_in_flight=communication.sends_in_flight,
                title=context.rendezvous.title,
            )

        trained = context.stages if self._graphs is None else self._graphs.stages
        return executor(training, trained), executor(validation, context.stages)

    def _grouped(self, context: RankContext) -> tuple[GroupedExecutor, GroupedExecutor]:
        """Executors of the plan's routes in one process, several microbatches at a time, and of validations."""
        routes = {microbatch.id: microbatch.stages for microbatch in self.plan.microbatches}
        full = dict.fromkeys(range(context.validation_microbatches), self.stages_in_use)
        spec, most = context.spec, context.spec.device.group
        graph = all_may_be_recorded(spec.device, spec.precision, context.stages.values())
        return (
            GroupedExecutor(routes, context.stages, most, self._device, graph=graph),
            GroupedExecutor(full, context.stages, most, self._device, train=False),
        )

    def release(self) -> None:
        """Free what the engine holds of a GPU's memory between iterations."""
        if isinstance(self._training, GroupedExecutor):
            self._training.release()
        if self._graphs is not None:
            self._graphs.release()

    @property
    def uncounted_bytes(self) -> int:
        """Memory of a GPU that the engine uses and torch does not count as allocated."""
        return 0 if self._graphs is None else self._graphs.uncounted_bytes

    def iterate(
        self,
        batches: Batches,
        step: Callable[[float], None],
        flags: Callable[[], RankFlags] = RankFlags,
        loss_scale: LossScale | None = None,
    ) -> IterationResult:
        """Run one iteration.

        Args:
            batches: tokens and labels by a microbatch's index in the iteration, from 0.
            step: the optimizer step, given the norm of the full model's gradient.
            flags: called at the end for the flags of this rank.
            loss_scale: of this iteration, the same on all ranks; None: losses are not scaled.

        Raises:
            ActionError: a message did not arrive, or another rank is gone.

        """
        factor = 1.0 if loss_scale is None else loss_scale.factor
        for number, stage in self._stages.items():
            scale = gradient_scale(
                self._spec.stage_gradient, visits=self._visits[number], microbatches=len(self._index_of)
            )
            stage.begin(self.tokens, scale=scale, loss_scale=factor, visited=number in self._visited_here)
        norm = math.nan

        def finish(global_norm: float) -> None:
            nonlocal norm
            norm = global_norm
            step(global_norm)

        timeout_s = self._message_timeout_s()
        with nullcontext() if self._graphs is None else self._graphs.iteration():
            timings = self._training.run(self._placed(lambda m: batches(self._index_of[m])), finish, timeout_s)
        loss, router_loss, seconds, combined, timelines = self._gather(self._index_of, timeout_s, flags(), timings)
        self._measured_s = seconds
        if router_loss is not None:
            router_loss /= self.tokens
        return IterationResult(loss / self.tokens, router_loss, norm, loss_scale, seconds, combined, timings, timelines)

    def validate(self, batches: Batches) -> float:
        """Mean loss of the stages in use over the validation's tokens, in nats; raises as `iterate` does."""
        # A microbatch of a validation only goes forward, but through all stages in use.
        timeout_s = self._message_timeout_s(max(1.0, len(self._validation_index_of) / len(self._index_of)))
        with ExitStack() as stack:
            for stage in self._stages.values():
                stack.enter_context(stage.evaluating())
            self._validation.run(self._placed(batches), lambda _: None, timeout_s)
            gathered = self._gather(self._validation_index_of, timeout_s, RankFlags())
            return gathered.loss / self.validation_tokens

    def _placed(self, batches: Batches) -> Batches:
        """Batches where the executor takes them: grouped, it moves many at once."""
        if isinstance(self._training, GroupedExecutor):
            return batches
        return lambda microbatch: on_device(batches(microbatch), self._device)

    @property
    def position(self) -> tuple[int, str] | None:
        """Where the program of an iteration is (`Executor.position`); None where one process does it all."""
        return None if isinstance(self._training, GroupedExecutor) else self._training.position

    @property
    def patience_s(self) -> float:
        """How long a healthy rank may take until it answers."""
        return self._message_timeout_s()

    def _message_timeout_s(self, iterations: float = 1.0) -> float:
        timeout_s, predicted_s = self._spec.communication.timeout_s, self.planned_s
        return message_timeout_s(timeout_s, predicted_s, self._measured_s, iterations)

    def _gather(
        self, index_of: Mapping[int, int], timeout_s: float, flags: RankFlags, timings: Timings | None = None
    ) -> Gathered:
        """Combine losses, times and flags of all ranks; `index_of` has the index of each microbatch's loss."""
        world, rank = self._rendezvous.world, self._rendezvous.rank
        losses = torch.zeros(len(index_of), dtype=torch.float64)
        routed: list[float] = []
        for stage in self._stages.values():
            routed += stage.take_local_losses().values()
            for microbatch, loss in stage.take_losses().items():
                losses[index_of[microbatch]] = loss
        by_rank = torch.zeros(2, world, dtype=torch.float64)
        seconds = 0.0 if timings is None else timings.ends[-1]
        by_rank[:, rank] = torch.tensor([seconds, sum(routed)], dtype=torch.float64)
        set_here = torch.tensor([bool(routed), *flags], dtype=torch.float64)
        values = torch.cat([losses, *by_rank, set_here])
        with self._rendezvous.transferring("the sum of the losses", range(world)):
            exchange = None
            if timings is not None and self.programs:
                actions = [len(program.actions) for program in self.programs]
                exchange = TimelineExchange(self._links.control, rank, actions, timings, self._clock_offset_s)
            tree_sum(self._links.control, values, rank, range(world), timeout_s)
            timelines = [] if exchange is None else exchange.finish(timeout_s)
        summed = iter(values.tolist())
        losses_, times, routers = (list(islice(summed, count)) for count in (len(index_of), world, world))
        any_routed, *combined = map(bool, summed)
        router_loss = sum(routers) if any_routed else None
        return Gathered(sum(losses_), router_loss, max(times), RankFlags(*combined), timelines)


def message_timeout_s(timeout_s: float, predicted_s: float, measured_s: float, iterations: float = 1.0) -> float:
    """Longest time to wait for a message, in seconds.

    A rank with little work may have to wait for the busiest one, up to a complete iteration.

    Args:
        timeout_s: waited in addition, `runtime.timeout_s`.
        predicted_s: iteration time that the plan predicts.
        measured_s: of the latest iteration; 0 before the first.
        iterations: duration of the work in which the message is waited for, in iterations.

    """
    return timeout_s + SLOWEST_HEALTHY * iterations * max(predicted_s, measured_s)


def connect(link: Link, programs: Sequence[Program]) -> None:
    """Prepare a link for all transfers and sums of some programs. All ranks call this."""
    pairs = {(sender, program.rank) for program in programs for sender in program.incoming}
    groups = {action.ranks for program in programs for action in program.actions if isinstance(action, Reduce)}
    link.connect(pairs, groups)


def lower_safely(plan: Plan, context: RankContext) -> tuple[Sequence[Program], Sequence[Program], int]:
    """Lower a plan for iterations and validations.

    Returns:
        Programs of all ranks for each, and the receive buffers with which none of them can deadlock.

    Raises:
        DeadlockError: no number of receive buffers is enough.

    """
    training = lower(plan, context.rank_of)
    validation = lower_evaluation(plan, context.rank_of, context.validation_microbatches)
    return training, validation, safe_buffers([training, validation], context.spec.communication)


def safe_buffers(groups: Sequence[Sequence[Program]], communication: CommunicationSpec) -> int:
    """The receive buffers of the settings, or as many more as the proof needs, for all groups of programs.

    Raises:
        DeadlockError: no number is enough; the message names the cycle.

    """
    buffers = communication.recv_buffers
    for programs in groups:
        enough = min_recv_buffers(programs, buffers, communication.sends_in_flight)
        if enough is None:
            prove_deadlock_free(programs, buffers, communication.sends_in_flight)
        else:
            buffers = enough
    return buffers


def check_finite(result: IterationResult, iteration: int) -> None:
    """Raise `DivergedError` unless gradient and loss are finite; all ranks have the same ones, so all raise.

    A gradient that overflows while the loss is scaled up is no reason: the next iteration scales it less.
    """
    may_overflow = result.loss_scale is not None and result.loss_scale.factor > 1.0
    if not ((math.isfinite(result.norm) or may_overflow) and math.isfinite(result.loss)):
        raise DivergedError(
            f"training has diverged: the norm of the gradient is {result.norm} in iteration {iteration}, the loss "
            f"{result.loss:.4f}; {HINT}"
        )


def check_validation(loss: float, iteration: int, text: str) -> None:
    """Raise `DivergedError` unless a validation's loss is finite, on all ranks; `text` is what it was taken on."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"training has diverged: the validation loss after iteration {iteration} is {loss} on {text}; {HINT}"
        )


HINT = "a lower train.learning_rate or train.clip_norm may help"
