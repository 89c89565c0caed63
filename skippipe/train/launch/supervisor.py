"""Supervises the processes of a local run: has them started, receives their events, lets none outlive the others.

A worker that fails reports it before it ends; one that is killed is known by its exit status. Either way the others are
ended, and the error names the node of the worker that explains the rest.
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
from skippipe.train.launch.workers import Assignment, Work
from skippipe.train.observe.events import (
    Event,
    EventReader,
    Report,
    RunStopped,
    ValidationDone,
    WorkerEnded,
    WorkerFailed,
    WorkersStarting,
    WorkerStarted,
)
from skippipe.train.resolve.spec import RunSpec
from skippipe.train.signals import StopRequest

HOST = "127.0.0.1"
SETTLE_S = 1.0
"""How long the others may take to report, once one has failed: the first failure explains the rest."""
END_S = 5.0
"""How long ending all workers may take."""
LOG_TAIL_BYTES = 2000


class WorkerError(SchedulerError, RuntimeError):
    """A worker of a local training failed or died; the message names its node."""


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

    @property
    def title(self) -> str:
        """What messages call it."""
        return node_title(self.names, self.rank)


class ForwardedStop(StopRequest):
    """Forwards a request to stop to rank 0, which passes it on; all ranks end after their iteration.

    Before training has begun there is nothing to wait for, and whoever asks twice does not want to wait. A shell that
    closes its terminal sends SIGHUP twice, and SIGUSR1 is Slurm's warning: neither counts as asking twice.
    """

    def __init__(self, first: Worker) -> None:
        super().__init__()
        self._first = first
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
            report(event)

        return watched

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._first.failed_at is not None or self._first.status is not None:
            return  # it has ended already, one way or the other
        self._urged += number in (signal.SIGINT, signal.SIGTERM)
        super()._note(number, frame)
        if self._urged > 1 or not self._training or self._first.process is None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(SIGNALLED + number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._first.process, signal.SIGTERM)


def train_locally(
    spec: RunSpec, names_by_rank: Sequence[tuple[str, ...]], folder: Path, report: Report, verified: str | None = None
) -> signal.Signals | None:
    """Train with several processes of this machine.

    Args:
        spec: the run.
        names_by_rank: names of the nodes that each process serves.
        folder: of the run; the output of each worker goes to `log/RANK.txt` in it.
        report: takes the events of rank 0, and those about processes.
        verified: hash of the manifest of a checkpoint in the folder whose files have just been verified.

    Returns:
        None if all iterations are done; else the signal that asked the run to stop.

    Raises:
        InputError: the run cannot be prepared, or the port is in use.
        WorkerError: a worker failed or died.

    """

    def prepare(stack: contextlib.ExitStack) -> dict[str, Any]:
        # Here, once for all workers, while their parent imports torch.
        return {"folder": folder, "text": stack.enter_context(corpus_folder(spec.data.text, folder))}

    work = Work("skippipe.train.rank:train_rank", spec, spec.model.settings)
    return run_locally(work, spec.launch.port, names_by_rank, folder, report, prepare=prepare, verified=verified)


def run_locally(  # noqa: PLR0913 - by keyword
    work: Work,
    port: int,
    names_by_rank: Sequence[tuple[str, ...]],
    folder: Path,
    report: Report,
    *,
    prepare: Callable[[contextlib.ExitStack], dict[str, Any]] = lambda _: {},
    verified: str | None = None,
) -> signal.Signals | None:
    """Have several processes of this machine do their work as ranks of one job; arguments as of `train_locally`.

    `prepare` gives what all of them need beside their description, by name; what it enters lasts as long as the job.
    """
    (folder / "log").mkdir(exist_ok=True)
    workers = [Worker(rank, names, folder / "log" / f"{rank}.txt") for rank, names in enumerate(names_by_rank)]
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listening(port))
        pipes = _event_pipes(len(workers), stack)
        parent = stack.enter_context(_parent([listener.fileno(), *pipes.writing], folder))
        ranks = _rank_specs(names_by_rank, listener, verified)
        # From here on only the workers hold these open.
        for descriptor in pipes.writing:
            os.close(descriptor)
        listener.close()
        report(WorkersStarting(processes=len(workers)))
        _send(parent, work)
        try:
            arguments = prepare(stack)
        except BaseException:
            parent.kill()  # there are no workers yet
            raise
        _send(parent, Assignment(folder, arguments, ranks, pipes.writing))
        stop = stack.enter_context(ForwardedStop(workers[0]))
        _watch(parent, workers, pipes.reading, stop.watching(report))
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


def _rank_specs(
    names_by_rank: Sequence[tuple[str, ...]], listener: socket.socket, verified: str | None
) -> list[RankSpec]:
    """Describe every rank; the first one serves the rendezvous on the listening socket, which it inherits."""
    descriptor, port = listener.fileno(), listener.getsockname()[1]
    return [
        RankSpec(
            rank, len(names_by_rank), names, HOST, port,
            listener=None if rank else descriptor, verified=verified, supervised=True, local_rank=rank,
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


def _watch(parent: subprocess.Popen[bytes], workers: Sequence[Worker], pipes: Sequence[int], report: Report) -> None:
    """Pass on events until all workers have ended; raises for one that has failed."""
    assert parent.stdout is not None
    reader = EventReader()
    with selectors.DefaultSelector() as selector:
        selector.register(parent.stdout, selectors.EVENT_READ, None)
        for pipe, worker in zip(pipes, workers, strict=True):
            selector.register(pipe, selectors.EVENT_READ, worker)
        deadline: float | None = None
        while selector.get_map():
            wait = None if deadline is None else deadline - time.monotonic()
            if wait is not None and wait <= 0:
                break
            for key, _ in selector.select(wait):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                if key.data is None:
                    _take_from_parent(reader.feed(data), workers, report)
                else:
                    _take_from_worker(key.data, key.data.reader.feed(data), report)
            if deadline is None and any(worker.failed_at is not None for worker in workers):
                deadline = time.monotonic() + SETTLE_S
    if any(worker.failed_at is not None for worker in workers):
        raise _error(workers)
    if any(worker.status is None for worker in workers):
        parent.wait(END_S)
        log = workers[0].log.with_name("parent.txt")
        raise WorkerError(f"the parent of all workers {_end(parent.returncode)}; no worker is left{_log_tail(log)}")


def _take_from_parent(events: Sequence[Event], workers: Sequence[Worker], report: Report) -> None:
    for event in events:
        match event:
            case WorkerFailed():  # before there were any workers
                raise _failure(event)
            case WorkerStarted():
                worker = workers[event.rank]
                worker.process = event.process
                report(replace(event, names=list(worker.names)))
            case WorkerEnded():
                worker = workers[event.rank]
                worker.status = event.status
                if worker.status and worker.failed_at is None:
                    worker.failed_at = time.monotonic()
                report(replace(event, names=list(worker.names)))


def _take_from_worker(worker: Worker, events: Sequence[Event], report: Report) -> None:
    for event in events:
        if isinstance(event, WorkerFailed):
            worker.failure, worker.failed_at = event, time.monotonic()
        elif worker.rank == 0:
            report(event)


def _error(workers: Sequence[Worker]) -> SchedulerError:
    """Choose the failure that explains the others.

    A process that was killed reports nothing, its peers only that it is gone; input that cannot be used comes before
    what follows from it; else the first failure counts, but for connections lost to a worker that failed. Where
    messages time out, a worker that reports nothing at all is the one that hangs.
    """
    first = min((worker for worker in workers if worker.failed_at is not None), key=_precedence)
    if first.failure is None:
        process = f"process {first.process} " if first.process else ""
        return WorkerError(f"{first.title}: {process}{_end(first.status)}; the others were ended{_log_tail(first.log)}")
    error = from_origin(_failure(first.failure), first.title)
    silent = [worker.title for worker in workers if worker.failed_at is None and worker.status is None]
    if silent and first.failure.input is None and first.failure.cause in _LOST:
        return WorkerError(f"{', '.join(silent)} reported nothing while others failed; {error}")
    return error


def _failure(reported: WorkerFailed) -> InputError | WorkerError:
    """The error that a worker has reported."""
    return WorkerError(reported.message) if reported.input is None else InputError(**reported.input)


_LOST = ("TimeoutError", "ConnectionError")
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
