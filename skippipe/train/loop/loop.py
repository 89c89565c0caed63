"""Iterations and validations from where a run begins to its end, or to where it is asked to stop."""

import contextlib
import dataclasses
import json
import math
import signal
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from skippipe._scheduler import Plan
from skippipe.checkpoint.reading import WEIGHTS
from skippipe.checkpoint.saving import CheckpointContents, CheckpointSaver
from skippipe.checkpoint.state import TrainingState
from skippipe.devices import peak_memory
from skippipe.errors import SchedulerError
from skippipe.model.build import module_seed
from skippipe.moves import (
    Holding,
    PhaseChange,
    WeightBytes,
    change_phase,
    change_s,
    renumbered,
    stage_moves,
    transfers_s,
)
from skippipe.phases import phase_layers
from skippipe.plan_file import plan_sha256
from skippipe.ranks import transfer_time
from skippipe.rules import bent_rules
from skippipe.runtime.executor import Batches
from skippipe.runtime.stage import Stage
from skippipe.train.loop.checkpoint_scheduler import CheckpointScheduler
from skippipe.train.loop.closed_loop import ClosedLoop
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.copies import CopyKeeper, StageCopy
from skippipe.train.loop.copy_scheduler import CopyScheduler
from skippipe.train.loop.engine import Engine, IterationResult, RankFlags, check_finite, check_validation
from skippipe.train.loop.hang_guard import Position
from skippipe.train.loop.loss_scale import LossScale
from skippipe.train.loop.observed import Ratios
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.loop.run_state import PlanInForce, RunMetadata, RunProgress, RunState
from skippipe.train.loop.standing import CommonStanding, Standing
from skippipe.train.loop.task_times import TaskTimes, explain_difference, merge_times
from skippipe.train.loop.token_batches import ReadAhead, TokenBatches
from skippipe.train.loop.transfers import run_transfers, stage_state
from skippipe.train.observe.events import (
    IterationDone,
    PlanChanged,
    Report,
    RunStopped,
    RunSummary,
    ValidationDone,
    from_json,
    to_json,
)
from skippipe.train.observe.utilization import UtilizationMeter
from skippipe.train.resolve.spec import PlanPhase
from skippipe.train.signals import StopRequest

OPTIMIZER = "optimizer"
"""Prefix of the names of optimizer state in a checkpoint."""


class SlowRankError(SchedulerError):
    """A rank is to be treated as lost."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class NewcomersError(SchedulerError):
    """Others are to join the ranks after an iteration; nothing has failed."""

    def __init__(self, newcomers: Sequence[int]) -> None:
        super().__init__(f"{len(newcomers)} others join")
        self.newcomers = newcomers
        """their numbers"""


StopSignal = Callable[[], signal.Signals | None]
"""Which signal has asked this rank to stop."""
Knocking = Callable[[], Sequence[int]]
"""Numbers of those that ask to join, on rank 0."""


class Factory(NamedTuple):
    """Makes what a plan needs that is adopted during the run."""

    engine: Callable[[PlanPhase, Plan, str], Engine]
    """of a phase's plan; the text is the hash of what the plan was asked for"""
    stage: Callable[[int, Collection[int]], Stage]
    """by number; weights of the layers that have joined follow"""


class TrainingLoop:
    """One rank's share of a run."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        context: RankContext,
        engines: Sequence[Engine],
        *,
        optimizer: StageOptimizer,
        start: RunProgress,
        batches: TokenBatches | None,
        weights: WeightBytes,
        metadata: RunMetadata,
        saver: CheckpointSaver | None,
        copies: CopyKeeper | None,
        trace: Path | None,
        report: Report,
        factory: Factory,
        closed_loop: ClosedLoop | None,
    ) -> None:
        """Take what has been prepared.

        Args:
            context: what the rank works with.
            engines: of the phases, in order; all of them use the same number of tokens per iteration.
            optimizer: of this rank's stages.
            start: how far the run is.
            batches: the text, on ranks with a source.
            weights: sizes of the model's weights.
            metadata: for checkpoints.
            saver: writes checkpoints; None: none are written.
            copies: keeps copies of other ranks' stages; None: there are none.
            trace: the file for a trace of profiled iterations, on rank 0.
            report: takes the events.
            factory: for plans that are adopted during the run.
            closed_loop: compares predicted and measured times, on rank 0.

        """
        self._spec, self._context, self._engines = context.spec, context, list(engines)
        self._factory, self._closed_loop = factory, closed_loop
        self._optimizer, self._start, self._weights = optimizer, start, weights
        self._holding = self._holding_before = Holding(context.holding(), start.layers)
        self._phase = -1
        self._number = self._stepped = start.iteration
        self._under_way: Engine | None = None
        self._norm: float | None = None
        self._latest: IterationDone | None = None
        self._validation: ValidationDone | None = None
        self._losses: list[float] = []
        self._validated = -1
        scaled = context.spec.precision.autocast == "float16"
        self._loss_scale = (start.loss_scale or LossScale()) if scaled else None
        self._token_batches, self._metadata, self._report = batches, metadata, report
        self._sequences = engines[0].sequences
        # A single process reads all microbatches, and a GPU would wait for them.
        self._ahead = ReadAhead(self._all_batches) if context.rendezvous.world == 1 else None
        profiled = 0 if trace is None else self._spec.device.profile
        self._found = False
        """whether rank 0 has another plan for the next iteration"""
        self._previous_s: float | None = None
        """of the plan before, if the next one has been adopted"""
        self._meter = UtilizationMeter(context.device, context.rendezvous.world, profiled, trace, start.iteration)
        self._copies = CopyScheduler(copies, context, optimizer)
        self._checkpoints = None
        if saver is not None:
            every = self._spec.checkpoints.every
            self._checkpoints = CheckpointScheduler(saver, every, self._snapshot, start.newest, report)

    def run(
        self, request: StopRequest, *, begun: Callable[[], None] = lambda: None, knocking: Knocking = tuple
    ) -> signal.Signals | None:
        """Train and validate to the end, or until asked to stop; gives the signal that asked.

        Args:
            request: to stop.
            begun: called before the first iteration, after what comes before it, such as a validation.
            knocking: who asks to join.

        Raises:
            NewcomersError: others are to join after the iteration that is done; on all ranks alike.
            ActionError: a message did not arrive, or another rank is gone.
            DivergedError: gradient or loss is no longer finite.
            SavingError: no checkpoint can be left at the end.

        """
        with contextlib.ExitStack() as stack:
            if self._ahead is not None:
                stack.callback(self._ahead.close)
            if self._closed_loop is not None:
                stack.callback(self._closed_loop.close)
            if self._train(lambda: request.signal, begun, knocking):
                return None
            request.heeded = True
            return request.signal or signal.SIGTERM  # another rank was asked: this one was not interrupted

    def _engine(self, iteration: int) -> Engine:
        """Engine of the phase that an iteration belongs to; the start, 0, belongs to the first one."""
        return [engine for engine in self._engines if engine.phase.after < max(iteration, 1)][-1]

    def _following(self, iteration: int) -> int:
        """Iterations of the same phase after one."""
        later = [engine.phase.after for engine in self._engines if engine.phase.after >= iteration]
        return min([*later, self._spec.iterations]) - iteration

    def _train(self, asked: StopSignal, begun: Callable[[], None], knocking: Knocking) -> bool:
        """Train; whether the run has completed all iterations."""
        spec, checkpoints, meter = self._spec, self._checkpoints, self._meter
        number = self._start.iteration
        if self._phase < 0:
            self._begin()
        self._make_up(number)
        self._copies.place(self._holding)
        self._copies.after(number, renewing=False)
        begun()
        engine, measured = self._engine(number), Measured()
        meter.restart()
        while number < spec.iterations:
            number += 1
            before, engine = engine, self._next_engine(number, engine)
            measured = measured if engine is before else Measured()
            result = self._iterate(number, engine, asked, lambda: bool(knocking()))
            if number == self._start.iteration + 1:
                self._release_stages(engine)  # not before: until now others may have begun with who had them before
            if number > self._start.iteration + 1 or number == spec.iterations:  # the first one is slower
                measured.seconds.append(result.seconds)
                measured.tasks.add(result.timings)
            elapsed_s, mfu = meter.record(engine.flops)
            self._report_iteration(number, engine, result, elapsed_s, mfu, self._compare(number, result))
            if number < spec.iterations:
                self._check_slow()
            stopped_by = result.flags.stopped_by
            if stopped_by is not None and number < spec.iterations:
                self._copies.wait()
                if checkpoints is not None:
                    checkpoints.finish(number)
                self._report(RunStopped(iteration=number, saved=checkpoints is not None, signal=stopped_by.name))
                return False
            self._follow_up(number, result.flags, knocking)
        self._copies.wait()
        if checkpoints is not None:
            checkpoints.finish(number)
        self._report(self._summary(engine, number, measured))
        return True

    def _follow_up(self, number: int, flags: RankFlags, knocking: Knocking) -> None:
        """Do what follows an iteration; raises `NewcomersError` if others are to join."""
        if self._is_validated(number):
            with self._meter.paused():
                self._validate(number)
        self._meter.profile(number)
        if number == self._spec.iterations:
            return
        # While others wait to join nothing new begins beside training: else there might always be something.
        waiting = flags.join and (flags.saving or flags.renewing)
        if flags.join and not waiting:
            self._admit(number, knocking)
        if self._checkpoints is not None:
            self._checkpoints.after(number, saving=flags.saving or waiting)
        self._copies.after(number, renewing=flags.renewing or waiting)

    def _admit(self, number: int, knocking: Knocking) -> None:
        """Raise `NewcomersError` once all ranks know whom rank 0 admits, and have nothing more to send each other."""
        rendezvous, checkpoints = self._context.rendezvous, self._checkpoints
        texts = rendezvous.all_gather(f"newcomers after iteration {number}", json.dumps(knocking()))
        newcomers: list[int] = json.loads(texts[0])
        if newcomers:
            if checkpoints is not None:
                checkpoints.take_note()
            raise NewcomersError(newcomers)

    def _make_up(self, number: int) -> None:
        """Do what comes before the iterations: at the start of a run, or as far as a loss of ranks has prevented it."""
        checkpoints, begins = self._checkpoints, self._validated < 0
        if checkpoints is not None and begins:
            checkpoints.finish(number)  # a run that is killed before its first checkpoint resumes by the same plan
        elif checkpoints is not None and number not in {0, checkpoints.newest}:
            checkpoints.after(number, saving=False)
        if begins or (self._validated != number and self._is_validated(number)):
            self._validate(number)

    def _is_validated(self, number: int) -> bool:
        """Whether a validation follows an iteration."""
        every = self._spec.validate_every
        return number == self._spec.iterations or bool(every and number % every == 0)

    @property
    def position(self) -> Position | None:
        """Where the iteration under way is, for other threads; None between iterations."""
        engine = self._under_way
        found = None if engine is None else engine.position
        return None if engine is None or found is None else Position(self._number, *found, engine.patience_s)

    def _iterate(self, number: int, engine: Engine, asked: StopSignal, knock: Callable[[], bool]) -> IterationResult:
        """Train one iteration."""
        checkpoints, self._number, self._under_way = self._checkpoints, number, engine
        self._context.links.begin_iteration(number)
        torch.manual_seed(iteration_seed(self._spec.seed, number, self._context.rendezvous.rank))
        result = engine.iterate(
            self._batches(number),
            self._step,
            lambda: RankFlags(
                **RankFlags.asked_to_stop(asked()),
                saving=checkpoints is not None and checkpoints.busy,
                replan=self._closed_loop is not None
                and self._closed_loop.wants_change(number, self._following(number), self._change_s),
                join=knock(),
                renewing=self._copies.busy,
            ),
            self._loss_scale,
        )
        check_finite(result, number)
        self._found = result.flags.replan
        return result

    def _next_engine(self, number: int, engine: Engine) -> Engine:
        """The engine of an iteration, ready to run; `engine` is that of the one before."""
        if self._found:
            self._adopt_found(number - 1)
        return engine if engine is self._engine(number) else self._change_plan(number)

    def _compare(self, number: int, result: IterationResult) -> Ratios:
        """Compare what an iteration took with its prediction, on rank 0."""
        if self._closed_loop is None or number == self._start.iteration + 1:  # the first one is slower
            return Ratios(None, None)
        return self._closed_loop.after(number, result.timelines, result.seconds, self._following(number))

    def _check_slow(self) -> None:
        """Raise `SlowRankError` on rank 0 if a rank is so slow that the others are to go on without it."""
        most, rendezvous = self._spec.communication.max_slowdown, self._context.rendezvous
        lets_go = self._spec.communication.recover and rendezvous.rank_spec.launcher.lets_survivors_live
        if most is None or not lets_go or self._closed_loop is None:
            return
        slow = self._closed_loop.slowest_rank(most)
        if slow is not None:
            raise SlowRankError(
                slow.rank, f"{rendezvous.title(slow.rank)} is {slow.slowdown:.1f} times slower than planned"
            )

    def _report_iteration(  # noqa: PLR0913, PLR0917 - what an event has
        self,
        number: int,
        engine: Engine,
        result: IterationResult,
        elapsed_s: float,
        mfu: float | None,
        compared: Ratios,
    ) -> None:
        """Report an iteration; `elapsed_s` is the time since the one before has ended."""
        self._latest = IterationDone(
            iteration=number,
            loss=result.loss,
            tokens=engine.tokens,
            tokens_per_s=engine.tokens / elapsed_s,
            iteration_s=result.seconds,
            norm=result.norm if math.isfinite(result.norm) else None,
            learning_rate=self._optimizer.rate,
            router_loss=result.router_loss,
            predicted_s=engine.predicted_s,
            iteration_ratio=result.seconds / engine.predicted_s if engine.predicted_s else None,
            task_ratio=compared.tasks if engine.predicted_s else None,
            message_ratio=compared.messages if engine.predicted_s else None,
            mfu=mfu,
            loss_scale=None if result.loss_scale is None else result.loss_scale.factor,
        )
        self._report(self._latest)

    def _adopt_found(self, iteration: int) -> None:
        """Adopt the plan that rank 0 has found, after an iteration."""

        def make() -> str:
            assert self._closed_loop is not None, "rank 0 has asked for it"
            taken = self._closed_loop.take(iteration)
            return json.dumps([taken.current_s, taken.plan.to_json()])

        previous_s, plan = json.loads(self._context.rendezvous.broadcast(f"plan after iteration {iteration}", make))
        self.adopt(Plan.from_json(plan), iteration + 1, previous_s)

    def adopt(self, plan: Plan, iteration: int, previous_s: float) -> None:
        """Run a phase by another plan from an iteration on. All ranks call this between iterations, with the same plan.

        Every rank proves that the plan cannot deadlock, and they compare its hash.

        Args:
            plan: for the phase of that iteration.
            iteration: the next one.
            previous_s: iteration time of the plan before by now, for the event.

        Raises:
            DeadlockError: no number of receive buffers makes the plan safe.
            InputError: ranks have different plans.

        """
        context, now = self._context, self._engine(iteration)
        key = f"plan before iteration {iteration}"
        context.rendezvous.check_equal(key, {"hash of the plan": plan_sha256(plan)})
        new = self._served_here(plan) - set(context.stages)
        context.stages.update({stage: self._factory.stage(stage, self._holding.joined) for stage in sorted(new)})
        if new:
            self._optimizer.follow_stages()
        now.release()
        self._engines[self._engines.index(now)] = self._factory.engine(now.phase, plan, now.request_sha256)
        self._previous_s = previous_s

    def _served_here(self, plan: Plan) -> set[int]:
        """The stages that this rank serves under a plan."""
        rank = self._context.rendezvous.rank
        return {stage for stage, ranks in self._context.serving(plan.stages).items() if rank in ranks}

    def _release_stages(self, engine: Engine) -> None:
        """Forget the stages that this rank has no current weights of, and does not serve from `engine` on."""
        context, first = self._context, self._engines.index(engine)
        needed = set().union(*(self._served_here(later.plan) for later in self._engines[first:]))
        needed |= {stage for stage, ranks in self._holding.current.items() if context.rendezvous.rank in ranks}
        unneeded = set(context.stages) - needed
        for stage in unneeded:
            del context.stages[stage]
        if unneeded:
            self._optimizer.follow_stages()

    def _change_plan(self, iteration: int) -> Engine:
        """Begin the phase or the plan that an iteration belongs to."""
        begin = time.perf_counter()
        self._engine(iteration - 1).release()
        engine = self._engine(iteration)
        previous_s, self._previous_s = self._previous_s, None
        change, predicted_change_s = self._begin_phase(engine, iteration, adopted=previous_s is not None)
        if previous_s is not None:
            self._release_stages(engine)
        self._copies.place(self._holding)
        plan = engine.plan
        self._report(
            PlanChanged(
                iteration=iteration, skip_ratio=plan.skip_ratio, strategy=plan.strategy,
                bent_rules=bent_rules(
                    plan.constraints, plan.absent_stages, phase_layers(engine.phase.layers, plan)
                ),
                predicted_s=engine.predicted_s, stages=engine.stages_in_use, stages_in_all=len(plan.stages),
                moved_stages=sorted({move.target for move in change.moves}), new_layers=sorted(change.new),
                copied=bool(change.new) and self._spec.new_layers == "copy",
                seconds=time.perf_counter() - begin, predicted_change_s=predicted_change_s,
                previous_s=previous_s,
            )
        )  # fmt: skip
        return engine

    def _change_s(self, plan: Plan) -> float:
        """Predicted seconds for weights and optimizer state to move to where a plan of this phase needs them."""
        context = self._context
        moves = stage_moves(context.serving(plan.stages), self._holding.current)

        def state(stage: int) -> float:
            return self._weights.state(stage, self._holding.joined.intersection(context.layers[stage]))

        return transfers_s(moves, state, transfer_time(plan.cluster, context.rank_of))

    def _begin_phase(
        self, engine: Engine, iteration: int, *, adopted: bool = False
    ) -> tuple[PhaseChange, float | None]:
        """Bring the weights of a phase to the ranks that serve its stages, before `iteration`.

        `adopted` says that only the plan changes, within the phase.

        Returns:
            What was done, and the seconds predicted for it; None: the plan's times do not hold.

        """
        context, before = self._context, self._holding
        self._holding_before = before
        change = change_phase(
            before, engine.serving, engine.layers, context.layers, copy=self._spec.new_layers == "copy"
        )
        if change.moves:
            here = {number: self._state_of(stage) for number, stage in context.stages.items()}
            run_transfers(
                context.rendezvous, context.links.control, change.moves, here, f"stages before iteration {iteration}"
            )
        if change.copies:
            here = {
                layer: [p.data for _, p in sorted(stage.module.parameters_of_layer(layer).items())]
                for stage in context.stages.values()
                for layer in stage.module.layers
            }
            run_transfers(
                context.rendezvous, context.links.control, change.copies, here, f"layers before iteration {iteration}"
            )
        self._holding, self._phase = change.after, engine.phase.after
        for stage in context.stages.values():
            stage.module.use_layers(engine.layers)
        if self._closed_loop is not None:
            self._closed_loop.begin(engine, engine.phase.planner, adopted=adopted)
        if engine.predicted_s is None:
            return change, None
        transfer = transfer_time(engine.plan.cluster, context.rank_of)
        return change, change_s(change, context.layers, self._weights, transfer)

    def _state_of(self, stage: Stage) -> list[Tensor]:
        """Weights and optimizer state of a stage's layers that have joined, in the same order on all ranks."""
        return stage_state(stage, self._optimizer, self._holding.joined)

    def _summary(self, engine: Engine, iterations: int, measured: "Measured") -> RunSummary:
        """Losses of the run, and how good the prediction was for its last phase."""
        rendezvous = self._context.rendezvous
        task_times = merge_times(rendezvous.all_gather("task times", measured.tasks.to_json()))
        measured_s = statistics.median(measured.seconds) if measured.seconds else None
        reasons: list[str] = []
        if measured_s is None:
            after_loss = self._latest is not None  # of the loop before
            reasons = ["no iteration was left to train" + " after the loss of a rank" * after_loss]
        elif engine.predicted_s is not None:
            threads = rendezvous.world * self._spec.launch.threads
            reasons = explain_difference(engine.plan, task_times, measured_s, engine.rank_of, threads)
        peak = peak_memory(self._context.device, engine.uncounted_bytes)
        peaks = rendezvous.all_gather("peak memory", str(peak))
        mfu, breakdown = self._meter.summary()
        return RunSummary(
            iterations=iterations,
            loss_before=self._losses[0],
            loss_after=self._losses[-1],
            predicted_s=engine.predicted_s,
            measured_s=measured_s,
            reasons=reasons,
            device=self._meter.device,
            peak_memory=[] if "None" in peaks else list(map(int, peaks)),
            mfu=mfu,
            breakdown=breakdown,
        )

    def _step(self, norm: float) -> None:
        if self._checkpoints is not None:
            self._checkpoints.settle()
        self._copies.settle()
        self._optimizer.step(norm)
        if self._loss_scale is not None:
            self._loss_scale = self._loss_scale.after(overflow=not math.isfinite(norm))
        self._stepped, self._norm = self._number, norm

    @property
    def context(self) -> RankContext:
        """What the rank works with."""
        return self._context

    @property
    def iteration(self) -> int:
        """Iterations whose step is done."""
        return self._stepped

    @property
    def optimizer(self) -> StageOptimizer:
        """Of this rank's stages."""
        return self._optimizer

    @property
    def engines(self) -> Sequence[Engine]:
        """Of the phases, in order."""
        return self._engines

    @property
    def predicted_s(self) -> float | None:
        """Predicted time of the next iteration; None: the plan's times do not hold for this run."""
        return self._engine(self._stepped + 1).predicted_s

    @property
    def metadata(self) -> RunMetadata:
        """Of text and model."""
        return self._metadata

    @property
    def token_batches(self) -> TokenBatches | None:
        """The text, on ranks with a source."""
        return self._token_batches

    @property
    def standing(self) -> Standing:
        """How far this rank is, for those that are left when another one is lost."""
        latest = self._latest
        return Standing(
            stepped=self._stepped,
            norm=None if self._norm is None else self._norm.hex(),
            latest=None if latest is None else to_json(latest),
            latest_iteration=0 if latest is None else latest.iteration,
            validation=None if self._validation is None else to_json(self._validation),
            newest=-1 if self._checkpoints is None else self._checkpoints.newest,
            validated=self._validated,
            phase=self._phase,
        )

    @property
    def patience_s(self) -> float:
        """How long another rank may take to notice that it waits in vain."""
        return self._engine(self._number).patience_s

    def catch_up(self, common: CommonStanding) -> None:
        """Take the step that other ranks have taken already, if this one has not; its gradients are complete."""
        if self._stepped < common.iteration:
            assert common.norm is not None, "a rank that has stepped has the norm"
            self._number = common.iteration
            self._step(common.norm)

    @property
    def copies(self) -> Mapping[int, StageCopy]:
        """The copies of other ranks' stages that this rank has."""
        return self._copies.kept

    def take_note_of_saving(self) -> None:
        """Report the checkpoints that are complete, so that none of them is written again without a lost stage."""
        if self._checkpoints is not None:
            self._checkpoints.take_note()

    def give_up_saving(self) -> None:
        """Wait until no checkpoint is written and no copy renewed: at once where the connections are cut."""
        if self._checkpoints is not None:
            self._checkpoints.wait()
        self._copies.wait()

    def _holding_of(self, phase: int) -> Holding:
        """Who has which weights, where all ranks have completed the change to a phase, but maybe not the one after."""
        return self._holding if self._phase == phase else self._holding_before

    def state(self, common: CommonStanding, new_rank: Mapping[int, int]) -> RunState:
        """What the next generation goes on with, after what its ranks have done in common.

        `new_rank` are their ranks there, by those in this loop.
        """
        assert self._stepped == common.iteration
        holding, allocation = self._holding_of(common.phase), self._spec.layout.allocation
        stages = {engine.phase.after: engine.plan.stages for engine in self._engines}
        phases = [  # nodes may have changed stages
            dataclasses.replace(phase.allocation, stages=stages.get(phase.after, phase.allocation.stages))
            for phase in self._spec.phases
        ]
        return RunState(
            progress=RunProgress(
                iteration=self._stepped,
                tokens=self._optimizer.tokens_done,
                position=self._position(self._stepped),
                newest=common.newest,
                layers=holding.joined,
                loss_scale=self._loss_scale,
            ),
            holding=renumbered(holding, new_rank),
            allocation=allocation,
            phases=tuple(phases),
            plans=tuple(
                PlanInForce(engine.phase.after, engine.plan.to_json(), engine.predicted_s is not None)
                for engine in self._engines
            ),
            metadata=self._metadata,
            losses=tuple(self._losses),
            validated=common.validated,
            norm=None if self._norm is None else self._norm.hex(),
            latest=common.latest,
            validation=common.validation,
        )

    def take_up(self, state: RunState) -> None:
        """Go on from a state, before the first iteration; brings the weights to where the plan needs them."""
        self._holding = self._holding_before = state.holding
        self._losses, self._validated = [*state.losses], state.validated
        self._norm = None if state.norm is None else float.fromhex(state.norm)
        latest, validation = (None if text is None else from_json(text) for text in (state.latest, state.validation))
        self._latest = latest if isinstance(latest, IterationDone) else None
        self._validation = validation if isinstance(validation, ValidationDone) else None
        self._begin()

    def _begin(self) -> None:
        number = self._start.iteration
        self._begin_phase(self._engine(number), number + 1)

    def _validate(self, iteration: int) -> None:
        engine = self._engine(iteration)

        def validation(microbatch: int) -> tuple[Tensor, Tensor]:
            return self._read().validation_batch(microbatch)

        def training(microbatch: int) -> tuple[Tensor, Tensor]:
            return self._read().training_batch(microbatch * self._read().microbatch_size)

        loss = engine.validate(validation)
        training_loss = engine.validate(training) if self._spec.validate_training else None
        validation_done = ValidationDone(
            iteration=iteration, loss=loss, tokens=engine.validation_tokens, training_loss=training_loss,
            stages=None if len(engine.stages_in_use) == len(engine.plan.stages) else engine.stages_in_use,
            layers=None if engine.phase.layers is None else sorted(engine.layers),
        )  # fmt: skip
        self._report(validation_done)
        if self._closed_loop is not None:
            self._closed_loop.keep_profile()
        check_validation(loss, iteration, "the validation text")
        if training_loss is not None:
            check_validation(training_loss, iteration, "training text")
        self._losses.append(loss)
        self._validation, self._validated = validation_done, iteration

    def _read(self) -> TokenBatches:
        assert self._token_batches is not None, "only ranks with a source read"
        return self._token_batches

    def _position(self, iterations: int) -> int:
        """Sequences used after so many iterations of the run."""
        return self._start.position + (iterations - self._start.iteration) * self._sequences

    def _batches(self, number: int) -> Batches:
        if self._ahead is not None:
            read = self._ahead.get(number)
            return lambda microbatch: read[microbatch]
        first = self._position(number - 1)

        def batches(microbatch: int) -> tuple[Tensor, Tensor]:
            return self._read().training_batch(first + microbatch * self._read().microbatch_size)

        return batches

    def _all_batches(self, number: int) -> list[tuple[Tensor, Tensor]]:
        """All microbatches of an iteration, in order."""
        count = self._sequences // self._read().microbatch_size
        return self._read().training_batches(self._position(number - 1), count)

    def _snapshot(self, iteration: int) -> tuple[Mapping[str, Tensor], CheckpointContents]:
        """This rank's share of a checkpoint: the stages that it owns."""
        engine = self._engine(iteration)
        tensors: dict[str, Tensor] = {}
        for number, stage in self._context.stages.items():
            # Nobody may have a stage that was lost, and is still to be built by another rank.
            if min(self._holding.current.get(number, ()), default=None) != self._context.rendezvous.rank:
                continue
            parameters = stage.module.parameters_of(self._holding.joined)
            tensors |= {f"{WEIGHTS}/{name}": tensor for name, tensor in parameters.items()}
            tensors |= {f"{OPTIMIZER}/{name}": tensor for name, tensor in self._optimizer.tensors(parameters).items()}
        state = TrainingState(
            iteration=iteration,
            tokens=self._optimizer.tokens_done,
            position=self._position(iteration),
            seed=self._spec.seed,
            text=self._metadata.text_sha256,
            model=self._metadata.model,
            planning=engine.request_sha256,
            layers=sorted(self._holding.joined),
            new_layers=self._spec.new_layers,
            loss_scale=None if self._loss_scale is None else self._loss_scale.factor,
            loss_scale_iterations=0 if self._loss_scale is None else self._loss_scale.iterations,
        )
        others = {
            e.request_sha256: e.plan.to_json() for e in self._engines if e.request_sha256 != engine.request_sha256
        }
        return tensors, CheckpointContents(state, engine.plan.to_json(), others, self._metadata.tokenizer)


@dataclass
class Measured:
    """Times under one plan."""

    seconds: list[float] = field(default_factory=list)
    """of each iteration"""
    tasks: TaskTimes = field(default_factory=TaskTimes)


def iteration_seed(seed: int, iteration: int, rank: int) -> int:
    """Seed of the random numbers that a rank draws in an iteration, such as for dropout: 63 bits of a hash."""
    return module_seed(seed, f"{iteration}:{rank}")
