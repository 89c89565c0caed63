"""What is known of the workers of a job, and which failure explains the others."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skippipe.errors import UNUSABLE_INPUT, InputError, SchedulerError, from_origin
from skippipe.ranks import node_title
from skippipe.train.launch.failures import ProcessReport
from skippipe.train.observe.events import EventReader, WorkerFailed, WorkerInterrupted

LOG_TAIL_BYTES = 2000


class WorkerError(SchedulerError, RuntimeError):
    """A worker of a local training failed or died; the message names its node."""


class LostWorkerError(WorkerError):
    """A worker died, hangs or cannot be reached: nothing that it would do again if it were started again."""

    def __init__(self, message: str, *, trained: bool = False, others_may_live: bool = False) -> None:
        super().__init__(message)
        self.trained = trained
        """whether it had begun to train"""
        self.others_may_live = others_may_live
        """whether ranks on other machines may go on: those here only died"""


@dataclass
class Worker:
    """State of one worker."""

    rank: int
    names: tuple[str, ...]
    """nodes that it serves"""
    log: Path
    member: int | None = None
    """as the other ranks know it: its rank, or the number of one that has joined; None: it is not one of them yet"""
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
    again: bool = False
    """whether it takes the place of one that was lost, and has to join the others"""

    def __post_init__(self) -> None:
        if self.member is None and not self.again:
            self.member = self.rank

    @property
    def is_alive(self) -> bool:
        """Whether it may still take part."""
        return self.process is not None and self.status is None and not self.left_behind

    @property
    def takes_part(self) -> bool:
        """Whether it may still take part, and the others know it."""
        return self.is_alive and self.member is not None

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


def lost_workers(workers: Sequence[Worker]) -> list[Worker]:
    """The workers that a failure is about: those that were killed; if there are none, those that report nothing."""
    killed = [worker for worker in workers if worker.has_failed and worker.failure is None]
    silent = [worker for worker in workers if worker.takes_part and worker.failed_at is None]
    return killed or silent or [min((w for w in workers if w.has_failed), key=_precedence)]


def explaining_error(workers: Sequence[Worker]) -> SchedulerError:
    """Choose the failure that explains the others.

    A process that was killed reports nothing, its peers only that it is gone; input that cannot be used comes before
    what follows from it; else the first failure counts, but for connections lost to a worker that failed. Where
    messages time out, a worker that reports nothing at all is the one that hangs.
    """
    first = min((worker for worker in workers if worker.has_failed), key=_precedence)
    if first.failure is None:
        process = f"process {first.process} " if first.process else ""
        ended = f"{process}{end_of(first.status)}; the others were ended{log_tail(first.log)}"
        return LostWorkerError(f"{first.title}: {ended}")
    error = from_origin(reported_error(first.failure), first.title)
    silent = [worker.title for worker in workers if worker.failed_at is None and worker.takes_part]
    if silent and first.failure.input is None and first.failure.cause in _LOST:
        return LostWorkerError(f"{', '.join(silent)} reported nothing while others failed; {error}")
    return error


def reported_error(reported: WorkerFailed) -> InputError | WorkerError:
    """The error that a worker has reported."""
    if reported.input is not None:
        return InputError(**reported.input)
    return (LostWorkerError if reported.cause in _LOST else WorkerError)(reported.message)


LEFT_BEHIND = "LeftBehindError"
"""Cause of the failure of a worker without which the others go on, as they are about to say."""
_LOST = ("TimeoutError", "ConnectionError", "NotRecoverableError", "StoreGoneError", LEFT_BEHIND)
"""Causes of failures that lie with another worker."""


def _precedence(worker: Worker) -> tuple[int, float]:
    """Order failures: what explains the others comes first."""
    assert worker.failed_at is not None
    if worker.failure is None:
        return 0, worker.failed_at
    if worker.failure.status == UNUSABLE_INPUT:
        return 1, worker.failed_at
    return 3 if worker.failure.cause == "ConnectionError" else 2, worker.failed_at


def end_of(status: int | None) -> str:
    """How a process has ended, for messages."""
    if status == -signal.SIGKILL:
        return (
            "was killed by signal 9 (SIGKILL), likely by the kernel because memory ran out (dmesg shows it, "
            "--dry-run estimates what each process needs)"
        )
    if status is not None and status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with status {status}"


def log_tail(log: Path) -> str:
    """The end of a log, for messages; may be empty."""
    try:
        text = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
    return f"; the end of {log}:\n{text}" if text else ""
