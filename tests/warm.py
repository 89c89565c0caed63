"""Programs of this project that start warm: real processes, forked from one that has imported what they need.

Importing torch and transformers takes eight seconds of a processor, far more than the programs that tests run do
otherwise. So `python -m skippipe ...`, `python -m skippipe.train...` and torchrun, whether a test or the project itself
starts them by `subprocess`, are forks of one process. It has a single thread and has computed nothing, so what is
forked from it is as if fresh: descriptors, folder, environment, session, arguments, signals, exit status. Imports are
shared, and stages are timed as briefly as in the workers of `pool.py`; otherwise are only the parent and the command
line that other processes see, and a rank of torchrun is called "rank N" for those who look for it.

The fixture `fresh` of `conftest.py` and `Running(fresh=True)` start programs anew, and so does whatever those start.
"""

import atexit
import contextlib
import fcntl
import functools
import itertools
import multiprocessing
import os
import pickle
import runpy
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from composing import remember_compositions
from pool import TIMED_S, fork_context

from skippipe.application import compose
from skippipe.application.configuration import register

Fresh = subprocess.Popen
"""How programs are started otherwise."""
COMPOSED = {"node": ["rendezvous=localhost:1"], "train": []}
"""Commands whose settings are composed before they are forked."""
LARGEST = 1 << 17
"""bytes of an order"""
MOST_DESCRIPTORS = 64
OPTIONS = ("-P", "-u")
FIRST = "SKIPPIPE_TESTS_FIRST"
"""variable that names a file which programs run first, as they do `sitecustomize` where they start anew"""
TORCHRUN = "torch.distributed.run"
_REPLY = struct.Struct("cq")
_STARTED, _ENDED = b"p", b"s"


@dataclass(frozen=True)
class Order:
    """A program to start; its descriptors come with it."""

    module: str
    arguments: list[str]
    options: list[str]
    """of the interpreter: `-P`, modules in its folder are not to be found; `-u`, output is not buffered"""
    folder: str
    environment: dict[str, str]
    new_session: bool
    numbers: list[int]
    """of its descriptors, in the order in which they come; the first three are the standard streams"""
    first: Callable[[], object] | None
    """what it calls before anything else"""


def program_of(line: Any) -> tuple[str, list[str], list[str]] | None:
    """Module, arguments and options of a command line that starts one of the programs; None: of another."""
    if not isinstance(line, list | tuple) or [*line[:1]] != [sys.executable]:
        return None
    options = [*itertools.takewhile(OPTIONS.__contains__, line[1:])]
    rest = [*line[1 + len(options) :]]
    if len(rest) < 2 or rest[0] != "-m" or not (rest[1].partition(".")[0] == "skippipe" or rest[1] == TORCHRUN):
        return None
    return rest[1], rest[2:], options


class WarmPopen(subprocess.Popen):  # type: ignore[type-arg]  # of bytes or text, as is asked for
    """As `subprocess.Popen`, but what `program_of` finds is forked by the process that `server_address` names."""

    _server: socket.socket | None = None
    """which says when it has ended; None: a process of another program"""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
        errread: int, errwrite: int, restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any,
        start_new_session: Any, *rest: Any,
    ) -> None:  # fmt: skip
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        program = program_of(args)
        if program is None or shell or executable is not None:
            execute: Any = super()._execute_child  # type: ignore[misc]  # private
            execute(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                *pipes, restore_signals, gid, gids, uid, umask, start_new_session, *rest,
            )  # fmt: skip
            return
        streams = [own if own != -1 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
        order = Order(
            *program,
            folder=str(Path(cwd or ".").absolute()),
            environment=dict(os.environ if env is None else env),
            new_session=start_new_session,
            numbers=[0, 1, 2, *pass_fds],
            first=preexec_fn,
        )
        try:
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._server.connect(server_address())
            socket.send_fds(self._server, [pickle.dumps(order)], [*streams, *pass_fds])
            kind, self.pid = _REPLY.unpack(self._server.recv(_REPLY.size))
            assert kind == _STARTED, "it could not be started"
            self._child_created = True
        finally:
            close: Any = self._close_pipe_fds  # type: ignore[attr-defined]  # private
            close(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._server is None:
            wait: Any = super()._try_wait  # type: ignore[misc]  # private
            found: tuple[int, int] = wait(wait_flags)
            return found
        if wait_flags & os.WNOHANG and not select.select([self._server], [], [], 0)[0]:
            return 0, 0
        reply = self._server.recv(_REPLY.size)
        assert reply, "the warm process is gone"
        self._server.close()
        kind, status = _REPLY.unpack(reply)
        assert kind == _ENDED
        return self.pid, status

    def _internal_poll(self, *others: Any, **named: Any) -> int | None:
        if self._server is None:
            poll: Any = super()._internal_poll  # type: ignore[misc]  # private
            found: int | None = poll(*others, **named)
            return found
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


_address: str | None = None
"""of the server, in the processes that it has started"""


def server_address() -> str:
    """Where the process listens that forks programs: one for this test process and all that is started from it."""
    return _address or _start_server()


@functools.cache
def _start_server() -> str:
    folder = tempfile.mkdtemp(prefix="skippipe-warm-")
    address = str(Path(folder) / "door")
    context = fork_context()
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(address, there), daemon=True)
    server.start()
    there.close()
    here.recv()

    def end() -> None:
        server.kill()
        server.join()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return address


def serve(address: str, ready: Any) -> None:
    """Fork programs until the test process has ended."""
    global _address  # noqa: PLW0603 - known to all that is forked from here
    _address = address
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert threading.active_count() == 1
    remember_compositions(pytest.MonkeyPatch())
    with contextlib.suppress(ImportError):  # of the extra that trains
        from skippipe.measure import stages

        stages.STAGE_S, stages.HEAD_S = TIMED_S
    for command in COMPOSED:
        register(command)
    for command, overrides in COMPOSED.items():
        compose(command, overrides)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    waiting: dict[int, socket.socket] = {}
    """who has ordered a process, by its number"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door, selectors.DefaultSelector() as selector:
        door.bind(address)
        door.listen(64)
        ready.send(None)
        selector.register(door, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        selector.register(parent.sentinel, selectors.EVENT_READ)
        while True:
            found = {key.fileobj for key, _ in selector.select()}
            if woken in found:
                os.read(woken, 65536)
                _reap(waiting)
            if door in found:
                customer, _ = door.accept()
                content, descriptors, _, _ = socket.recv_fds(customer, LARGEST, MOST_DESCRIPTORS)
                process = os.fork()
                if process == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.signal(signal.SIGINT, interrupt)
                    _be_program(pickle.loads(content), descriptors, customer)
                waiting[process] = customer
                for descriptor in descriptors:
                    os.close(descriptor)
            if parent.sentinel in found:
                return


def _reap(waiting: dict[int, socket.socket]) -> None:
    """Tell how processes have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            with waiting.pop(process) as customer, contextlib.suppress(OSError):  # who may be gone
                customer.send(_REPLY.pack(_ENDED, status))


def _be_program(order: Order, descriptors: list[int], customer: socket.socket) -> NoReturn:
    """In a fork: become the program, and end with it."""
    status = 1
    try:
        if order.new_session:
            os.setsid()
        os.chdir(order.folder)
        os.environ.clear()
        os.environ.update(order.environment)
        _take_descriptors(order, descriptors, customer)
        if order.first is not None:
            order.first()
        if "RANK" in order.environment:
            Path("/proc/self/comm").write_text(f"rank {order.environment['RANK']}")
        status = _run(order)
    except BaseException:  # noqa: BLE001 - nothing may get past this fork
        traceback.print_exc()
    finally:
        os._exit(status)


def _take_descriptors(order: Order, descriptors: list[int], customer: socket.socket) -> None:
    """Keep what was sent, under the numbers asked for, and close everything else; tell that the program starts."""
    above = max(order.numbers) + 1
    answer, *sent = (fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in (customer.fileno(), *descriptors))
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) not in {answer, *sent}:
            with contextlib.suppress(OSError):  # the one that lists them
                os.close(int(path.name))
    for number, each in zip(order.numbers, sent, strict=True):
        os.dup2(each, number)
        os.close(each)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it lasts as long as the process; so do the others
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(write_through="-u" in order.options)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    with socket.socket(fileno=answer) as told:
        told.send(_REPLY.pack(_STARTED, os.getpid()))


def _run(order: Order) -> int:
    """Run the program as the interpreter would; gives its exit status."""
    status = 1
    start_warm()
    if FIRST in order.environment:
        runpy.run_path(order.environment[FIRST])
    sys.argv = ["-m", *order.arguments]
    if "-P" not in order.options:
        sys.path.insert(0, order.folder)
    warnings.filterwarnings("ignore", message=".* found in sys.modules", module="runpy")
    try:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return status


def start_warm() -> None:
    """From here on this process starts programs of this project warm."""
    for module in list(sys.modules.values()):  # `subprocess`, and that of torchrun
        if vars(module).get("Popen") is Fresh:
            module.Popen = WarmPopen  # type: ignore[attr-defined]
