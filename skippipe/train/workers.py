"""The parent of a local training's workers: `python -m skippipe.train.workers`, started by the supervisor alone.

Importing torch and transformers takes longer than anything else at the start, so it is done once, here, and the
workers are forked from this process while it has a single thread and has computed nothing. It then only waits: it
tells the supervisor how each worker has ended, and ends them all when the supervisor closes its standard input, which
the kernel does where the supervisor dies. A worker in turn ends when this process is gone.
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

from skippipe.errors import SchedulerError, exit_status
from skippipe.files import open_new
from skippipe.train.config import TrainJob
from skippipe.train.events import LineWriter
from skippipe.train.place import Place


@dataclass(frozen=True)
class Assignment:
    """What the workers are to do; comes over standard input after the settings of the job."""

    folder: Path
    """of the run"""
    text: Path
    """folder in which the text lies prepared"""
    places: list[Place]
    """by rank"""
    pipes: list[int]
    """by rank the file descriptor that its events go to"""


def main() -> int:
    """Import what the workers need, fork them, and wait until all have ended."""
    report = LineWriter(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no event
    try:
        # Sent by our own supervisor over a pipe that nobody else can write to.
        job: TrainJob = pickle.load(sys.stdin.buffer)  # noqa: S301
        from skippipe.model.settings import model_config  # noqa: PLC0415 - takes ten seconds: where the supervisor waits

        model_config(job.model)  # imports what the architecture needs
        import skippipe.train.rank  # noqa: F401, PLC0415

        assignment: Assignment = pickle.load(sys.stdin.buffer)  # noqa: S301
    except EOFError:
        return 1  # the supervisor is gone
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor has to know
        tell_failure(error, report)
        return exit_status(error)
    return Children(job, assignment, report).wait()


class Children:
    """The workers, as their parent sees them."""

    def __init__(self, job: TrainJob, assignment: Assignment, report: LineWriter) -> None:
        self._report = report
        self._alive: dict[int, int] = {}
        """rank by process"""
        self._reaping = threading.Lock()
        life, own_end = os.pipe()
        for place in assignment.places:
            process = os.fork()
            if process == 0:
                for descriptor in (own_end, report.descriptor, *_doors_of_others(assignment, place)):
                    os.close(descriptor)
                _be_worker(job, assignment, place, life)
            self._alive[process] = place.rank
            report({"event": "started", "rank": place.rank, "process": process})
        # From here on only the worker itself holds its pipe: its end is seen at the other one.
        for pipe in [*assignment.pipes, *_doors_of_others(assignment, None)]:
            os.close(pipe)
        threading.Thread(target=self._end_with_supervisor, daemon=True).start()

    def wait(self) -> int:
        """Wait for all, telling how each ends."""
        while self._alive:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            with self._reaping:
                _, status = os.waitpid(ended.si_pid, 0)
                rank = self._alive.pop(ended.si_pid)
            self._report({"event": "ended", "rank": rank, "status": os.waitstatus_to_exitcode(status)})
        return 0

    def _end_with_supervisor(self) -> None:
        """Wait for the end of standard input, then end all workers."""
        while os.read(sys.stdin.fileno(), 1024):
            pass
        with self._reaping:  # none of them can be reaped now, and its number given to another process
            for process in self._alive:
                os.kill(process, signal.SIGKILL)


def _doors_of_others(assignment: Assignment, place: Place | None) -> list[int]:
    """Sockets that listen for other ranks: whoever keeps them open keeps a dead rank's door from being closed."""
    doors = {other.listening for other in assignment.places if other != place}
    return [door for door in doors if door is not None]


def _be_worker(job: TrainJob, assignment: Assignment, place: Place, life: int) -> NoReturn:
    """Do a rank's work and end this process."""
    status = 1
    try:
        status = _work(job, assignment, place, life)
    except BaseException:  # noqa: BLE001 - nothing may get past this fork
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _work(job: TrainJob, assignment: Assignment, place: Place, life: int) -> int:
    own = assignment.pipes[place.rank]
    for pipe in assignment.pipes:
        if pipe != own:
            os.close(pipe)
    log = open_new(assignment.folder / "log" / f"{place.rank}.txt")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for descriptor in (nothing, log):
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it ends without being flushed
    threading.Thread(target=_end_with_parent, args=[life], daemon=True).start()
    report = LineWriter(own)
    from skippipe.train.rank import train_rank  # noqa: PLC0415 - imported before the fork

    try:
        train_rank(job, place, assignment.folder, report, assignment.text)
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor has to know
        tell_failure(error, report)
        return exit_status(error)
    return 0


def _end_with_parent(life: int) -> None:
    """Wait until nobody holds the other end, which is the end of the parent."""
    os.read(life, 1)
    os._exit(1)


def tell_failure(error: Exception, report: LineWriter) -> None:
    """Say what went wrong; where it is a defect of ours, with what it takes to find it."""
    cause = error.__cause__ or error
    message = str(error) or type(error).__name__
    if not isinstance(error, SchedulerError | OSError):
        message = "".join(traceback.format_exception(error)).strip()
    report(
        {"event": "failed", "status": exit_status(error), "message": message, "cause": type(cause).__name__},
    )


if __name__ == "__main__":
    sys.exit(main())
