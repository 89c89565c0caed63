"""The parent of a local training's workers: `python -m skippipe.train.launch.workers`, started by the supervisor alone.

Importing torch and transformers takes longer than anything else at the start, so it is done once, here, and the
workers are forked from this process while it has a single thread and has computed nothing. Then it only waits: it
reports to the supervisor how each worker ends, and kills them all when the supervisor closes its standard input, as the
kernel does if the supervisor dies. A worker in turn ends when this process is gone.

In a local run it also serves the store of the rendezvous, from a thread of torch: so the store outlives any worker, and
those that are left can agree on how they go on without one. Which ones have died it tells them there.
"""

import contextlib
import faulthandler
import gc
import os
import pickle
import pkgutil
import secrets
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from skippipe.errors import InputError, SchedulerError, WithdrawnError, exit_status
from skippipe.files import open_new
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.launch.failures import STACK_SIGNAL
from skippipe.train.observe.events import EventWriter, WorkerEnded, WorkerFailed, WorkerStarted

if TYPE_CHECKING:
    from skippipe.train.connect.store import StoreClient

STORE_S = 5.0
"""How long a call to the store may take: who has died can be noticed otherwise."""


@dataclass(frozen=True)
class Work:
    """What every worker does; comes over standard input."""

    run: str
    """MODULE:FUNCTION, called with `spec`, `rank_spec`, `report` and the assignment's arguments"""
    spec: Any
    """description of the job"""
    model: Mapping[str, Any]
    """settings of its model, as `skippipe.model.settings` takes them"""


@dataclass(frozen=True)
class Assignment:
    """How the workers do it; comes over standard input after the work."""

    folder: Path
    """of the run"""
    arguments: dict[str, Any]
    """by name, for all ranks the same"""
    ranks: list[RankSpec]
    """those on this machine"""
    pipes: list[int]
    """the file descriptor that the events of each of them go to"""
    listener: int | None
    """file descriptor of the socket on which the store of the rendezvous is to be served; None: another process does"""


def main() -> int:
    """Import what the workers need, fork them, and wait until all have ended."""
    report = EventWriter(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no event
    try:
        # Sent by our own supervisor over a pipe that nobody else can write to.
        work: Work = pickle.load(sys.stdin.buffer)  # noqa: S301
        from skippipe.model.settings import model_config  # noqa: PLC0415 - takes ten seconds: where the supervisor waits

        model_config(work.model)  # imports what the architecture needs
        pkgutil.resolve_name(work.run)

        assignment: Assignment = pickle.load(sys.stdin.buffer)  # noqa: S301
    except EOFError:
        return 1  # the supervisor is gone
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor has to know
        return report_failure(error, report)
    gc.collect()
    gc.freeze()  # else the first full collection of each worker copies all that was imported, and takes seconds
    return Children(work, assignment, report).wait()


class Children:
    """The workers, as their parent sees them."""

    def __init__(self, work: Work, assignment: Assignment, report: EventWriter) -> None:
        self._assignment, self._report = assignment, report
        self._alive: dict[int, RankSpec] = {}
        """by process"""
        self._reaping = threading.Lock()
        life, own_end = os.pipe()
        for known in assignment.ranks:
            rank_spec = replace(known, process_token=secrets.token_hex(8))
            process = os.fork()
            if process == 0:
                for descriptor in (own_end, report.descriptor, assignment.listener):
                    if descriptor is not None:
                        os.close(descriptor)
                _be_worker(work, assignment, rank_spec, life)
            self._alive[process] = rank_spec
            report(WorkerStarted(rank=rank_spec.rank, process=process))
        # From here on only the worker itself holds its pipe: its end is seen at the other one.
        for pipe in assignment.pipes:
            os.close(pipe)
        # Not before the forks, which need a process of a single thread.
        self._store = self._serve()
        threading.Thread(target=self._end_with_supervisor, daemon=True).start()

    def wait(self) -> int:
        """Wait for all, and report how each ends."""
        while self._alive:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            with self._reaping:
                _, status = os.waitpid(ended.si_pid, 0)
                rank_spec = self._alive.pop(ended.si_pid)
            self._report(WorkerEnded(rank=rank_spec.rank, status=os.waitstatus_to_exitcode(status)))
            if status:
                self._tell_others(rank_spec)
        return 0

    def _serve(self) -> "StoreClient | None":
        """The store, if this process is to serve it."""
        from skippipe.train.connect.store import serve_store  # noqa: PLC0415 - after the imports that are waited for

        first, listener = self._assignment.ranks[0], self._assignment.listener
        if listener is None:
            return None
        return serve_store(first.host, first.port, listener, STORE_S)

    def _tell_others(self, rank_spec: RankSpec) -> None:
        """Tell the other ranks, through the store, that one has died."""
        from skippipe.train.connect.activity import announce_death  # noqa: PLC0415
        from skippipe.train.connect.store import open_store  # noqa: PLC0415

        # Whom that concerns will notice by heartbeat. Anybody can write what is read here, which may be nonsense.
        with contextlib.suppress(RuntimeError, OSError, ValueError, TypeError, AttributeError):
            if self._store is None:
                self._store = open_store(self._assignment.ranks[0], STORE_S)
            announce_death(self._store, rank_spec.rank, rank_spec.process_token)

    def _end_with_supervisor(self) -> None:
        """Wait for the end of standard input, then end all workers."""
        while os.read(sys.stdin.fileno(), 1024):
            pass
        with self._reaping:  # none of them can be reaped now, and its number given to another process
            for process in self._alive:
                os.kill(process, signal.SIGKILL)


def _be_worker(work: Work, assignment: Assignment, rank_spec: RankSpec, life: int) -> NoReturn:
    """Do a rank's work and end this process."""
    status = 1
    try:
        status = _work(work, assignment, rank_spec, life)
    except BaseException:  # noqa: BLE001 - nothing may get past this fork
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _work(work: Work, assignment: Assignment, rank_spec: RankSpec, life: int) -> int:
    own = assignment.pipes[rank_spec.local_rank]
    for pipe in assignment.pipes:
        if pipe != own:
            os.close(pipe)
    log = open_new(assignment.folder / "log" / f"{rank_spec.rank}.txt")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for descriptor in (nothing, log):
        os.close(descriptor)
    faulthandler.register(STACK_SIGNAL)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it ends without being flushed
    threading.Thread(target=_end_with_parent, args=[life], daemon=True).start()
    report = EventWriter(own)
    try:
        run = pkgutil.resolve_name(work.run)  # imported before the fork
        run(spec=work.spec, rank_spec=rank_spec, report=report, **assignment.arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor has to know
        return report_failure(error, report)
    return 0


def _end_with_parent(life: int) -> None:
    """Wait until nobody holds the other end, which is the end of the parent."""
    os.read(life, 1)
    os._exit(1)


def report_failure(error: Exception, report: EventWriter) -> int:
    """Report what went wrong; a defect of ours with its traceback. Gives the exit status that fits."""
    withdrawn = isinstance(error, WithdrawnError)
    if withdrawn and isinstance(error.__cause__, Exception):
        error = error.__cause__
    cause = error.__cause__ or error
    message = str(error) or type(error).__name__
    if not isinstance(error, SchedulerError | OSError):
        message = "".join(traceback.format_exception(error)).strip()
    fields = error.fields() if isinstance(error, InputError) else None
    cause_name, status = type(cause).__name__, exit_status(error)
    report(WorkerFailed(status=status, message=message, cause=cause_name, input=fields, withdrawn=withdrawn))
    return status


if __name__ == "__main__":
    sys.exit(main())
