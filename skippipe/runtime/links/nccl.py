"""Links over NCCL: transfers between GPUs, each direction of each pair of ranks on a communicator of its own.

NCCL knows no tags, and runs the operations of a communicator in the order in which they are issued, on one stream. With
a communicator for each direction, messages from one rank to another arrive in the order in which they are sent, as the
proof assumes (`skippipe.runtime.deadlock`), and wait for no others. Communicators are made, and used once, before the
first message, in an order that all ranks share: made at the first use, they could wait for each other.

Nothing here blocks the host. A transfer begins when the current stream has done all that was issued before it; `wait`
has the current stream wait for its end. A kernel that waits for its peer holds some of the GPU's multiprocessors, so
each communicator may use few.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch import distributed as dist

from skippipe.runtime.links.gloo import first_line

NEVER = timedelta(days=30)
"""The host watches the time itself (`skippipe.runtime.timeline`), and can say which action has not ended."""
BLOCKS_PER_TRANSFER = 4
"""Thread blocks, each on a multiprocessor, that a transfer may use."""


class NcclWork:
    """A transfer or sum in flight."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: dist.Work) -> None:
        self._parts = parts

    def wait(self, timeout_s: float) -> None:
        """Have the current stream wait; see `Work`."""
        del timeout_s
        for part in self._parts:
            part.wait()


class NcclLink:
    """Transfers of GPU tensors between ranks that have a GPU each.

    A context manager: where it is left by an error, transfers in flight are aborted.
    """

    overlaps_sums = True

    def __init__(self, rank: int, device: torch.device) -> None:
        """Take this rank's number in the job's process group, and its GPU."""
        self._rank, self._device = rank, device
        self._edges: dict[tuple[int, int], dist.ProcessGroup | None] = {}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # kernels may wait for ranks that are gone
            for group in [*self._edges.values(), *self._groups.values()]:
                if group is not None:
                    group.abort()

    def connect(self, pairs: Collection[tuple[int, int]], groups: Collection[tuple[int, ...]] = ()) -> None:
        """Make communicators, and use each once; see `Link`."""
        wanted = {(min(pair), max(pair)) for pair in pairs}
        # Pairs with the same sum share no rank, so that they connect at the same time.
        for low, high in sorted(wanted, key=lambda pair: (sum(pair), pair)):
            for edge in ((low, high), (high, low)):
                if edge not in self._edges:
                    self._edges[edge] = self._new_group(edge, BLOCKS_PER_TRANSFER)
                    self._try_edge(edge)
        for ranks in sorted({tuple(sorted(group)) for group in groups}):
            if ranks not in self._groups:
                group = self._groups[ranks] = self._new_group(ranks, None)
                if group is not None:
                    group.allreduce_coalesced([torch.zeros(1, device=self._device)]).wait()
                    torch.cuda.synchronize(self._device)

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> NcclWork:
        """Start a send; see `Link`."""
        del tag
        return self._transfer((self._rank, to_rank), tensor)

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> NcclWork:
        """Start a receive; see `Link`."""
        del tag
        return self._transfer((from_rank, self._rank), tensor)

    def isum(self, tensors: Sequence[Tensor], rank: int, ranks: Sequence[int]) -> "NcclWork":
        """Sum by NCCL's own all-reduce, tensors of one type in one kernel; see `Link`."""
        del rank
        group = self._groups[tuple(sorted(ranks))]
        assert group is not None, f"rank {self._rank} is not among {ranks}"
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        return NcclWork(*(group.allreduce_coalesced(same) for same in by_type.values()))

    def _transfer(self, edge: tuple[int, int], tensor: Tensor) -> NcclWork:
        group = self._edges.get(edge)
        assert group is not None, f"no communicator from rank {edge[0]} to {edge[1]}"
        assert tensor.is_contiguous(), "NCCL would send other values"
        peer = edge[0] if edge[1] == self._rank else edge[1]
        run = group.send if edge[0] == self._rank else group.recv
        try:
            return NcclWork(run([tensor], int(peer > self._rank), 0))
        except RuntimeError as error:
            raise ConnectionError(first_line(error)) from None

    def _try_edge(self, edge: tuple[int, int]) -> None:
        if self._rank in edge:
            self._transfer(edge, torch.zeros(1, device=self._device)).wait(0.0)
            torch.cuda.synchronize(self._device)

    @staticmethod
    def _new_group(ranks: Sequence[int], blocks: int | None) -> dist.ProcessGroup | None:
        """Make a communicator; all ranks call this, and those that are not in it get None."""
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = NEVER  # noqa: SLF001 - else torch warns that the other one counts
        options.is_high_priority_stream = True  # a transfer starts although kernels of a stage are waiting
        if blocks is not None:
            options.config.max_ctas = blocks
        group = dist.new_group(sorted(ranks), timeout=NEVER, backend="nccl", pg_options=options)
        return group if isinstance(group, dist.ProcessGroup) else None
