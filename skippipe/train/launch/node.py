"""`skippipe node`: the ranks of one machine, in a job over several of which each may be lost.

Every node of the plan is a process, and its position among those in use is its rank; so all machines number the ranks
alike without asking each other. Nodes that the plan leaves out come after them, and can only join a run. The machine
that the rendezvous names serves it, in a process of its own.
"""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from skippipe.console.output import Console
from skippipe.console.streams import warn
from skippipe.context import Context
from skippipe.errors import unexpected
from skippipe.train.connect.rank_spec import Launcher, RankSpec, check_node, node_names
from skippipe.train.launch.ending import restarting, stopped
from skippipe.train.launch.run_folder import check_folder, run_folder
from skippipe.train.launch.supervisor import Machine, listen, train_on_machine
from skippipe.train.observe.display import Display
from skippipe.train.observe.events import Report
from skippipe.train.observe.run_log import SETTINGS
from skippipe.train.resolve.spec import RunSpec
from skippipe.train.signals import outlasting_terminal

LOOK_PAUSE_S = 0.2
MARGIN_S = 3.0
"""How much longer than ranks may be silent it may take to find that none is left."""


def train_node(spec: RunSpec, rendezvous: str, context: Context) -> float:
    """Train with the ranks of this machine; returns the validation loss at the end, 0 where another machine knows it.

    Raises:
        InputError: settings or files that cannot be used, or a rendezvous without an address.
        LostWorkerError: a worker here died or hangs, and was not started again.
        WorkerError: a worker here failed.

    """
    host, port = _address(rendezvous)
    ranks = _ranks(spec, host, port)
    with Service(host, port, 2 * spec.communication.heartbeat_s) as service, contextlib.ExitStack() as stack:
        if spec.launch.folder is None:
            raise unexpected("folder", None, "a folder that all machines see")
        service.ensure()  # while the folder is waited for
        folder = stack.enter_context(_folder(spec, spec.launch.folder, context, makes=ranks[0].rank == 0))
        display = stack.enter_context(Display(Console(), context.shown(folder)))

        def attempt(report: Report) -> signal.Signals | None:
            service.ensure()
            return train_on_machine(spec, Machine(ranks, None), folder, report)

        stopped_by = restarting(attempt, spec.launch.restarts, folder, outlasting_terminal(display))
        if stopped_by is None:
            return 0.0 if display.summary is None else display.final_loss
    raise stopped(stopped_by)


def _address(rendezvous: str) -> tuple[str, int]:
    host, colon, port = rendezvous.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise unexpected("rendezvous", rendezvous, "HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _ranks(spec: RunSpec, host: str, port: int) -> list[RankSpec]:
    """The ranks of this machine, in order."""
    if spec.launch.processes is not None:
        raise unexpected("runtime.processes", spec.launch.processes, "null: each node of this machine is a process")
    used = spec.layout.used
    check_node(spec.launch.node, spec.layout.cluster.names, "runtime.node=NAME,NAME says which nodes this machine is")
    numbers = {name: rank for rank, name in enumerate([*used, *spec.layout.unused])}
    names = node_names(spec.launch.node)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise unexpected("runtime.node", f"{', '.join(repeated)} twice", "each node once")
    return [
        RankSpec(
            numbers[name], len(used), (name,), host, port,
            launcher=Launcher.NODE, agent_store=True, local_rank=number, newcomer=name not in used,
        )
        for number, name in enumerate(sorted(names, key=lambda name: numbers[name]))
    ]  # fmt: skip


@contextlib.contextmanager
def _folder(spec: RunSpec, name: str, context: Context, *, makes: bool) -> Iterator[Path]:
    """The folder of the run, which all machines see: the one with rank 0 makes it, the others wait for that."""
    if makes:
        with run_folder(spec, context) as folder:
            yield folder
        return
    folder, limit_s = context.folder / name, spec.communication.start_timeout_s
    deadline = time.monotonic() + limit_s
    while not (folder / SETTINGS).exists():
        if time.monotonic() > deadline:
            found = f"{name} without {SETTINGS} for {limit_s:g} s"
            hint = f"the machine of node {spec.layout.used[0]} makes it; all of them have to see it"
            raise unexpected("folder", found, "the folder of the run", hint=hint)
        time.sleep(LOOK_PAUSE_S)
    check_folder(folder, name, spec.checkpoints.key)
    yield folder


class Service:
    """Serves the rendezvous where this machine is the one that it names; at the end, until no other one needs it."""

    def __init__(self, host: str, port: int, silence_s: float) -> None:
        """Serve at an address; ranks that are silent for `silence_s` need it no more."""
        self._host, self._port, self._silence_s = host, port, silence_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    @property
    def process(self) -> int | None:
        """The process that serves, if it is one of this machine's own."""
        return None if self._process is None else self._process.pid

    def ensure(self) -> None:
        """Start to serve, unless this machine or another one does."""
        if self._process is not None and self._process.poll() is None:
            return
        self._close()
        listener = _listener(self._host, self._port)
        if listener is None:
            return
        with listener:
            arguments = [self._host, str(self._port), str(listener.fileno()), str(self._silence_s)]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "skippipe.train.launch.rendezvous_service", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C is for the supervisor
                # Torch would warn that the addresses of a private network have no names.
                env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ},
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is None:
            return
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(self._silence_s + MARGIN_S)
        except subprocess.TimeoutExpired:
            warn("the other nodes go on; this machine serves their rendezvous until they end (Ctrl-C ends it)", "node")
            self._process.wait()
        finally:
            self._close()

    def _close(self) -> None:
        """Serve no more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None


def _listener(host: str, port: int) -> socket.socket | None:
    """A socket at the address of the rendezvous; None: that is another machine's, or another process here serves it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise unexpected("rendezvous", f"{host} ({error.strerror})", "a host that can be resolved") from None
    family, _, _, _, address = found[0]
    try:
        return listen(family, address)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None
        raise unexpected("rendezvous", f"{host}:{port}: {error.strerror}", "an address that can be used") from None
