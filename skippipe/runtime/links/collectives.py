"""All-reduce built from the same point-to-point transfers as everything else: what is predicted is what runs.

Results are bit-identical on all ranks and from run to run.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from skippipe.runtime.links import Link

RING_TAG, UP_TAG, DOWN_TAG, COPY_TAG, TIMES_TAG = 0, 1, 2, 3, 4
"""Of messages that are no results of tasks."""

TREE_WIDTH = 32
"""Children of a rank in a tree: over slow links each level costs a latency, and a child only some microseconds."""


def ring_sum(link: Link, tensors: Sequence[Tensor], rank: int, ranks: Sequence[int], timeout_s: float) -> None:
    """Ring all-reduce (sum) in place: 2 (r - 1) steps, each with 1/r of the values.

    Args:
        link: the transfers.
        tensors: with the same shapes, dtypes and order on all ranks.
        rank: this rank, one of `ranks`.
        ranks: the r ranks in ring order, the same on all of them.
        timeout_s: timeout of each transfer, in seconds.

    Raises:
        TimeoutError, OSError: see `skippipe.runtime.links.Work`.

    """
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor)
    for same in by_type.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        _ring_sum_flat(link, flat, rank, ranks, timeout_s)
        begin = 0
        for tensor in same:
            tensor.copy_(flat[begin : begin + tensor.numel()].view_as(tensor))
            begin += tensor.numel()


def _ring_sum_flat(link: Link, flat: Tensor, rank: int, ranks: Sequence[int], timeout_s: float) -> None:
    size, index = len(ranks), ranks.index(rank)
    after, before = ranks[(index + 1) % size], ranks[index - 1]
    chunks = flat.tensor_split(size)
    arrived = torch.empty_like(chunks[0])  # the first chunk is never shorter than the others
    for step in range(2 * (size - 1)):
        out, into = chunks[(index - step) % size], chunks[(index - step - 1) % size]
        summing = step < size - 1
        target = arrived[: into.numel()] if summing else into
        receive = link.irecv(target, before, RING_TAG)
        send = link.isend(out, after, RING_TAG)
        receive.wait(timeout_s)
        send.wait(timeout_s)
        if summing:
            into += target


class RingSum:
    """A ring all-reduce that runs when it is waited for, since each of its steps needs the host."""

    __slots__ = ("_link", "_rank", "_ranks", "_tensors")

    def __init__(self, link: Link, tensors: Sequence[Tensor], rank: int, ranks: Sequence[int]) -> None:
        self._link, self._tensors, self._rank, self._ranks = link, tensors, rank, ranks

    def wait(self, timeout_s: float) -> None:
        """Sum, with a timeout for each transfer; see `Work`."""
        ring_sum(self._link, self._tensors, self._rank, self._ranks, timeout_s)


class RingSums:
    """What links have in common whose ranks are all connected, and whose sums are rings of their own transfers."""

    overlaps_sums = False

    def connect(self, pairs: Collection[tuple[int, int]], groups: Collection[tuple[int, ...]] = ()) -> None:
        """Return at once; see `Link`."""

    def isum(self: Link, tensors: Sequence[Tensor], rank: int, ranks: Sequence[int]) -> RingSum:
        """Sum around a ring; see `Link`."""
        return RingSum(self, tensors, rank, ranks)


def tree_sum(link: Link, values: Tensor, rank: int, ranks: Sequence[int], timeout_s: float) -> None:
    """Tree all-reduce (sum) of a short vector in place: up a tree and down again, two latencies per level.

    Elements are added in tree order, from the leaves up; all ranks get the root's sum.

    Args:
        link: the transfers.
        values: shape (n,), the same n and dtype on all ranks.
        rank: this rank, one of `ranks`.
        ranks: the members, the same on all of them; the first is the root.
        timeout_s: timeout of each transfer, in seconds.

    Raises:
        TimeoutError, OSError: see `skippipe.runtime.links.Work`.

    """
    index = ranks.index(rank)
    children = ranks[TREE_WIDTH * index + 1 : TREE_WIDTH * (index + 1) + 1]
    arrived = [torch.empty_like(values) for _ in children]
    receives = [link.irecv(part, child, UP_TAG) for part, child in zip(arrived, children, strict=True)]
    for part, receive in zip(arrived, receives, strict=True):
        receive.wait(timeout_s)
        values += part
    if index:
        parent = ranks[(index - 1) // TREE_WIDTH]
        link.isend(values, parent, UP_TAG).wait(timeout_s)
        link.irecv(values, parent, DOWN_TAG).wait(timeout_s)
    for send in [link.isend(values, child, DOWN_TAG) for child in children]:
        send.wait(timeout_s)
