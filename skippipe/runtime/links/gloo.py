"""Links over a Gloo process group of torch.distributed: CPU tensors over TCP."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from torch import Tensor
from torch import distributed as dist

from skippipe.runtime.links.collectives import RingSums


class GlooWork:
    """One Gloo send or receive."""

    __slots__ = ("_work",)

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def wait(self, timeout_s: float) -> None:
        """Wait; see `Work`. On a timeout Gloo closes all connections of the group."""
        try:
            self._work.wait(timedelta(seconds=timeout_s))
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
        self._group = group

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> GlooWork:
        """Start a send; see `Link`."""
        try:
            return GlooWork(self._group.send([tensor], to_rank, tag))
        except RuntimeError as error:
            raise ConnectionError(first_line(error)) from None

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> GlooWork:
        """Start a receive; see `Link`."""
        try:
            return GlooWork(self._group.recv([tensor], from_rank, tag))
        except RuntimeError as error:
            raise ConnectionError(first_line(error)) from None


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

    Gloo has no other way to wake a thread that waits: the `abort` of its groups leaves it waiting.
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
