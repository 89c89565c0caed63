"""How tensors get from rank to rank: one small protocol, and what implements it.

A link knows nothing of plans, and promises only what the slowest backend does: a send may last until its receive is
posted (rendezvous), and between two ranks messages with the same tag arrive in the order in which they are sent.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """A transfer under way."""

    def wait(self, timeout_s: float) -> None:
        """Return when the tensor has been sent or filled.

        Raises:
            TimeoutError: it took more than `timeout_s` seconds; the link is of no more use then.
            OSError: the connection is broken.

        """


class Link(Protocol):
    """Transfers between this rank and any other, all issued by one thread."""

    def isend(self, tensor: "Tensor", to_rank: int, tag: int) -> Work:
        """Begin to send a contiguous tensor, which must stay as it is until the transfer has ended."""

    def irecv(self, tensor: "Tensor", from_rank: int, tag: int) -> Work:
        """Begin to fill a contiguous tensor of the shape and type that the other rank sends."""
