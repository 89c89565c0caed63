"""Transfer of tensors between ranks: one small protocol and its implementations.

A link knows nothing of plans and guarantees only what every backend does: a send may block until its receive is posted
(rendezvous), and messages with the same tag between two ranks arrive in sending order.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """A transfer in flight."""

    def wait(self, timeout_s: float) -> None:
        """Return when the tensor has been sent or filled.

        Raises:
            TimeoutError: it took more than `timeout_s` seconds; the link is unusable afterwards.
            OSError: the connection broke.

        """


class Link(Protocol):
    """Transfers between this rank and any other, issued by one thread."""

    def isend(self, tensor: "Tensor", to_rank: int, tag: int) -> Work:
        """Start sending a contiguous tensor, which must not change until the transfer has finished."""

    def irecv(self, tensor: "Tensor", from_rank: int, tag: int) -> Work:
        """Start receiving into a contiguous tensor of the sender's shape and dtype."""
