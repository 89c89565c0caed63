"""Trains to the end although ranks are lost or join: those that are there regroup, plan anew and go on.

After a loss they redo the iteration that was interrupted. Those that join are admitted after an iteration: nothing is
redone, but else it is the same.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Sequence
from typing import Any

from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.errors import ActionError, SchedulerError
from skippipe.phases import phase_layers
from skippipe.rules import bent_rules
from skippipe.train.connect.attempt import LeftBehindError
from skippipe.train.loop.hang_guard import end_process, ending_if_hung
from skippipe.train.loop.loop import NewcomersError, SlowRankError, TrainingLoop
from skippipe.train.loop.run_state import RunState
from skippipe.train.loop.standing import Standing, common_standing
from skippipe.train.membership.heartbeat import Loss
from skippipe.train.membership.members import Members
from skippipe.train.observe.events import (
    RankStopped,
    RankTraining,
    RunJoined,
    RunRecovered,
    WorkerFailed,
    WorkerInterrupted,
    from_json,
)
from skippipe.train.observe.run_log import Reporting, RunLog
from skippipe.train.prepare.continuing import Belongings, Continued, continue_loop
from skippipe.train.prepare.newcomers import merged_facts
from skippipe.train.prepare.remaining import NotRecoverableError
from skippipe.train.signals import StopRequest

STATE = "state"
"""Key of what a generation goes on with."""
MOST_FRUITLESS = 3
"""Generations in a row that end without a lost rank or another iteration: more would not help."""


def train_to_the_end(
    loop: TrainingLoop,
    members: Members | None,
    reporting: Reporting,
    directory: CheckpointDirectory,
    *,
    recover: bool,
) -> signal.Signals | None:
    """Run a loop, and the loops that follow it when ranks are lost.

    Args:
        loop: of this rank.
        members: all ranks; None: this is the only one.
        reporting: where events go.
        directory: of the run's checkpoints.
        recover: whether those that are left go on, and others may join; otherwise an error names the lost rank.

    Returns:
        None if all iterations are done; else the signal that asked the run to stop.

    Raises:
        NotRecoverableError: the ranks that are left cannot go on.
        SchedulerError: training failed.

    """
    with StopRequest() as request, contextlib.ExitStack() as stack:
        if members is None:
            return _run(loop, request, reporting, None)
        if recover and reporting.log is not None:
            members.admit_newcomers()
        regrouping: Regrouping | None = None
        progress = Progress()
        while True:
            try:
                if regrouping is not None:
                    loop = regrouping.next_loop(stack)
                    regrouping = None
                stopped_by = _run(loop, request, reporting, members)
                members.leave()
            except NewcomersError as error:
                loss = Loss(frozenset(), str(error), "")
                regrouping = Regrouping(loop, members, reporting, directory, loss=loss, newcomers=error.newcomers)
            except SchedulerError as error:
                if isinstance(error, NotRecoverableError | LeftBehindError):
                    raise
                loss = _loss(error, members, recover=recover)
                reporting.report(WorkerInterrupted(rank=members.own, message=str(error), stack=loss.stack))
                progress.check(loss, loop.iteration)
                if regrouping is None:
                    regrouping = Regrouping(loop, members, reporting, directory, loss=loss)
                else:
                    regrouping.interrupted_again(loss)
            else:
                return stopped_by


def _loss(error: SchedulerError, members: Members, *, recover: bool) -> Loss:
    """The loss behind an error, after which the others go on; raises what the run ends with if they do not."""
    if isinstance(error, SlowRankError):
        return members.exclude(error.rank, str(error))
    loss = members.explain(error, recover=recover)
    if loss is None:
        raise error
    if not recover:
        if loss.reason in str(error):
            raise error
        raise ActionError(f"{loss.reason}; {error}") from error.__cause__
    return loss


def _run(
    loop: TrainingLoop, request: StopRequest, reporting: Reporting, members: Members | None
) -> signal.Signals | None:
    """Run a loop, and tell the supervisor of this rank when it begins to train and whether it is stopped."""

    def begun() -> None:
        reporting.report(_training(loop, members))

    def end_hung(reason: str) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            reporting.report(WorkerFailed(status=1, message=reason, cause="TimeoutError"))
        end_process(reason)

    before = loop.iteration
    try:
        if members is None:  # nobody waits for it: it may compile for as long as it likes
            stopped_by = loop.run(request, begun=begun)
        else:
            with ending_if_hung(lambda: loop.position, end_hung):
                stopped_by = loop.run(request, begun=begun, knocking=lambda: members.knocking)
    finally:
        if members is not None and loop.iteration > before:
            members.has_trained = True
    if stopped_by is not None:
        reporting.report(RankStopped(rank=0 if members is None else members.own))
    return stopped_by


def _training(
    loop: TrainingLoop, members: Members | None, lost: Sequence[int] = (), joined: Sequence[int] = ()
) -> RankTraining:
    """What a rank tells its supervisor when it begins to train, or goes on with fewer or with more."""
    if members is None:
        names = [name for names in loop.context.rendezvous.names_by_rank for name in names]
        return RankTraining(rank=0, reporter=0, reporter_names=names, predicted_s=loop.predicted_s)
    reporter = members.current[0]
    return RankTraining(
        rank=members.own, reporter=reporter, reporter_names=members.names([reporter]), predicted_s=loop.predicted_s,
        lost=list(lost), lost_names=members.names(lost), joined_names=members.names(joined),
    )  # fmt: skip


class Progress:
    """Whether going on again and again leads anywhere."""

    def __init__(self) -> None:
        self._iteration, self._fruitless = -1, 0

    def check(self, loss: Loss, iteration: int) -> None:
        """Take note of a loss after so many iterations; raises `NotRecoverableError` if it is one too many."""
        if loss.lost or iteration > self._iteration:
            self._fruitless = 0
        self._iteration, self._fruitless = iteration, self._fruitless + 1
        if self._fruitless > MOST_FRUITLESS:
            raise NotRecoverableError(f"{loss.reason}, {self._fruitless} times in a row")


class Regrouping:
    """From a loop that was interrupted to the next one; begun again where another rank is lost meanwhile."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        loop: TrainingLoop,
        members: Members,
        reporting: Reporting,
        directory: CheckpointDirectory,
        *,
        loss: Loss,
        newcomers: Sequence[int] = (),
    ) -> None:
        """Take the loop that was interrupted, by what, and whom all ranks are to admit."""
        self._loop, self._members, self._reporting, self._directory = loop, members, reporting, directory
        self._loss, self._newcomers = loss, newcomers
        self._only_joins = bool(newcomers)
        self._before = members.current

    def interrupted_again(self, loss: Loss) -> None:
        """Take note of a loss before there was a next loop; the first one is the reason."""
        if self._only_joins:
            self._loss, self._only_joins = dataclasses.replace(loss, noticed_at=self._loss.noticed_at), False

    def next_loop(self, stack: contextlib.ExitStack) -> TrainingLoop:
        """Regroup, agree on what is done, plan anew, and make the next loop; raises as `Members.regroup` does."""
        loop, members = self._loop, self._members
        newcomers, self._newcomers = self._newcomers, ()  # those that are lost before they take part ask again
        loop.take_note_of_saving()
        there = members.regroup(loop.standing.to_json(), loop.patience_s, newcomers)
        rendezvous = members.rendezvous
        common = common_standing([Standing.from_json(text) for text in there.standings.values()])
        loop.catch_up(common)
        loop.give_up_saving()  # else its thread would write to, or remove, what the next loop saves
        for engine in loop.engines:
            engine.release()
        new_rank, joined = there.new_rank(self._before), there.joined(self._before)
        text = rendezvous.broadcast(STATE, lambda: loop.state(common, new_rank).to_json())
        # The attempt begins with what may not have been reported: its first line voids what was.
        begins = [] if common.latest is None else [text for text in (common.latest, common.validation) if text]
        self._reporting.begin(rendezvous.rank, common.iteration - bool(begins))
        continued = continue_loop(
            Belongings.of(loop),
            RunState.from_json(text),
            rendezvous,
            newcomers=merged_facts(members.facts(joined)),
            directory=self._directory,
            report=self._reporting,
            stack=stack,
        )
        lost = there.lost(self._before)
        self._reporting.report(_training(continued.loop, members, lost, joined))
        if self._reporting.log is not None:
            self._report(self._reporting.log, continued, begins, lost, joined)
        return continued.loop

    def _report(
        self, log: RunLog, continued: Continued, begins: Sequence[str], lost: Sequence[int], joined: Sequence[int]
    ) -> None:
        following, members = continued.loop, self._members
        context = following.context
        plans = {engine.phase.after: engine.plan for engine in following.engines}
        files = log.keep_files(context.spec.settings_yaml, plans, following.iteration)
        common: dict[str, Any] = {
            "iteration": following.iteration,
            "processes": context.rendezvous.world,
            "predicted_s": following.predicted_s,
            "planning_s": continued.planning_s,
            "moving_s": continued.moving_s,
            "seconds": time.monotonic() - self._loss.noticed_at,
            "plan_files": files.plans,
        }
        plan, phase = following.engines[0].plan, following.engines[0].phase
        restored: dict[str, Any] = {
            "restored": [each.stage for each in continued.restored],
            "restored_by": [each.source for each in continued.restored],
            "restored_from": [each.iteration for each in continued.restored],
        }
        # A stage that all routes skip is restored where others join.
        of_those_that_join = restored if context.spec.communication.lost_stage == "skip" else {}
        if lost or not self._only_joins:
            log(
                RunRecovered(
                    lost=list(lost), lost_names=members.names(lost), reason=self._loss.reason,
                    skipped=list(phase.allocation.lost_stages),
                    bent_rules=bent_rules(plan.constraints, plan.absent_stages, phase_layers(phase.layers, plan)),
                    **common, **({} if of_those_that_join else restored),
                )
            )  # fmt: skip
        if joined:
            stage_of = {
                context.spec.layout.cluster.names[node]: stage
                for plan in plans.values()
                for stage, nodes in enumerate(plan.stages)
                for node in nodes
            }
            names = members.names(joined)
            stages = [stage_of.get(name) for name in names]
            log(RunJoined(joined=list(joined), joined_names=names, stages=stages, **common, **of_those_that_join))
        for event in map(from_json, begins):
            if event is not None:
                log(event)


def join_run(
    belongings: Belongings,
    members: Members,
    *,
    directory: CheckpointDirectory,
    reporting: Reporting,
    stack: contextlib.ExitStack,
) -> TrainingLoop:
    """Make the loop of a process that joins a run, in the generation that has admitted it.

    Raises:
        SchedulerError: another rank was lost meanwhile, or cannot go on.

    """
    rendezvous = members.rendezvous
    state = RunState.from_json(rendezvous.receive(STATE, 0))
    reporting.begin(rendezvous.rank, state.progress.iteration)
    continued = continue_loop(
        belongings, state, rendezvous, newcomers={}, directory=directory, report=reporting, stack=stack
    )
    reporting.report(_training(continued.loop, members, joined=[members.own]))
    return continued.loop
