"""Transfer of tensors between ranks: one small protocol and its implementations.

A link knows nothing of plans and guarantees only what every backend does: a send may block until its receive is posted
(rendezvous), and messages with the same tag between two ranks arrive in sending order.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """A transfer in flight."""

    def wait(self, timeout_s: float) -> None:
        """Return when the tensor has been sent or filled; or have the GPU's current stream wait for it, and return.

        Raises:
            TimeoutError: it took more than `timeout_s` seconds; the link is unusable afterwards.
            OSError: the connection broke.

        """


class Interruptible(Protocol):
    """What holds transfers that nothing but this can end."""

    def interrupt(self) -> None:
        """Have all transfers end, with whatever has arrived; called by any thread, and returns at once."""

    def close(self) -> None:
        """Wait until the device is done, and free what transfers needed; no transfer may follow."""


class Link(Protocol):
    """Transfers between this rank and any other, issued by one thread."""

    @property
    def overlaps_sums(self) -> bool:
        """Whether sums are taken while the device computes, so that it pays to start them early and in parts."""

    def connect(self, pairs: Collection[tuple[int, int]], groups: Collection[tuple[int, ...]] = ()) -> None:
        """Prepare for transfers between pairs of ranks, in both directions, and for sums over groups of ranks.

        All ranks call this with the same arguments before the first transfer; what is connected already stays.
        """

    def isend(self, tensor: "Tensor", to_rank: int, tag: int) -> Work:
        """Start sending a contiguous tensor, which must not change until the transfer has finished."""

    def irecv(self, tensor: "Tensor", from_rank: int, tag: int) -> Work:
        """Start receiving into a contiguous tensor of the sender's shape and dtype."""

    def isum(self, tensors: "Sequence[Tensor]", rank: int, ranks: Sequence[int]) -> Work:
        """Start an all-reduce (sum) of tensors in place over `ranks`, of which `rank` is this one.

        Shapes, dtypes and order of the tensors are the same on all ranks, as are the order of `ranks` and that of sums.
        Unless the link `overlaps_sums`, the sum is taken when it is waited for.
        """
