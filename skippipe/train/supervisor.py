"""Runs the processes of a local training: has them started, listens to them, sees that none outlives the others.

A worker that fails says so before it ends; one that is killed says nothing, and is known by its end. Either way the
others are ended, and the error names the node of the one that explains the rest.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from skippipe.data.prepare import corpus_folder
from skippipe.errors import SIGNALLED, UNUSABLE_INPUT, InputError, SchedulerError
from skippipe.files import open_new
from skippipe.ranks import node_title
from skippipe.train.config import TrainJob
from skippipe.train.events import Event, LineReader, Report
from skippipe.train.place import Place
from skippipe.train.stopping import StopRequest
from skippipe.train.tokenizer import data_settings
from skippipe.train.workers import Assignment

HOST = "127.0.0.1"
SETTLE_S = 1.0
"""How long the others may take to say what they saw, once one has failed: who failed first explains the rest."""
END_S = 5.0
"""How long ending all workers may take."""
LOG_TAIL_BYTES = 2000


class WorkerError(SchedulerError, RuntimeError):
    """A worker of a local training failed or died; the message names its node."""


@dataclass
class Worker:
    """What is known of one worker."""

    rank: int
    names: tuple[str, ...]
    """nodes that it serves"""
    log: Path
    reader: LineReader = field(default_factory=LineReader)
    process: int | None = None
    failure: Event | None = None
    """what it said about its failure"""
    status: int | None = None
    """exit status, negative for a signal; None as long as it has not ended"""
    failed_at: float | None = None
    """when it said that it failed, or ended badly (monotonic seconds)"""

    @property
    def title(self) -> str:
        """How messages call it."""
        return node_title(self.names, self.rank)


class Stopping(StopRequest):
    """Passes a request to stop on to rank 0, which tells the others; they end when their iteration is done.

    Before training has begun there is nothing to wait for, and whoever asks twice does not want to wait. SIGHUP comes
    twice where a shell closes its terminal, and SIGUSR1 is Slurm's warning: neither is asking twice.
    """

    def __init__(self, first: Worker) -> None:
        super().__init__()
        self._first = first
        self._training = False
        self._stopped = False
        self._urged = 0

    @property
    def outcome(self) -> signal.Signals | None:
        """What asked a run to stop that has stopped before its end."""
        return (self.signal or signal.SIGTERM) if self._stopped else None  # a worker may have been asked itself

    def heard(self, report: Report) -> Report:
        """The same report, its events listened to."""

        def hear(event: Event) -> None:
            self._training |= event["event"] == "validation"
            self._stopped |= event["event"] == "stopped"
            report(event)

        return hear

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
    job: TrainJob, names: Sequence[tuple[str, ...]], folder: Path, report: Report, checked: str | None = None
) -> signal.Signals | None:
    """Train with one process of this machine for each entry of `names`, the nodes that it serves.

    Args:
        job: the settings.
        names: nodes by rank.
        folder: of the run; what each worker prints goes to `log/RANK.txt` in it.
        report: is given the events of rank 0, `starting`, and `started` and `ended` of all.
        checked: hash of the manifest of a checkpoint in the folder whose files have been checked just now.

    Returns:
        None where the run has come to its end; else the signal that asked it to stop.

    Raises:
        InputError: the job holds what cannot be used, or the port is taken.
        WorkerError: a worker failed or died.

    """
    (folder / "log").mkdir(exist_ok=True)
    workers = [Worker(rank, served, folder / "log" / f"{rank}.txt") for rank, served in enumerate(names)]
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(_listening(job.runtime.port))
        pipes = [os.pipe() for _ in workers]
        for reading, _ in pipes:
            stack.callback(os.close, reading)
        parent = stack.enter_context(_parent([door.fileno(), *(writing for _, writing in pipes)], folder))
        listening, port = door.fileno(), door.getsockname()[1]
        for _, writing in pipes:
            os.close(writing)
        door.close()  # rank 0 alone is to hold it open
        report({"event": "starting", "processes": len(workers)})
        _send(parent, job)
        try:
            # Here, once for all workers, while their parent imports torch.
            text = stack.enter_context(corpus_folder(data_settings(job), folder))
        except BaseException:
            parent.kill()  # there are no workers yet
            raise
        places = [
            Place(w.rank, len(workers), w.names, HOST, port, None if w.rank else listening, checked, local=True)
            for w in workers
        ]
        _send(parent, Assignment(folder, text, places, [writing for _, writing in pipes]))
        stop = stack.enter_context(Stopping(workers[0]))
        _watch(parent, workers, [reading for reading, _ in pipes], stop.heard(report))
        return stop.outcome


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """Hold the port at which the workers meet, so that nobody can take it between choosing and using it."""
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((HOST, port))
        except OSError as error:
            raise InputError(f"runtime.port is {port}: {HOST}:{port} cannot be used: {error.strerror}") from None
        door.listen()
        yield door


@contextlib.contextmanager
def _parent(inherited: Sequence[int], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the parent of the workers; at the end neither it nor any of them is left."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
        "OPENBLAS_NUM_THREADS": "1",  # else importing NumPy starts threads, and the workers are forked
    }
    with os.fdopen(open_new(folder / "log" / "parent.txt"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "skippipe.train.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=inherited,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is the supervisor's to pass on
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
    with contextlib.suppress(BrokenPipeError):  # it is gone, which its end will tell
        parent.stdin.write(pickle.dumps(what))
        parent.stdin.flush()


def _watch(parent: subprocess.Popen[bytes], workers: Sequence[Worker], pipes: Sequence[int], report: Report) -> None:
    """Pass on events until all workers have ended well; raise for the one that has not."""
    assert parent.stdout is not None
    reader = LineReader()
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
                    _hear_parent(reader.feed(data), workers, report)
                else:
                    _hear_worker(key.data, key.data.reader.feed(data), report)
            if deadline is None and any(worker.failed_at is not None for worker in workers):
                deadline = time.monotonic() + SETTLE_S
    if any(worker.failed_at is not None for worker in workers):
        raise _error(workers)
    if any(worker.status is None for worker in workers):
        parent.wait(END_S)
        log = workers[0].log.with_name("parent.txt")
        raise WorkerError(f"the parent of all workers {_end(parent.returncode)}; none is left{_log_tail(log)}")


def _hear_parent(events: Sequence[Event], workers: Sequence[Worker], report: Report) -> None:
    for event in events:
        if event["event"] == "failed":  # before there were any workers
            message = event["message"]
            raise InputError(message) if event["status"] == UNUSABLE_INPUT else WorkerError(message)
        worker = workers[event["rank"]]
        if event["event"] == "started":
            worker.process = event["process"]
        else:
            worker.status = event["status"]
            if worker.status and worker.failed_at is None:
                worker.failed_at = time.monotonic()
        report(event | {"names": worker.names})


def _hear_worker(worker: Worker, events: Sequence[Event], report: Report) -> None:
    for event in events:
        if event["event"] == "failed":
            worker.failure, worker.failed_at = event, time.monotonic()
        elif worker.rank == 0:
            report(event)


def _error(workers: Sequence[Worker]) -> SchedulerError:
    """Choose the failure that explains the others.

    A process that was killed says nothing, its neighbours only that it has gone; input that cannot be used comes
    before what follows from it; else what came first, but for connections that were lost to one who failed. Where
    messages stay out, who says nothing at all is who hangs.
    """
    first = min((worker for worker in workers if worker.failed_at is not None), key=_precedence)
    if first.failure is None:
        process = f"process {first.process} " if first.process else ""
        return WorkerError(f"{first.title}: {process}{_end(first.status)}; the others were ended{_log_tail(first.log)}")
    message = f"{first.title}: {first.failure['message']}"
    if first.failure["status"] == UNUSABLE_INPUT:
        return InputError(message)
    silent = [worker.title for worker in workers if worker.failed_at is None and worker.status is None]
    if silent and first.failure["cause"] in _LOST:
        message = f"{', '.join(silent)} has said nothing while others failed; {message}"
    return WorkerError(message)


_LOST = ("TimeoutError", "ConnectionError")
"""Causes of failures that lie with somebody else."""


def _precedence(worker: Worker) -> tuple[int, float]:
    """Order failures: what explains the others comes first."""
    assert worker.failed_at is not None
    if worker.failure is None:
        return 0, worker.failed_at
    if worker.failure["status"] == UNUSABLE_INPUT:
        return 1, worker.failed_at
    return 3 if worker.failure["cause"] == "ConnectionError" else 2, worker.failed_at


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
