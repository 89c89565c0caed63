"""Trains to the end although ranks are lost: those that are left regroup, plan anew and redo the iteration."""

import contextlib
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.errors import ActionError, SchedulerError
from skippipe.train.connect.attempt import LeftBehindError
from skippipe.train.loop.loop import SlowRankError, TrainingLoop
from skippipe.train.loop.standing import Standing, common_standing
from skippipe.train.membership.heartbeat import Loss
from skippipe.train.membership.members import Members
from skippipe.train.observe.events import RankStopped, RankTraining, RunRecovered, WorkerInterrupted, from_json
from skippipe.train.observe.run_log import Reporting, RunLog
from skippipe.train.prepare.continuing import continue_loop
from skippipe.train.prepare.remaining import NotRecoverableError
from skippipe.train.prepare.restoring import Restored
from skippipe.train.signals import StopRequest

MOST_FRUITLESS = 3
"""Generations in a row that end without a lost rank or another iteration: more would not help."""


def train_to_the_end(
    loop: TrainingLoop, members: Members | None, reporting: Reporting, directory: CheckpointDirectory, *, recover: bool
) -> signal.Signals | None:
    """Run a loop, and the loops that follow it when ranks are lost.

    Args:
        loop: of this rank.
        members: all ranks; None: this is the only one.
        reporting: where events go.
        directory: of the run's checkpoints.
        recover: whether those that are left go on; otherwise the error of a loss names the rank that is lost.

    Returns:
        None if all iterations are done; else the signal that asked the run to stop.

    Raises:
        NotRecoverableError: the ranks that are left cannot go on.
        SchedulerError: training failed.

    """
    with StopRequest() as request, contextlib.ExitStack() as stack:
        if members is None:
            return _run(loop, request, reporting, None)
        recovery: Recovery | None = None
        progress = Progress()
        while True:
            try:
                if recovery is not None:
                    loop = recovery.next_loop(stack)
                    recovery = None
                stopped_by = _run(loop, request, reporting, members)
                members.leave()
            except SchedulerError as error:
                if isinstance(error, NotRecoverableError | LeftBehindError):
                    raise
                loss = _loss(error, members, recover=recover)
                reporting.report(WorkerInterrupted(rank=members.own, message=str(error), stack=loss.stack))
                progress.check(loss, loop.iteration)
                recovery = recovery or Recovery(loop, members, reporting, directory, loss)
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

    stopped_by = loop.run(request, begun=begun)
    if stopped_by is not None:
        reporting.report(RankStopped(rank=0 if members is None else members.own))
    return stopped_by


def _training(loop: TrainingLoop, members: Members | None, lost: Sequence[int] = ()) -> RankTraining:
    """What a rank tells its supervisor when it begins to train, or goes on without lost ones."""
    if members is None:
        names = [name for names in loop.context.rendezvous.names_by_rank for name in names]
        return RankTraining(rank=0, reporter=0, reporter_names=names, predicted_s=loop.predicted_s)
    reporter = members.current[0]
    return RankTraining(
        rank=members.own, reporter=reporter, reporter_names=members.names([reporter]), predicted_s=loop.predicted_s,
        lost=list(lost), lost_names=members.names(lost),
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


class Recovered(NamedTuple):
    """What a recovery was."""

    lost: Sequence[int]
    """members"""
    restored: Restored
    planning_s: float


class Recovery:
    """From a loss to the loop of those that are left; begun again where another rank is lost meanwhile."""

    def __init__(
        self,
        loop: TrainingLoop,
        members: Members,
        reporting: Reporting,
        directory: CheckpointDirectory,
        loss: Loss,
    ) -> None:
        """Take the loop that was interrupted, and by what."""
        self._loop, self._members, self._reporting, self._directory = loop, members, reporting, directory
        self._loss = loss
        self._before = members.current

    def next_loop(self, stack: contextlib.ExitStack) -> TrainingLoop:
        """Regroup, agree on what is done, plan anew, and make the next loop; raises as `Members.regroup` does."""
        loop, members = self._loop, self._members
        survivors = members.regroup(loop.standing.to_json(), loop.patience_s)
        rendezvous = members.rendezvous
        standings = [Standing.from_json(survivors.standings[rank]) for rank in range(rendezvous.world)]
        common = common_standing(standings)
        loop.catch_up(common)
        loop.give_up_saving()  # else its thread would write to, or remove, what the next loop saves
        # The attempt begins with what may not have been reported: its first line voids what was.
        begins = [] if common.latest is None else [text for text in (common.latest, common.validation) if text]
        self._reporting.begin(rendezvous.rank, common.iteration - bool(begins))
        begin = time.monotonic()
        following, restored = continue_loop(
            loop,
            rendezvous,
            new_rank=survivors.new_rank(self._before),
            common=common,
            directory=self._directory,
            report=self._reporting,
            stack=stack,
        )
        planning_s = time.monotonic() - begin
        lost = survivors.lost(self._before)
        self._reporting.report(_training(following, members, lost))
        if self._reporting.log is not None:
            self._report(self._reporting.log, following, begins, Recovered(lost, restored, planning_s))
        return following

    def _report(self, log: RunLog, following: TrainingLoop, begins: Sequence[str], recovered: Recovered) -> None:
        engines, context = following.engines, following.context
        plans = {engine.phase.after: engine.plan for engine in engines}
        files = log.keep_files(context.spec.settings_yaml, plans, following.iteration)
        log(
            RunRecovered(
                iteration=following.iteration,
                lost=list(recovered.lost),
                lost_names=self._members.names(recovered.lost),
                reason=self._loss.reason,
                restored=list(recovered.restored.stages),
                restored_from=recovered.restored.iteration,
                processes=context.rendezvous.world,
                predicted_s=following.predicted_s,
                planning_s=recovered.planning_s,
                seconds=time.monotonic() - self._loss.noticed_at,
                plan_files=files.plans,
            )
        )
        for event in map(from_json, begins):
            if event is not None:
                log(event)
