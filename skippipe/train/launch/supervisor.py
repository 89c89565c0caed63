"""Supervises the processes of a local run: has them started, receives their events, lets none outlive the others.

A worker that fails reports it before it ends; one that is killed is known by its exit status. Where the others can go
on without one that is killed or hangs, they do, and say so; otherwise they are ended, and the error names the node of
the worker that explains the rest. Every loss is recorded (`failures.py`).
"""

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from skippipe.data.prepare import corpus_folder
from skippipe.errors import SIGNALLED, UNUSABLE_INPUT, InputError, SchedulerError, from_origin, unexpected
from skippipe.files import open_new
from skippipe.ranks import node_title
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.launch.failures import ProcessReport, record_failure, stacks_of
from skippipe.train.launch.workers import Assignment, Work
from skippipe.train.observe.events import (
    Event,
    EventReader,
    IterationDone,
    PlanChanged,
    PlanReady,
    Report,
    RunRecovered,
    RunStopped,
    ValidationDone,
    WorkerEnded,
    WorkerFailed,
    WorkerInterrupted,
    WorkersStarting,
    WorkerStarted,
)
from skippipe.train.resolve.spec import REPLANNING_S, SLOWEST_HEALTHY, RunSpec
from skippipe.train.signals import StopRequest

HOST = "127.0.0.1"
SETTLE_S = 1.0
"""How long the others may take to report, once one has failed: the first failure explains the rest."""
RECOVERY_S = 60.0
"""How long workers may take to go on without one that has died, beside heartbeats, plans and waiting for a message."""
END_S = 5.0
"""How long ending all workers may take."""
LOG_TAIL_BYTES = 2000


class WorkerError(SchedulerError, RuntimeError):
    """A worker of a local training failed or died; the message names its node."""


class LostWorkerError(WorkerError):
    """A worker died, hangs or cannot be reached: nothing that it would do again if it were started again."""


@dataclass
class Worker:
    """State of one worker."""

    rank: int
    names: tuple[str, ...]
    """nodes that it serves"""
    log: Path
    reader: EventReader = field(default_factory=EventReader)
    process: int | None = None
    failure: WorkerFailed | None = None
    """what it reported"""
    status: int | None = None
    """exit status, negative for a signal; None: it has not ended"""
    failed_at: float | None = None
    """when it reported a failure or ended with one (monotonic seconds)"""
    left_behind: bool = False
    """whether the others go on without it"""
    interrupted: WorkerInterrupted | None = None
    """what it was doing when it learnt of the latest loss"""

    @property
    def is_alive(self) -> bool:
        """Whether it may still take part."""
        return self.process is not None and self.status is None and not self.left_behind

    @property
    def has_failed(self) -> bool:
        """Whether it failed, and the others do not go on without it."""
        return self.failed_at is not None and not self.left_behind

    def report(self, stack: str | None = None) -> ProcessReport:
        """What is known of it, for the record of failures."""
        told = self.interrupted
        message = told.message if told is not None else None if self.failure is None else self.failure.message
        stack = stack or (None if told is None else told.stack)
        return ProcessReport(self.rank, self.names, self.process, self.status, message, stack)

    @property
    def title(self) -> str:
        """What messages call it."""
        return node_title(self.names, self.rank)


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

    def watching(self, report: Report) -> Report:
        """The same report, its events watched."""

        def watched(event: Event) -> None:
            self._training |= isinstance(event, ValidationDone)
            self._stopped |= isinstance(event, RunStopped)
            if isinstance(event, RunRecovered) and self.signal is not None:
                self._forward()  # the one that had got it may be lost
            report(event)

        return watched

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
        if first is not None and first.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first.process, signal.SIGTERM)


def train_locally(
    spec: RunSpec, names_by_rank: Sequence[tuple[str, ...]], folder: Path, report: Report, verified: str | None = None
) -> signal.Signals | None:
    """Train with several processes of this machine.

    Args:
        spec: the run.
        names_by_rank: names of the nodes that each process serves.
        folder: of the run; the output of each worker goes to `log/RANK.txt` in it.
        report: takes the events of the rank that reports, and those about processes.
        verified: hash of the manifest of a checkpoint in the folder whose files have just been verified.

    Returns:
        None if all iterations are done; else the signal that asked the run to stop.

    Raises:
        InputError: the run cannot be prepared, or the port is in use.
        LostWorkerError: a worker died or hangs, and the others cannot go on without it.
        WorkerError: a worker failed.

    """

    def prepare(stack: contextlib.ExitStack) -> dict[str, Any]:
        # Here, once for all workers, while their parent imports torch.
        return {"folder": folder, "text": stack.enter_context(corpus_folder(spec.data.text, folder))}

    work = Work("skippipe.train.rank:train_rank", spec, spec.model.settings)
    communication = spec.communication
    # Noticing a loss and connecting take two heartbeats each.
    recovery_s = RECOVERY_S + 4 * communication.heartbeat_s + communication.timeout_s
    recovery_s += REPLANNING_S * len(spec.phases)
    return run_locally(
        work,
        spec.launch.port,
        names_by_rank,
        folder,
        report,
        prepare=prepare,
        verified=verified,
        recovery_s=recovery_s if communication.recover else None,
    )


def run_locally(  # noqa: PLR0913 - by keyword
    work: Work,
    port: int,
    names_by_rank: Sequence[tuple[str, ...]],
    folder: Path,
    report: Report,
    *,
    prepare: Callable[[contextlib.ExitStack], dict[str, Any]] = lambda _: {},
    verified: str | None = None,
    recovery_s: float | None = None,
) -> signal.Signals | None:
    """Have several processes of this machine do their work as ranks of one job; arguments as of `train_locally`.

    `prepare` gives what all of them need beside their description, by name; what it enters lasts as long as the job.
    `recovery_s` is how long workers that train may take until they go on without one that has died, beside some
    iterations; None: they cannot.
    """
    (folder / "log").mkdir(exist_ok=True)
    workers = [Worker(rank, names, folder / "log" / f"{rank}.txt") for rank, names in enumerate(names_by_rank)]
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listening(port))
        pipes = _event_pipes(len(workers), stack)
        parent = stack.enter_context(_parent([listener.fileno(), *pipes.writing], folder))
        ranks = _rank_specs(names_by_rank, listener.getsockname()[1], verified)
        # From here on only the workers hold these open.
        for descriptor in pipes.writing:
            os.close(descriptor)
        listening = listener.detach()  # its number is the same in the parent
        os.close(listening)
        report(WorkersStarting(processes=len(workers)))
        _send(parent, work)
        try:
            arguments = prepare(stack)
        except BaseException:
            parent.kill()  # there are no workers yet
            raise
        _send(parent, Assignment(folder, arguments, ranks, pipes.writing, listening))
        stop = stack.enter_context(ForwardedStop(workers))
        try:
            Watch(parent, workers, folder, stop.watching(report), recovery_s).run(pipes.reading)
        except LostWorkerError as error:
            if stop.signal is None:
                raise
            raise WorkerError(str(error)) from None  # a run that was asked to stop is not started again
        return stop.outcome


class EventPipes(NamedTuple):
    """File descriptors of the pipes for the workers' events, by rank."""

    reading: list[int]
    writing: list[int]


def _event_pipes(count: int, stack: contextlib.ExitStack) -> EventPipes:
    """Open a pipe for each worker; the reading ends are closed with the stack."""
    pipes = [os.pipe() for _ in range(count)]
    for reading, _ in pipes:
        stack.callback(os.close, reading)
    return EventPipes([reading for reading, _ in pipes], [writing for _, writing in pipes])


def _rank_specs(names_by_rank: Sequence[tuple[str, ...]], port: int, verified: str | None) -> list[RankSpec]:
    """Describe every rank; their parent serves the rendezvous."""
    return [
        RankSpec(
            rank, len(names_by_rank), names, HOST, port,
            verified=verified, supervised=True, agent_store=True, local_rank=rank,
        )
        for rank, names in enumerate(names_by_rank)
    ]  # fmt: skip


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """Hold the port of the rendezvous, so that no other process can take it between choosing and using it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise unexpected("runtime.port", f"{port}: {error.strerror}", "a free port") from None
        listener.listen()
        yield listener


@contextlib.contextmanager
def _parent(inherited: Sequence[int], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the parent of the workers; at the end all of them are gone."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
        "OPENBLAS_NUM_THREADS": "1",  # else importing NumPy starts threads, and the workers are forked
    }
    with os.fdopen(open_new(folder / "log" / "parent.txt"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "skippipe.train.launch.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=inherited,
            env=environment,
            start_new_session=True,  # the supervisor forwards Ctrl-C
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # it then ends the workers
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its workers then end by themselves
            process.wait()
        process.stdout.close()


def _send(parent: subprocess.Popen[bytes], what: Any) -> None:
    assert parent.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone, as its exit status will show
        parent.stdin.write(pickle.dumps(what))
        parent.stdin.flush()


class Watch:
    """Watches the workers of a job through their events, and how they end."""

    def __init__(
        self,
        parent: subprocess.Popen[bytes],
        workers: Sequence[Worker],
        folder: Path,
        report: Report,
        recovery_s: float | None,
    ) -> None:
        self._parent, self._workers, self._folder, self._report = parent, workers, folder, report
        self._recovery_s = recovery_s
        self._training = False
        """whether workers that are left could go on"""
        self._iteration_s = 0.0
        """of the latest iteration, or as predicted for it if that is longer"""

    def run(self, pipes: Sequence[int]) -> None:
        """Pass on events until all workers have ended; raises for one that has failed."""
        parent, workers = self._parent, self._workers
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
            log = workers[0].log.with_name("parent.txt")
            raise LostWorkerError(
                f"the parent of all workers {_end(parent.returncode)}; no worker is left{_log_tail(log)}"
            )

    def _deadline(self) -> float | None:
        """When to stop waiting, by the monotonic clock: some time after a failure, if the others do not go on."""
        failed = [worker for worker in self._workers if worker.has_failed]
        if not failed:
            return None
        first = min(worker.failed_at for worker in failed if worker.failed_at is not None)
        may_recover = (
            self._recovery_s is not None
            and self._training
            and all(worker.failure is None or worker.failure.cause == _LEFT_BEHIND for worker in failed)
            and any(worker.is_alive for worker in self._workers)
        )
        if not may_recover or self._recovery_s is None:
            return first + SETTLE_S
        return first + self._recovery_s + SLOWEST_HEALTHY * self._iteration_s

    def _take_from_parent(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case WorkerFailed():  # before there were any workers
                    raise _failure(event)
                case WorkerStarted():
                    worker = self._workers[event.rank]
                    worker.process = event.process
                    self._report(replace(event, names=list(worker.names)))
                case WorkerEnded():
                    worker = self._workers[event.rank]
                    worker.status = event.status
                    if worker.status and worker.failed_at is None:
                        worker.failed_at = time.monotonic()
                    self._report(replace(event, names=list(worker.names)))

    def _take_from_worker(self, worker: Worker, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case WorkerFailed():
                    worker.failure, worker.failed_at = event, time.monotonic()
                case WorkerInterrupted():
                    worker.interrupted = event
                case _ if not worker.left_behind:
                    self._training |= isinstance(event, ValidationDone)
                    if isinstance(event, IterationDone):
                        self._iteration_s = max(event.iteration_s, event.predicted_s or 0.0)
                    elif isinstance(event, PlanReady | PlanChanged | RunRecovered):
                        self._iteration_s = max(self._iteration_s, event.predicted_s or 0.0)
                    if isinstance(event, RunRecovered):
                        self._leave_behind([self._workers[rank] for rank in event.lost])
                    self._report(event)

    def _leave_behind(self, lost: Sequence[Worker]) -> None:
        """Take note that the others go on without some workers; those that live, but hang, are ended."""
        hanging = [worker for worker in lost if worker.is_alive]
        stacks = dict(zip([w.rank for w in hanging], _stacks(hanging), strict=True))
        for worker in lost:
            worker.left_behind = True
        for worker in hanging:
            assert worker.process is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process, signal.SIGKILL)
        others = [worker for worker in self._workers if worker.is_alive]
        if lost:  # else only connections were
            record_failure(
                self._folder,
                "recovered",
                [worker.report(stacks.get(worker.rank)) for worker in lost],
                [worker.report() for worker in others],
            )
        for worker in others:
            worker.interrupted = None

    def _failed(self) -> SchedulerError:
        """The error of workers that have failed, put on record if one is lost; the others are about to be ended."""
        error = _error(self._workers)
        if isinstance(error, LostWorkerError):
            living = [worker for worker in self._workers if worker.is_alive]
            stacks = dict(zip([w.rank for w in living], _stacks(living), strict=True))
            lost = _lost_workers(self._workers)
            reports = {worker.rank: worker.report(stacks.get(worker.rank)) for worker in self._workers}
            others = [w for w in self._workers if w not in lost and not w.left_behind]
            record_failure(self._folder, "ended", [reports[w.rank] for w in lost], [reports[w.rank] for w in others])
        return error


def _stacks(workers: Sequence[Worker]) -> list[str]:
    return stacks_of([(worker.process, worker.log) for worker in workers if worker.process is not None])


def _lost_workers(workers: Sequence[Worker]) -> list[Worker]:
    """The workers that a failure is about: those that were killed; if there are none, those that report nothing."""
    killed = [worker for worker in workers if worker.has_failed and worker.failure is None]
    silent = [worker for worker in workers if worker.is_alive and worker.failed_at is None]
    return killed or silent or [min((w for w in workers if w.has_failed), key=_precedence)]


def _error(workers: Sequence[Worker]) -> SchedulerError:
    """Choose the failure that explains the others.

    A process that was killed reports nothing, its peers only that it is gone; input that cannot be used comes before
    what follows from it; else the first failure counts, but for connections lost to a worker that failed. Where
    messages time out, a worker that reports nothing at all is the one that hangs.
    """
    first = min((worker for worker in workers if worker.has_failed), key=_precedence)
    if first.failure is None:
        process = f"process {first.process} " if first.process else ""
        ended = f"{process}{_end(first.status)}; the others were ended{_log_tail(first.log)}"
        return LostWorkerError(f"{first.title}: {ended}")
    error = from_origin(_failure(first.failure), first.title)
    silent = [worker.title for worker in workers if worker.failed_at is None and worker.is_alive]
    if silent and first.failure.input is None and first.failure.cause in _LOST:
        return LostWorkerError(f"{', '.join(silent)} reported nothing while others failed; {error}")
    return error


def _failure(reported: WorkerFailed) -> InputError | WorkerError:
    """The error that a worker has reported."""
    if reported.input is not None:
        return InputError(**reported.input)
    return (LostWorkerError if reported.cause in _LOST else WorkerError)(reported.message)


_LEFT_BEHIND = "LeftBehindError"
"""Cause of the failure of a worker without which the others go on, as they are about to say."""
_LOST = ("TimeoutError", "ConnectionError", "NotRecoverableError", _LEFT_BEHIND)
"""Causes of failures that lie with another worker."""


def _precedence(worker: Worker) -> tuple[int, float]:
    """Order failures: what explains the others comes first."""
    assert worker.failed_at is not None
    if worker.failure is None:
        return 0, worker.failed_at
    if worker.failure.status == UNUSABLE_INPUT:
        return 1, worker.failed_at
    return 3 if worker.failure.cause == "ConnectionError" else 2, worker.failed_at


def _end(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return (
            "was killed by signal 9 (SIGKILL), likely by the kernel because memory ran out (dmesg shows it, "
            "--dry-run estimates what each process needs)"
        )
    if status is not None and status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with status {status}"


def _log_tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
    return f"; the end of {log}:\n{text}" if text else ""
