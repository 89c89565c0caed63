"""The parent of a local training's workers: `python -m skippipe.train.launch.workers`, started by the supervisor alone.

Importing torch and transformers takes longer than anything else at the start, so it is done once, here, and the
workers are forked from this process while it has a single thread and has computed nothing. Then it only waits: it
reports to the supervisor how each worker ends, and kills them all when the supervisor closes its standard input, as the
kernel does if the supervisor dies. A worker in turn ends when this process is gone.
"""

import os
import pickle
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from skippipe.errors import InputError, SchedulerError, exit_status
from skippipe.files import open_new
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.observe.events import EventWriter, WorkerEnded, WorkerFailed, WorkerStarted
from skippipe.train.resolve.spec import RunSpec


@dataclass(frozen=True)
class Assignment:
    """What the workers do; comes over standard input after the description of the run."""

    folder: Path
    """of the run"""
    text: Path
    """folder of the prepared text"""
    ranks: list[RankSpec]
    """by rank"""
    pipes: list[int]
    """by rank the file descriptor that its events go to"""


def main() -> int:
    """Import what the workers need, fork them, and wait until all have ended."""
    report = EventWriter(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no event
    try:
        # Sent by our own supervisor over a pipe that nobody else can write to.
        spec: RunSpec = pickle.load(sys.stdin.buffer)  # noqa: S301
        from skippipe.model.settings import model_config  # noqa: PLC0415 - takes ten seconds: where the supervisor waits

        model_config(spec.model.settings)  # imports what the architecture needs
        import skippipe.train.rank  # noqa: F401, PLC0415

        assignment: Assignment = pickle.load(sys.stdin.buffer)  # noqa: S301
    except EOFError:
        return 1  # the supervisor is gone
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor has to know
        report_failure(error, report)
        return exit_status(error)
    return Children(spec, assignment, report).wait()


class Children:
    """The workers, as their parent sees them."""

    def __init__(self, spec: RunSpec, assignment: Assignment, report: EventWriter) -> None:
        self._report = report
        self._alive: dict[int, int] = {}
        """rank by process"""
        self._reaping = threading.Lock()
        life, own_end = os.pipe()
        for rank_spec in assignment.ranks:
            process = os.fork()
            if process == 0:
                for descriptor in (own_end, report.descriptor, *_listeners_of_others(assignment, rank_spec)):
                    os.close(descriptor)
                _be_worker(spec, assignment, rank_spec, life)
            self._alive[process] = rank_spec.rank
            report(WorkerStarted(rank=rank_spec.rank, process=process))
        # From here on only the worker itself holds its pipe: its end is seen at the other one.
        for pipe in [*assignment.pipes, *_listeners_of_others(assignment, None)]:
            os.close(pipe)
        threading.Thread(target=self._end_with_supervisor, daemon=True).start()

    def wait(self) -> int:
        """Wait for all, and report how each ends."""
        while self._alive:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            with self._reaping:
                _, status = os.waitpid(ended.si_pid, 0)
                rank = self._alive.pop(ended.si_pid)
            self._report(WorkerEnded(rank=rank, status=os.waitstatus_to_exitcode(status)))
        return 0

    def _end_with_supervisor(self) -> None:
        """Wait for the end of standard input, then end all workers."""
        while os.read(sys.stdin.fileno(), 1024):
            pass
        with self._reaping:  # none of them can be reaped now, and its number given to another process
            for process in self._alive:
                os.kill(process, signal.SIGKILL)


def _listeners_of_others(assignment: Assignment, rank_spec: RankSpec | None) -> list[int]:
    """Listening sockets of other ranks: held open here, they would outlive a rank that has died."""
    listeners = {other.listener for other in assignment.ranks if other != rank_spec}
    return [listener for listener in listeners if listener is not None]


def _be_worker(spec: RunSpec, assignment: Assignment, rank_spec: RankSpec, life: int) -> NoReturn:
    """Do a rank's work and end this process."""
    status = 1
    try:
        status = _work(spec, assignment, rank_spec, life)
    except BaseException:  # noqa: BLE001 - nothing may get past this fork
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _work(spec: RunSpec, assignment: Assignment, rank_spec: RankSpec, life: int) -> int:
    own = assignment.pipes[rank_spec.rank]
    for pipe in assignment.pipes:
        if pipe != own:
            os.close(pipe)
    log = open_new(assignment.folder / "log" / f"{rank_spec.rank}.txt")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for descriptor in (nothing, log):
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it ends without being flushed
    threading.Thread(target=_end_with_parent, args=[life], daemon=True).start()
    report = EventWriter(own)
    from skippipe.train.rank import train_rank  # noqa: PLC0415 - imported before the fork

    try:
        train_rank(spec, rank_spec, assignment.folder, report, assignment.text)
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor has to know
        report_failure(error, report)
        return exit_status(error)
    return 0


def _end_with_parent(life: int) -> None:
    """Wait until nobody holds the other end, which is the end of the parent."""
    os.read(life, 1)
    os._exit(1)


def report_failure(error: Exception, report: EventWriter) -> None:
    """Report what went wrong; a defect of ours with its traceback."""
    cause = error.__cause__ or error
    message = str(error) or type(error).__name__
    if not isinstance(error, SchedulerError | OSError):
        message = "".join(traceback.format_exception(error)).strip()
    fields = error.fields() if isinstance(error, InputError) else None
    report(WorkerFailed(status=exit_status(error), message=message, cause=type(cause).__name__, input=fields))


if __name__ == "__main__":
    sys.exit(main())
