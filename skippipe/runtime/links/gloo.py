"""Links over a Gloo process group of torch.distributed: CPU tensors over TCP."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path

from torch import Tensor
from torch import distributed as dist

from skippipe.runtime.links.collectives import RingSums
from skippipe.runtime.links.waiting import WaitingThread

LARGE_BYTES = 16 * 1024
"""Of a message this large, a part may be under way when its connection breaks: then Gloo does not wake those who wait
for it, at either end, before their time is over. Smaller ones leave in a single burst."""


class GlooWork:
    """One Gloo send or receive."""

    __slots__ = ("_waiting", "_work")

    def __init__(self, work: dist.Work, waiting: WaitingThread | None = None) -> None:
        """Take the work, and the thread that waits for it; None: whoever calls `wait` does."""
        self._work, self._waiting = work, waiting

    def wait(self, timeout_s: float) -> None:
        """Wait; see `Work`. On a timeout Gloo closes all connections of the group."""
        wait = partial(self._work.wait, timedelta(seconds=timeout_s))
        try:
            if self._waiting is None:
                wait()
            else:
                self._waiting.call(wait)
        except RuntimeError as error:
            kind = TimeoutError if "imed out" in str(error) else ConnectionError
            raise kind(first_line(error)) from None


class GlooLink(RingSums):
    """Point-to-point transfers within one Gloo group; ranks are those of the group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Take a group; default: the one of `torch.distributed.init_process_group`."""
        group = group or dist.group.WORLD
        if group is None:
            raise RuntimeError("no process group: call init_process_group first")
        self._group, self._waiting = group, WaitingThread()
        self._has_large = False
        """whether a message was large: a smaller one may stand behind it, and fails no sooner"""

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> GlooWork:
        """Start a send; see `Link`."""
        try:
            return self._work_of(tensor, self._group.send([tensor], to_rank, tag))
        except RuntimeError as error:
            raise ConnectionError(first_line(error)) from None

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> GlooWork:
        """Start a receive; see `Link`."""
        try:
            return self._work_of(tensor, self._group.recv([tensor], from_rank, tag))
        except RuntimeError as error:
            raise ConnectionError(first_line(error)) from None

    def interrupt(self) -> None:
        """Have transfers that are waited for fail, whose connections were shut down; see `Interruptible`."""
        self._waiting.interrupt()

    def close(self) -> None:
        """Need no thread any more; see `Interruptible`."""
        self._waiting.close()

    def _work_of(self, tensor: Tensor, work: dist.Work) -> GlooWork:
        self._has_large |= tensor.nbytes >= LARGE_BYTES
        return GlooWork(work, self._waiting if self._has_large else None)


def open_connections() -> frozenset[int]:
    """File descriptors of this process's TCP connections."""
    return frozenset(int(path.name) for path in Path("/dev/fd").iterdir() if _is_connection(int(path.name)))


def _is_connection(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.getpeername()  # fails where it only listens
            return copy.family in {socket.AF_INET, socket.AF_INET6}
    except OSError:
        return False


def shut_down(connections: Iterable[int]) -> None:
    """Break connections off, by their file descriptors: whoever waits for a message, at either end, fails at once.

    Gloo has no other way to wake a thread that waits: the `abort` of its groups leaves it waiting. Nor does this wake
    those that wait for a message of which a part was under way: `GlooLink.interrupt` does.
    """
    for descriptor in connections:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.shutdown(socket.SHUT_RDWR)


def first_line(error: BaseException) -> str:
    """First line of a backend's error, without its source location and advice."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if text.startswith("[") and "] " in text:
        text = text.split("] ", 1)[1]
    return text.split(". This is typically", 1)[0]
