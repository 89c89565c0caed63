"""Transfers of GPU tensors over a link between hosts, through pinned memory."""

from collections.abc import Collection

import torch
from torch import Tensor

from skippipe.devices import await_stream
from skippipe.runtime.links import Link, Work
from skippipe.runtime.links.collectives import RingSums


class StagedSend:
    """A send in flight; it keeps the buffer."""

    __slots__ = ("_staged", "_work")

    def __init__(self, work: Work, staged: Tensor) -> None:
        self._work, self._staged = work, staged

    def wait(self, timeout_s: float) -> None:
        """Wait; see `Work`."""
        self._work.wait(timeout_s)


class StagedReceive:
    """A receive in flight; the tensor is filled when it is waited for."""

    __slots__ = ("_staged", "_tensor", "_work")

    def __init__(self, work: Work, staged: Tensor, tensor: Tensor) -> None:
        self._work, self._staged, self._tensor = work, staged, tensor

    def wait(self, timeout_s: float) -> None:
        """Wait for the message, and have the current stream copy it; see `Work`."""
        self._work.wait(timeout_s)
        self._tensor.copy_(self._staged, non_blocking=True)


class StagedLink(RingSums):
    """A link for tensors of any device over one for tensors of the host."""

    def __init__(self, link: Link) -> None:
        """Take the link between the hosts."""
        self._link = link

    def connect(self, pairs: Collection[tuple[int, int]], groups: Collection[tuple[int, ...]] = ()) -> None:
        """Prepare; see `Link`."""
        self._link.connect(pairs, groups)

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> Work:
        """Start a send, once the GPU has computed the tensor; see `Link`."""
        staged = tensor
        if tensor.is_cuda:
            staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            staged.copy_(tensor, non_blocking=True)
            await_stream(tensor.device)
        return StagedSend(self._link.isend(staged, to_rank, tag), staged)

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> Work:
        """Start a receive; see `Link`."""
        if not tensor.is_cuda:
            return self._link.irecv(tensor, from_rank, tag)
        staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return StagedReceive(self._link.irecv(staged, from_rank, tag), staged, tensor)
