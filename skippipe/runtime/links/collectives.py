"""Sums over ranks made of the same point-to-point transfers as everything else: what is predicted is what runs.

Both give every rank the same bits, and the same from run to run.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from skippipe.runtime.links import Link

RING_TAG, UP_TAG, DOWN_TAG = 0, 1, 2


def ring_sum(link: Link, tensors: Sequence[Tensor], rank: int, ranks: Sequence[int], timeout_s: float) -> None:
    """Sum tensors over ranks in place: 2 (r - 1) steps around the ring, each with one r-th of the values.

    Args:
        link: the transfers.
        tensors: same shapes and types on all ranks, in the same order; any shape, on the CPU.
        rank: this rank, one of `ranks`.
        ranks: the r ranks in the order of the ring, the same everywhere.
        timeout_s: the most that each of the transfers may take, in seconds.

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
    size, place = len(ranks), ranks.index(rank)
    after, before = ranks[(place + 1) % size], ranks[place - 1]
    chunks = flat.tensor_split(size)
    arrived = torch.empty_like(chunks[0])  # the first chunk is one of the longest
    for step in range(2 * (size - 1)):
        out, into = chunks[(place - step) % size], chunks[(place - step - 1) % size]
        summing = step < size - 1
        target = arrived[: into.numel()] if summing else into
        receive = link.irecv(target, before, RING_TAG)
        send = link.isend(out, after, RING_TAG)
        receive.wait(timeout_s)
        send.wait(timeout_s)
        if summing:
            into += target


def tree_sum(link: Link, values: Tensor, rank: int, ranks: Sequence[int], timeout_s: float) -> None:
    """Sum a short vector over ranks in place: up a binary tree and down again.

    Every element is added in the order of the tree, from the leaves up, and the root's sum is what all ranks get.

    Args:
        link: the transfers.
        values: shape (n,), the same n and type on all ranks.
        rank: this rank, one of `ranks`.
        ranks: the members, the same everywhere; the first is the root.
        timeout_s: the most that each of the transfers may take, in seconds.

    Raises:
        TimeoutError, OSError: see `skippipe.runtime.links.Work`.

    """
    place = ranks.index(rank)
    children = [ranks[child] for child in (2 * place + 1, 2 * place + 2) if child < len(ranks)]
    arrived = [torch.empty_like(values) for _ in children]
    receives = [link.irecv(part, child, UP_TAG) for part, child in zip(arrived, children, strict=True)]
    for part, receive in zip(arrived, receives, strict=True):
        receive.wait(timeout_s)
        values += part
    if place:
        parent = ranks[(place - 1) // 2]
        link.isend(values, parent, UP_TAG).wait(timeout_s)
        link.irecv(values, parent, DOWN_TAG).wait(timeout_s)
    for send in [link.isend(values, child, DOWN_TAG) for child in children]:
        send.wait(timeout_s)
