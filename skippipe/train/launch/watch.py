"""Watches the workers of this machine through their events: passes on what they tell, and says which are lost."""

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from skippipe.errors import SIGNALLED, SchedulerError
from skippipe.train.launch.failures import ProcessReport, record_failure, stacks_of
from skippipe.train.launch.restarts import Restarts
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
from skippipe.train.launch.workers import Order
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
    RunJoined,
    RunRecovered,
    WorkerEnded,
    WorkerFailed,
    WorkerInterrupted,
    WorkerRestarting,
    WorkerStarted,
    WorkerStaysLost,
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

    def __init__(self, workers: Mapping[int, Worker]) -> None:
        """Take the workers by rank; others may take their places."""
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
        """The first worker that may still train, or is about to be started; best one that the others know."""
        able = [w for w in self._workers.values() if w.failed_at is None and w.status is None and not w.left_behind]
        return min(able, key=lambda worker: worker.member is None, default=None)

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
    orders: socket.socket
    """takes orders"""

    def start(self, rank: int, *, again: bool = False) -> int:
        """Ask for the worker of a rank, `again` in place of one that was lost; gives the pipe with its events."""
        reading, writing = os.pipe()
        with contextlib.suppress(ConnectionError):  # the parent is gone, as its exit status will show
            socket.send_fds(self.orders, [pickle.dumps(Order(rank, again))], [writing])
        os.close(writing)
        return reading


class Watch:
    """Watches the workers of this machine through their events, and how they end."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        parent: Parent,
        workers: dict[int, Worker],
        folder: Path,
        report: Report,
        *,
        recovery_s: float | None,
        start_retries: int | None = None,
        observe: Report = lambda _: None,
    ) -> None:
        """Watch workers.

        Args:
            parent: of the workers.
            workers: those on this machine by rank; others may run on other machines. Where one is started again, a new
                entry takes the place of the old one.
            folder: of the run.
            report: takes what they tell of the run, and events about processes.
            recovery_s: how long they may take until they go on without one that has died, beside some iterations;
                None: they cannot.
            start_retries: how often in a row one that was lost is started again without having trained; None: never.
            observe: takes every event of a worker that may still train.

        """
        self._parent, self._folder, self._report, self._observe = parent, folder, report, observe
        self._workers, self._recovery_s = workers, recovery_s
        self._restarts = None if start_retries is None else Restarts(start_retries)
        self._start_at: dict[int, float] = {}
        """when workers are to be started again, by rank (monotonic seconds)"""
        self._joined_after: dict[int, int] = {}
        """the iteration after which members have joined that may not have trained yet"""
        self._trained: set[int] = set()
        """members that have joined and trained"""
        self._on_record: set[str] = set()
        """nodes of workers that were lost before it was known here that the others had admitted them"""
        self._left: dict[int, ProcessReport] = {}
        """of members that the others go on without, for the record"""
        self._told: set[tuple[int, tuple[int, ...], tuple[str, ...]]] = set()
        """ranks that report, those that were lost and nodes that have joined, as told to the user of a machine that
        sees no reports"""
        self._training = False
        """whether workers that are left could go on"""
        self._iteration_s = 0.0
        """of the latest iteration, or as predicted for it if that is longer"""

    def run(self) -> None:
        """Start all workers, and pass on events until all have ended; raises for one that has failed."""
        parent = self._parent.process
        assert parent.stdout is not None
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            selector.register(parent.stdout, selectors.EVENT_READ, EventReader())
            stack.callback(_close_pipes, selector)
            for worker in self._workers.values():
                selector.register(self._parent.start(worker.rank), selectors.EVENT_READ, worker)
            while selector.get_map():
                now = time.monotonic()
                for worker in self._that_start_again(now):
                    selector.register(self._parent.start(worker.rank, again=True), selectors.EVENT_READ, worker)
                deadline = self._deadline()
                if deadline is not None and deadline <= now:
                    break
                moments = [*self._start_at.values(), *([] if deadline is None else [deadline])]
                for key, _ in selector.select(min(moments) - now if moments else None):
                    if not self._read(key):
                        selector.unregister(key.fileobj)
                        _close_if_of_worker(key)
        workers = self._workers.values()
        if any(worker.has_failed for worker in workers):
            raise self._failed()
        if any(worker.status is None and not (worker.again and worker.process is None) for worker in workers):
            parent.wait(END_S)
            end = f"{end_of(parent.returncode)}; no worker is left{log_tail(self._parent.log)}"
            lost = f"the parent of all workers {end}"
            raise LostWorkerError(lost, trained=self._training)

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Take the events that have come over a pipe; false: it has ended."""
        data, source = os.read(key.fd, 65536), key.data
        if isinstance(source, Worker):
            self._take_from_worker(source, source.reader.feed(data))
        else:
            self._take_from_parent(source.feed(data))
        return bool(data)

    def _that_start_again(self, now: float) -> list[Worker]:
        """Those whose time has come, in place of those that were lost."""
        due = [rank for rank, at in self._start_at.items() if at <= now]
        for rank in due:
            del self._start_at[rank]
            before = self._workers[rank]
            self._workers[rank] = Worker(rank, before.names, before.log, again=True)
        return [self._workers[rank] for rank in due]

    def _consider(self, worker: Worker) -> None:
        """Have one that has ended, and without which the others go on, started again, if that makes sense."""
        others_train = any(each.takes_part for each in self._workers.values())
        if self._restarts is None or worker.status is None or not worker.left_behind or not others_train:
            return
        pause_s = self._restarts.pause_s(worker.rank, trained=not worker.again or worker.member in self._trained)
        names = list(worker.names)
        if pause_s is None:
            self._report(WorkerStaysLost(rank=worker.rank, names=names, retries=self._restarts.retries))
        else:
            self._start_at[worker.rank] = time.monotonic() + pause_s
            self._report(WorkerRestarting(rank=worker.rank, names=names, pause_s=pause_s))

    def _end_those_that_wait(self) -> None:
        """End those that were started again once nobody is left whom they could join."""
        living = [worker for worker in self._workers.values() if worker.is_alive]
        if not any(worker.takes_part for worker in living):
            for worker in living:
                if worker.again:
                    worker.left_behind = True
                    _kill(worker)

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
                case WorkerFailed():  # before there were any workers, or the store is lost
                    error = reported_error(event)
                    if isinstance(error, LostWorkerError):
                        error.trained = self._training
                    raise error
                case WorkerStarted():
                    worker = self._workers[event.rank]
                    worker.process = event.process
                    self._report(replace(event, names=list(worker.names)))
                    self._end_those_that_wait()
                case WorkerEnded():
                    worker = self._workers[event.rank]
                    worker.status = event.status
                    if worker.status and worker.failed_at is None:
                        worker.failed_at = time.monotonic()
                        if worker.member is None and not worker.left_behind:
                            self._let_go(worker)
                    self._report(replace(event, names=list(worker.names)))
                    self._end_those_that_wait()
                    self._consider(worker)

    def _take_from_worker(self, worker: Worker, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case WorkerFailed():
                    worker.failure, worker.failed_at = event, time.monotonic()
                    if event.withdrawn or (worker.again and worker.member is None):
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
                self._trained |= {who for who, after in self._joined_after.items() if after < event.iteration}
            case RunJoined():
                self._joined_after |= dict.fromkeys(event.joined, event.iteration)
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
            self._joined_after.pop(worker.member, None)
            self._left[worker.member] = worker.report(stacks.get(worker.rank))
        for worker in hanging:
            _kill(worker)
        for worker in here:
            self._consider(worker)

    def _let_go(self, worker: Worker) -> None:
        """Take note that a worker has failed before it has trained with the others, who do not wait for it."""
        others = [each for each in self._workers.values() if each.failed_at is None and not each.left_behind]
        if others:  # else this machine has nothing left to do, and its error is raised
            worker.left_behind = True
            self._on_record |= set(worker.names)
            record_failure(self._folder, "recovered", [worker.report()], [each.report() for each in others])
            if worker.failure is not None:
                self._report(replace(worker.failure, names=list(worker.names)))

    def _record_recovery(self, event: RunRecovered) -> None:
        """Put on record what is known here of lost workers, which may have run on other machines, and of the others."""
        others = [worker for worker in self._workers.values() if worker.takes_part]
        if event.lost:  # else only connections were
            names = event.lost_names if len(event.lost_names) == len(event.lost) else [""] * len(event.lost)
            lost = [
                self._left.get(rank, ProcessReport(rank, (name,), message=event.reason))
                for rank, name in zip(event.lost, names, strict=True)
                if rank in self._left or name not in self._on_record
            ]
            self._on_record -= set(names)
            if lost:
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


def _kill(worker: Worker) -> None:
    assert worker.process is not None, "it is alive"
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.process, signal.SIGKILL)


def _close_pipes(selector: selectors.BaseSelector) -> None:
    """Close the pipes of workers that have not ended."""
    for key in selector.get_map().values():
        _close_if_of_worker(key)


def _close_if_of_worker(key: selectors.SelectorKey) -> None:
    if isinstance(key.data, Worker):
        os.close(key.fd)


def _stacks(workers: Sequence[Worker]) -> dict[int, str]:
    """What workers are doing, by rank."""
    started = {worker.rank: (worker.process, worker.log) for worker in workers if worker.process is not None}
    return dict(zip(started, stacks_of(list(started.values())), strict=True))
