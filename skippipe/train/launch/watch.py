"""Watches the workers of this machine through their events: passes on what they tell, and says which are lost."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from skippipe.errors import SIGNALLED, SchedulerError
from skippipe.train.launch.failures import ProcessReport, record_failure, stacks_of
from skippipe.train.launch.worker import (
    LEFT_BEHIND,
    LostWorkerError,
    Worker,
    end_of,
    explaining_error,
    log_tail,
    lost_workers,
    reported_error,
)
from skippipe.train.observe.events import (
    OF_RANKS,
    Event,
    EventReader,
    IterationDone,
    PlanChanged,
    PlanReady,
    RankStopped,
    RankTraining,
    RankWaiting,
    Report,
    RunRecovered,
    WorkerEnded,
    WorkerFailed,
    WorkerInterrupted,
    WorkerStarted,
)
from skippipe.train.resolve.spec import SLOWEST_HEALTHY
from skippipe.train.signals import StopRequest

SETTLE_S = 1.0
"""How long the others may take to report, once one has failed: the first failure explains the rest."""
END_S = 5.0
"""How long ending all workers may take."""


class ForwardedStop(StopRequest):
    """Forwards a request to stop to the first living rank, which passes it on; all ranks end after their iteration.

    Before training has begun there is nothing to wait for, and whoever asks twice does not want to wait. A shell that
    closes its terminal sends SIGHUP twice, and SIGUSR1 is Slurm's warning: neither counts as asking twice.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        super().__init__()
        self._workers = workers
        self._training = False
        self._stopped = False
        self._urged = 0

    @property
    def outcome(self) -> signal.Signals | None:
        """The signal that asked the run to stop, if it has stopped before its end."""
        return (self.signal or signal.SIGTERM) if self._stopped else None  # a worker may have been asked itself

    def observe(self, event: Event) -> None:
        """Take an event of a living worker."""
        self._training |= isinstance(event, RankTraining)
        self._stopped |= isinstance(event, RankStopped)
        if isinstance(event, RankTraining) and event.lost and self.signal is not None:
            self._forward()  # the one that had got it may be lost

    def _note(self, number: int, frame: FrameType | None) -> None:
        first = self._first()
        if first is None:
            return  # all have ended already, one way or the other
        self._urged += number in (signal.SIGINT, signal.SIGTERM)
        super()._note(number, frame)
        if self._urged > 1 or not self._training or first.process is None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(SIGNALLED + number)
        self._forward()

    def _first(self) -> Worker | None:
        """The first worker that may still train, or is about to be started."""
        able = (w for w in self._workers if w.failed_at is None and w.status is None and not w.left_behind)
        return next(able, None)

    def _forward(self) -> None:
        first = self._first()
        if first is not None and first.process is not None and self.signal is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first.process, self.signal)


class Parent(NamedTuple):
    """Of the workers."""

    process: subprocess.Popen[bytes]
    log: Path
    """its output"""


class Watch:
    """Watches the workers of this machine through their events, and how they end."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        parent: Parent,
        workers: Sequence[Worker],
        folder: Path,
        report: Report,
        *,
        recovery_s: float | None,
        observe: Report = lambda _: None,
    ) -> None:
        """Watch workers.

        Args:
            parent: of the workers.
            workers: those on this machine; others may run on other machines.
            folder: of the run.
            report: takes what they tell of the run, and events about processes.
            recovery_s: how long they may take until they go on without one that has died, beside some iterations;
                None: they cannot.
            observe: takes every event of a worker that may still train.

        """
        self._parent, self._folder, self._report, self._observe = parent, folder, report, observe
        self._workers = {worker.rank: worker for worker in workers}
        self._recovery_s = recovery_s
        self._left: dict[int, ProcessReport] = {}
        """of members that the others go on without, for the record"""
        self._told: set[tuple[int, tuple[int, ...], tuple[str, ...]]] = set()
        """ranks that report, those that were lost and nodes that have joined, as told to the user of a machine that
        sees no reports"""
        self._training = False
        """whether workers that are left could go on"""
        self._iteration_s = 0.0
        """of the latest iteration, or as predicted for it if that is longer"""

    def run(self, pipes: Sequence[int]) -> None:
        """Pass on events until all workers have ended; raises for one that has failed."""
        parent, workers = self._parent.process, list(self._workers.values())
        assert parent.stdout is not None
        reader = EventReader()
        with selectors.DefaultSelector() as selector:
            selector.register(parent.stdout, selectors.EVENT_READ, None)
            for pipe, worker in zip(pipes, workers, strict=True):
                selector.register(pipe, selectors.EVENT_READ, worker)
            while selector.get_map():
                deadline = self._deadline()
                wait = None if deadline is None else deadline - time.monotonic()
                if wait is not None and wait <= 0:
                    break
                for key, _ in selector.select(wait):
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                    if key.data is None:
                        self._take_from_parent(reader.feed(data))
                    else:
                        self._take_from_worker(key.data, key.data.reader.feed(data))
        if any(worker.has_failed for worker in workers):
            raise self._failed()
        if any(worker.status is None for worker in workers):
            parent.wait(END_S)
            end = f"{end_of(parent.returncode)}; no worker is left{log_tail(self._parent.log)}"
            lost = f"the parent of all workers {end}"
            raise LostWorkerError(lost, trained=self._training)

    def _deadline(self) -> float | None:
        """When to stop waiting, by the monotonic clock: some time after a failure, if the others do not go on."""
        workers = self._workers.values()
        failed = [worker for worker in workers if worker.has_failed]
        if not failed:
            return None
        first = min(worker.failed_at for worker in failed if worker.failed_at is not None)
        may_recover = (
            self._recovery_s is not None
            and self._training
            and all(worker.failure is None or worker.failure.cause == LEFT_BEHIND for worker in failed)
            and any(worker.is_alive for worker in workers)
        )
        if not may_recover or self._recovery_s is None:
            return first + SETTLE_S
        return first + self._recovery_s + SLOWEST_HEALTHY * self._iteration_s

    def _take_from_parent(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case WorkerFailed():  # before there were any workers
                    raise reported_error(event)
                case WorkerStarted():
                    worker = self._workers[event.rank]
                    worker.process = event.process
                    self._report(replace(event, names=list(worker.names)))
                case WorkerEnded():
                    worker = self._workers[event.rank]
                    worker.status = event.status
                    if worker.status and worker.failed_at is None:
                        worker.failed_at = time.monotonic()
                        if worker.member is None:
                            self._let_go(worker)
                    self._report(replace(event, names=list(worker.names)))

    def _take_from_worker(self, worker: Worker, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case WorkerFailed():
                    worker.failure, worker.failed_at = event, time.monotonic()
                    if event.withdrawn:
                        self._let_go(worker)
                case WorkerInterrupted():
                    worker.interrupted = event
                case RankWaiting():
                    worker.member = None
                    self._report(event)
                case _ if not worker.left_behind:
                    if isinstance(event, RankTraining):
                        worker.member = event.rank
                    self._take_from_living(event)

    def _take_from_living(self, event: Event) -> None:
        """Take an event of a worker that takes part."""
        self._observe(event)
        match event:
            case RankTraining():
                self._training = True
                self._leave_behind(event.lost)
                if event.reporter not in {
                    worker.member for worker in self._workers.values()
                }:  # else what it reports tells more
                    self._tell_of_training(event)
            case IterationDone():
                self._iteration_s = max(event.iteration_s, event.predicted_s or 0.0)
            case RunRecovered():
                self._record_recovery(event)
        if isinstance(event, PlanReady | PlanChanged | RankTraining):
            self._iteration_s = max(self._iteration_s, event.predicted_s or 0.0)
        if not isinstance(event, OF_RANKS):
            self._report(event)

    def _tell_of_training(self, event: RankTraining) -> None:
        """Report once that ranks on this machine train, and once whom the others go on without."""
        now = (event.reporter, tuple(event.lost), tuple(event.joined_names))
        if now not in self._told:
            self._report(event)
        self._told |= {now, (event.reporter, (), ())}

    def _leave_behind(self, lost: Sequence[int]) -> None:
        """Take note that the others go on without some workers; those that live, but hang, are ended."""
        here = [worker for worker in self._workers.values() if worker.member in lost and not worker.left_behind]
        hanging = [worker for worker in here if worker.is_alive]
        stacks = _stacks(hanging)
        for worker in here:
            assert worker.member is not None, "it is one of those that are lost"
            worker.left_behind = True
            self._left[worker.member] = worker.report(stacks.get(worker.rank))
        for worker in hanging:
            assert worker.process is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process, signal.SIGKILL)

    def _let_go(self, worker: Worker) -> None:
        """Take note that a worker has failed before it has trained with the others, who do not wait for it."""
        others = [each for each in self._workers.values() if each.failed_at is None and not each.left_behind]
        if others:  # else this machine has nothing left to do, and its error is raised
            worker.left_behind = True
            record_failure(self._folder, "recovered", [worker.report()], [each.report() for each in others])
            if worker.failure is not None:
                self._report(replace(worker.failure, names=list(worker.names)))

    def _record_recovery(self, event: RunRecovered) -> None:
        """Put on record what is known here of lost workers, which may have run on other machines, and of the others."""
        others = [worker for worker in self._workers.values() if worker.is_alive]
        if event.lost:  # else only connections were
            names = event.lost_names if len(event.lost_names) == len(event.lost) else [""] * len(event.lost)
            elsewhere = {
                rank: ProcessReport(rank, (name,), message=event.reason)
                for rank, name in zip(event.lost, names, strict=True)
            }
            lost = [self._left.get(rank, elsewhere[rank]) for rank in event.lost]
            record_failure(self._folder, "recovered", lost, [worker.report() for worker in others])
        for worker in others:
            worker.interrupted = None

    def _failed(self) -> SchedulerError:
        """The error of workers that have failed, put on record if one is lost; the others are about to be ended."""
        workers = list(self._workers.values())
        error = explaining_error(workers)
        if isinstance(error, LostWorkerError):
            error.trained = self._training
            error.others_may_live = all(w.failure is None for w in workers if w.has_failed)
            stacks = _stacks([worker for worker in workers if worker.is_alive])
            lost = lost_workers(workers)
            reports = {worker.rank: worker.report(stacks.get(worker.rank)) for worker in workers}
            others = [w for w in workers if w not in lost and not w.left_behind]
            record_failure(self._folder, "ended", [reports[w.rank] for w in lost], [reports[w.rank] for w in others])
        elif withdrawn := [w for w in workers if w.has_failed and w.failure is not None and w.failure.withdrawn]:
            record_failure(self._folder, "recovered", [worker.report() for worker in withdrawn], [])
        return error


def _stacks(workers: Sequence[Worker]) -> dict[int, str]:
    """What workers are doing, by rank."""
    started = {worker.rank: (worker.process, worker.log) for worker in workers if worker.process is not None}
    return dict(zip(started, stacks_of(list(started.values())), strict=True))
