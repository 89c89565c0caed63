"""Links over a Gloo process group of torch.distributed: tensors in the memory of CPUs, over TCP."""

from datetime import timedelta

from torch import Tensor
from torch import distributed as dist


class GlooWork:
    """One send or receive of Gloo."""

    __slots__ = ("_work",)

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def wait(self, timeout_s: float) -> None:
        """Wait; see `Work`. Gloo gives up the connections of the whole group where the time runs out."""
        try:
            self._work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            kind = TimeoutError if "imed out" in str(error) else ConnectionError
            raise kind(first_line(error)) from None


class GlooLink:
    """Point-to-point transfers within one Gloo group; ranks are those of the group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Take a group; without one, that which `torch.distributed.init_process_group` has made."""
        group = group or dist.group.WORLD
        if group is None:
            raise RuntimeError("there is no process group yet")
        self._group = group

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> GlooWork:
        """Begin to send; see `Link`."""
        try:
            return GlooWork(self._group.send([tensor], to_rank, tag))
        except RuntimeError as error:
            raise ConnectionError(first_line(error)) from None

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> GlooWork:
        """Begin to receive; see `Link`."""
        try:
            return GlooWork(self._group.recv([tensor], from_rank, tag))
        except RuntimeError as error:
            raise ConnectionError(first_line(error)) from None


def first_line(error: BaseException) -> str:
    """What a backend says, without its place in the backend's sources and without advice."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if text.startswith("[") and "] " in text:
        text = text.split("] ", 1)[1]
    return text.split(". This is typically", 1)[0]
