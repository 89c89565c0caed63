"""Starts the processes of a job on this machine, receives their events, lets none outlive its supervisor.

A worker that fails reports it before it ends; one that is killed is known by its exit status. Where the others can go
on without one that is killed or hangs, they do, and say so; otherwise they are ended, and the error names the node of
the worker that explains the rest. Every loss is recorded (`failures.py`).
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skippipe.data.prepare import corpus_folder
from skippipe.errors import unexpected
from skippipe.files import open_new
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.launch.watch import END_S, ForwardedStop, Parent, Watch
from skippipe.train.launch.worker import LostWorkerError, Worker, WorkerError
from skippipe.train.launch.workers import Assignment, Work
from skippipe.train.observe.events import Report, WorkersStarting
from skippipe.train.resolve.spec import REPLANNING_S, RunSpec

HOST = "127.0.0.1"
RECOVERY_S = 60.0
"""How long workers may take to go on without one that has died, beside heartbeats, plans and waiting for a message."""
LOCAL_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"}

Prepare = Callable[[contextlib.ExitStack], dict[str, Any]]


@dataclass(frozen=True)
class Machine:
    """The ranks of a job that run on this machine, and where they find the others."""

    ranks: Sequence[RankSpec]
    listener: socket.socket | None
    """on which the store of the rendezvous is to be served; None: another process does"""

    @property
    def log(self) -> str:
        """Name of the log of the parent."""
        first = self.ranks[0]
        return "parent.txt" if first.launcher is Launcher.LOCAL else f"parent-{first.rank}.txt"


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

    with local_machine(names_by_rank, spec.launch.port, verified) as machine:
        return run_workers(
            training(spec), machine, folder, report,
            prepare=prepare, recovery_s=_recovery_s(spec), start_retries=spec.launch.start_retries,
        )  # fmt: skip


def train_on_machine(spec: RunSpec, machine: Machine, folder: Path, report: Report) -> signal.Signals | None:
    """Train with the ranks of this machine, while other supervisors run those of others; as `train_locally`."""
    return run_workers(
        training(spec), machine, folder, report, prepare=lambda _: {"folder": folder}, recovery_s=_recovery_s(spec)
    )


def training(spec: RunSpec) -> Work:
    """What the workers of a run do."""
    return Work("skippipe.train.rank:train_rank", spec, spec.model.settings)


def _recovery_s(spec: RunSpec) -> float | None:
    """How long workers may take to go on without one that has died, beside some iterations; None: they do not."""
    communication = spec.communication
    if not communication.recover:
        return None
    # Noticing a loss and connecting take two heartbeats each.
    waiting_s = 4 * communication.heartbeat_s + communication.timeout_s
    return RECOVERY_S + waiting_s + REPLANNING_S * len(spec.phases)


@contextlib.contextmanager
def local_machine(
    names_by_rank: Sequence[tuple[str, ...]], port: int, verified: str | None = None
) -> Iterator[Machine]:
    """All ranks of a job on this machine.

    The port of the rendezvous is held from here on, so that no other process can take it. Raises `InputError` if one
    has it already.
    """
    with _listening(port) as listener:
        chosen: int = listener.getsockname()[1]
        yield Machine(
            [
                RankSpec(
                    rank, len(names_by_rank), names, HOST, chosen,
                    verified=verified, launcher=Launcher.LOCAL, agent_store=True, local_rank=rank,
                )
                for rank, names in enumerate(names_by_rank)
            ],
            listener,
        )  # fmt: skip


def run_workers(  # noqa: PLR0913 - by keyword
    work: Work,
    machine: Machine,
    folder: Path,
    report: Report,
    *,
    prepare: Prepare = lambda _: {},
    recovery_s: float | None = None,
    start_retries: int | None = None,
) -> signal.Signals | None:
    """Have processes of this machine do their work as ranks of a job; arguments and errors as of `train_locally`.

    `prepare` gives what all of them need beside their description, by name; what it enters lasts as long as the job.
    `recovery_s` is how long workers that train may take until they go on without one that has died, beside some
    iterations; None: they cannot. `start_retries` is how often in a row one that was lost is started again without
    having trained; None: never.
    """
    (folder / "log").mkdir(exist_ok=True)
    workers = {each.rank: Worker(each.rank, each.names, folder / "log" / f"{each.rank}.txt") for each in machine.ranks}
    with contextlib.ExitStack() as stack:
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(orders)
        inherited = [each.fileno() for each in (theirs, machine.listener) if each is not None]
        parent = stack.enter_context(_parent(orders, inherited, machine, folder))
        # From here on only the parent holds these open; their numbers are the same there.
        theirs_number, *listener = inherited
        theirs.close()
        if machine.listener is not None:
            machine.listener.close()
        report(WorkersStarting(processes=len(workers)))
        _send(parent, work)
        try:
            arguments = prepare(stack)
        except BaseException:
            parent.process.kill()  # there are no workers yet
            raise
        _send(parent, Assignment(folder, arguments, list(machine.ranks), theirs_number, next(iter(listener), None)))
        stop = stack.enter_context(ForwardedStop(workers))
        try:
            watch = Watch(
                parent, workers, folder, report,
                recovery_s=recovery_s, start_retries=start_retries, observe=stop.observe,
            )  # fmt: skip
            watch.run()
        except LostWorkerError as error:
            error.others_may_live &= machine.ranks[0].world > len(workers)
            if stop.signal is None:
                raise
            raise WorkerError(str(error)) from None  # a run that was asked to stop is not started again
        return stop.outcome


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """Hold the port of the rendezvous, so that no other process can take it between choosing and using it."""
    try:
        listener = listen(socket.AF_INET, (HOST, port))
    except OSError as error:
        raise unexpected("runtime.port", f"{port}: {error.strerror}", "a free port") from None
    with listener:
        yield listener


def listen(family: int, address: Any) -> socket.socket:
    """A socket that listens at an address; raises `OSError`."""
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _parent(orders: socket.socket, inherited: Sequence[int], machine: Machine, folder: Path) -> Iterator[Parent]:
    """Start the parent of the workers, which takes orders; at the end all of them are gone."""
    environment = os.environ | {
        "TOKENIZERS_PARALLELISM": "false",
        "OPENBLAS_NUM_THREADS": "1",  # else importing NumPy starts threads, and the workers are forked
    }
    if machine.ranks[0].launcher is Launcher.LOCAL:
        environment |= LOCAL_ENVIRONMENT
    path = folder / "log" / machine.log
    with os.fdopen(open_new(path), "wb") as log:
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
        yield Parent(process, path, orders)
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # it then ends the workers
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its workers then end by themselves
            process.wait()
        process.stdout.close()


def _send(parent: Parent, what: Any) -> None:
    stdin = parent.process.stdin
    assert stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone, as its exit status will show
        stdin.write(pickle.dumps(what))
        stdin.flush()
