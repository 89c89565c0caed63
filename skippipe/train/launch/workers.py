"""The parent of a local training's workers: `python -m skippipe.train.launch.workers`, started by the supervisor alone.

Importing torch and transformers takes longer than anything else at the start, so it is done once, here, and the
workers are forked from this process. It has a single thread and has computed nothing, so that it can fork a worker at
any time, also in place of one that was lost; what needs threads is done by a child of its own (`registrar.py`). Then it
only waits: it starts the workers that the supervisor asks for, reports how each ends, and kills them all when the
supervisor closes its standard input, as the kernel does if the supervisor dies. A worker in turn ends when this process
is gone.
"""

import faulthandler
import gc
import os
import pickle
import pkgutil
import secrets
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from skippipe.errors import InputError, SchedulerError, WithdrawnError, exit_status
from skippipe.files import open_new, open_own
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.launch.failures import STACK_SIGNAL
from skippipe.train.launch.registrar import Registrar
from skippipe.train.launch.worker import end_of
from skippipe.train.observe.events import EventWriter, WorkerEnded, WorkerFailed, WorkerStarted

ORDER_BYTES = 4096
"""More than an order takes."""


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
    orders: int
    """file descriptor of the socket over which the supervisor asks for workers"""
    listener: int | None
    """file descriptor of the socket on which the store of the rendezvous is to be served; None: another process does"""


@dataclass(frozen=True)
class Order:
    """Asks for a worker; comes with the file descriptor that its events go to."""

    rank: int
    again: bool
    """whether it takes the place of one that was lost, and joins the others"""


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
    return Children(work, assignment, report).run()


class Children:
    """The workers, as their parent sees them, and what serves them."""

    def __init__(self, work: Work, assignment: Assignment, report: EventWriter) -> None:
        self._work, self._assignment, self._report = work, assignment, report
        self._rank_specs = {rank_spec.rank: rank_spec for rank_spec in assignment.ranks}
        self._alive: dict[int, RankSpec] = {}
        """by process"""
        self._is_ending = False
        self._orders = socket.socket(fileno=assignment.orders)
        self._ended, waking = os.pipe()
        for descriptor in (self._ended, waking):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        own = [report.descriptor, assignment.orders, self._ended, waking]
        self._registrar = Registrar(assignment.ranks[0], assignment.listener, own)
        self._life, own_end = os.pipe()
        self._own = [*own, *self._registrar.descriptors, own_end]
        """file descriptors that are not for workers"""

    def run(self) -> int:
        """Start the workers of all ranks, and more as they are asked for; wait until all have ended."""
        for _ in self._rank_specs:
            self._start_worker()
        # No descriptor of its own, which workers would inherit.
        with selectors.PollSelector() as selector:
            takes: dict[int, Callable[[], bool]] = {
                sys.stdin.fileno(): self._look_at_supervisor,
                self._orders.fileno(): self._start_worker,
                self._ended: self._reap,
            }
            for descriptor, take in takes.items():
                selector.register(descriptor, selectors.EVENT_READ, take)
            while self._alive:
                for key, _ in selector.select():
                    if not key.data():
                        selector.unregister(key.fd)
        self._registrar.end()
        return 0

    def _start_worker(self) -> bool:
        """Fork the worker that the supervisor asks for; false: there will be no more."""
        message, descriptors, *_ = socket.recv_fds(self._orders, ORDER_BYTES, 1)
        if not message or self._is_ending:
            for descriptor in descriptors:
                os.close(descriptor)
            return False
        order: Order = pickle.loads(message)  # noqa: S301 - sent by our own supervisor, as above
        rank_spec = replace(self._rank_specs[order.rank], process_token=secrets.token_hex(8))
        if order.again:
            rank_spec = replace(rank_spec, newcomer=True, verified=None)
        (pipe,) = descriptors
        process = os.fork()
        if process == 0:
            ends = _Ends(pipe, self._assignment.folder / "log" / f"{order.rank}.txt", order.again, self._life)
            _be_worker(self._work, self._assignment, rank_spec, ends, self._own)
        os.close(pipe)  # only the worker itself holds it: its end is seen at the other one
        self._alive[process] = rank_spec
        self._report(WorkerStarted(rank=rank_spec.rank, process=process))
        return True

    def _reap(self) -> bool:
        """Report how those have ended that have."""
        os.read(self._ended, 1024)
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not process:
                return True
            if process == self._registrar.process:
                self._registrar.has_ended = True
                if self._assignment.listener is not None:  # else the others notice deaths by heartbeat
                    self._end_without_store(os.waitstatus_to_exitcode(status))
                continue
            rank_spec = self._alive.pop(process)
            self._report(WorkerEnded(rank=rank_spec.rank, status=os.waitstatus_to_exitcode(status)))
            if status:
                self._registrar.tell_death(rank_spec)

    def _look_at_supervisor(self) -> bool:
        """End all workers once the supervisor has closed its end."""
        if os.read(sys.stdin.fileno(), 1024):
            return True
        self._kill()
        return False

    def _end_without_store(self, status: int) -> None:
        """End all workers, which cannot go on."""
        message = f"the process that serves the store of the rendezvous {end_of(status)}; all others were ended"
        self._report(WorkerFailed(status=1, message=message, cause="StoreGoneError"))
        self._kill()

    def _kill(self) -> None:
        self._is_ending = True
        for process in self._alive:
            os.kill(process, signal.SIGKILL)


class _Ends(NamedTuple):
    """What a worker has to do with other processes, beside those of its job."""

    pipe: int
    """file descriptor that its events go to"""
    log: Path
    """its output"""
    log_goes_on: bool
    """whether that is the log of the process whose place it takes"""
    life: int
    """file descriptor that ends with its parent"""


def _be_worker(work: Work, assignment: Assignment, rank_spec: RankSpec, ends: _Ends, others: Sequence[int]) -> NoReturn:
    """Do a rank's work and end this process; the file descriptors of `others` are not for it."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in others:
            os.close(descriptor)
        status = _work(work, assignment, rank_spec, ends)
    except BaseException:  # noqa: BLE001 - nothing may get past this fork
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _work(work: Work, assignment: Assignment, rank_spec: RankSpec, ends: _Ends) -> int:
    log = _open_log(ends)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for descriptor in (nothing, log):
        os.close(descriptor)
    faulthandler.register(STACK_SIGNAL)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it ends without being flushed
    threading.Thread(target=_end_with_parent, args=[ends.life], daemon=True).start()
    report = EventWriter(ends.pipe)
    try:
        run = pkgutil.resolve_name(work.run)  # imported before the fork
        run(spec=work.spec, rank_spec=rank_spec, report=report, **assignment.arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor has to know
        return report_failure(error, report)
    return 0


def _open_log(ends: _Ends) -> int:
    if not ends.log_goes_on:
        return open_new(ends.log)
    descriptor = open_own(ends.log)
    os.lseek(descriptor, 0, os.SEEK_END)
    return descriptor


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
