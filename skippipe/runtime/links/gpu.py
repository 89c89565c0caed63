"""Links between GPUs: over NCCL, and by copies from GPU to GPU where both are on one machine.

NCCL knows no tags, and runs the operations of a communicator in the order in which they are issued, on one stream. With
a communicator for each direction, messages from one rank to another arrive in the order in which they are sent, as the
proof assumes (`skippipe.runtime.deadlock`), and wait for no others. Communicators are made, and used once, before the
first message, in an order that all ranks share: made at the first use, they could wait for each other. That first use
waits for the other ranks and cannot be broken off, so it has a thread of its own, which is left behind if one is lost.

A transfer begins when the current stream has done all that was issued before it; `wait` has the current stream wait for
its end, and the host goes on.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch import distributed as dist

from skippipe.errors import ActionError
from skippipe.runtime.links import Work
from skippipe.runtime.links.gloo import first_line
from skippipe.runtime.links.peer import Edge, PeerEdges, edges_of
from skippipe.runtime.links.timeouts import call_with_timeout

NEVER = timedelta(days=30)
"""The host watches the time itself (`skippipe.runtime.timeline`), and can say which action has not ended."""
RESTING_S = 20.0
"""How long a GPU may take for what it was given before transfers were broken off."""
RELEASE_PAUSE_S = 0.02
"""Between two times that waiting streams are released."""
BLOCKS_PER_TRANSFER = 4
"""Thread blocks, each of which holds a multiprocessor, that a transfer may use."""


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


class GpuLink:
    """Transfers of GPU tensors between ranks that have a GPU each; sums by NCCL.

    A context manager: where it is left by an error, transfers in flight are broken off.
    """

    overlaps_sums = True

    def __init__(
        self, rank: int, device: torch.device, peers: PeerEdges | None = None, connect_timeout_s: float = 120.0
    ) -> None:
        """Prepare.

        Args:
            rank: this rank's number in the job's process group.
            device: its GPU.
            peers: connects ranks of one machine; None: all messages go by NCCL.
            connect_timeout_s: how long the ranks of one communicator may take to connect, in seconds.

        """
        self._rank, self._device, self._peers = rank, device, peers
        self._connect_timeout_s = connect_timeout_s
        self._edges: dict[tuple[int, int], dist.ProcessGroup | None] = {}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._interrupted, self._closed = threading.Event(), threading.Event()
        self._breaker = threading.Thread(target=self._break_off, name="breaker", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self.interrupt()
        with contextlib.suppress(ActionError):  # the first error says more
            self.close()

    def interrupt(self) -> None:
        """Have streams go on that wait for ranks that are gone, and the kernels of NCCL end; see `Interruptible`."""
        if not self._interrupted.is_set():
            self._interrupted.set()
            self._breaker.start()

    def close(self) -> None:
        """Wait for the GPU, and free what transfers needed; see `Interruptible`.

        Raises:
            ActionError: the GPU has failed, or something else than a transfer keeps it.

        """
        if self._closed.is_set():
            return
        failure = _failure_to_rest(self._device)
        self._closed.set()
        if self._interrupted.is_set():
            self._breaker.join(RESTING_S)  # else it would write into memory that is freed next
            if self._breaker.is_alive():
                failure = failure or "communicators of NCCL cannot be aborted"
        if failure is not None:
            raise ActionError(f"after the last transfer: {failure}")
        if self._peers is not None:
            self._peers.close()

    def _break_off(self) -> None:
        """Release what waits, from a thread of its own: the main one may itself wait for the GPU."""
        aborted = set[int]()
        while not self._closed.wait(RELEASE_PAUSE_S):
            if self._peers is not None:
                with contextlib.suppress(RuntimeError):  # of a GPU that has failed, as `close` says
                    self._peers.release()
            for group in [*self._edges.values(), *self._groups.values()]:
                if group is not None and id(group) not in aborted:
                    aborted.add(id(group))
                    group.abort()

    def connect(self, pairs: Collection[tuple[int, int]], groups: Collection[tuple[int, ...]] = ()) -> None:
        """Connect edges, and make communicators for the others and for groups; see `Link`.

        Raises:
            ActionError: a rank is lost meanwhile, or does not come in time.

        """
        new = [edge for edge in edges_of(pairs) if edge not in self._edges and self._peers_over(edge) is None]
        if self._peers is not None and new:
            self._peers.connect(new)
        for edge in new:
            if self._peers_over(edge) is None:
                self._edges[edge] = self._new_group(edge, BLOCKS_PER_TRANSFER)
                if self._rank in edge:
                    self._use_first(edge, partial(self._transfer, edge, self._zero()))
        for ranks in sorted({tuple(sorted(group)) for group in groups}):
            if ranks not in self._groups:
                group = self._groups[ranks] = self._new_group(ranks, None)
                if group is not None:
                    self._use_first(ranks, partial(group.allreduce_coalesced, [self._zero()]))

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> Work:
        """Start a send; see `Link`."""
        del tag
        edge = (self._rank, to_rank)
        peers = self._peers_over(edge)
        return self._transfer(edge, tensor) if peers is None else peers.send(tensor, to_rank)

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> Work:
        """Start a receive; see `Link`."""
        del tag
        edge = (from_rank, self._rank)
        peers = self._peers_over(edge)
        return self._transfer(edge, tensor) if peers is None else peers.receive(tensor, from_rank)

    def isum(self, tensors: Sequence[Tensor], rank: int, ranks: Sequence[int]) -> NcclWork:
        """Sum by NCCL's own all-reduce, tensors of one type in one kernel; see `Link`."""
        del rank
        group = self._groups[tuple(sorted(ranks))]
        assert group is not None, f"rank {self._rank} is not among {ranks}"
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        return NcclWork(*(group.allreduce_coalesced(same) for same in by_type.values()))

    def _peers_over(self, edge: Edge) -> PeerEdges | None:
        """What transfers over an edge within this machine; None: NCCL does."""
        return self._peers if self._peers is not None and edge in self._peers.reached else None

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

    def _zero(self) -> Tensor:
        return torch.zeros(1, device=self._device)

    def _use_first(self, ranks: Sequence[int], use: Callable[[], Work | dist.Work]) -> None:
        """Use a communicator for the first time, which connects its ranks."""

        def connect() -> None:
            torch.cuda.set_device(self._device)  # each thread has its own
            use()
            torch.cuda.synchronize(self._device)

        try:
            call_with_timeout(connect, self._interrupted, self._connect_timeout_s)
        except OSError as error:
            others = ", ".join(str(rank) for rank in ranks if rank != self._rank)
            raise ActionError(f"connecting GPUs by NCCL, with rank {others}: {error}") from error

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


def _failure_to_rest(device: torch.device) -> str | None:
    """Wait until a GPU has nothing left to do; says why that does not come to be."""
    failures: list[str | None] = []

    def rest() -> None:
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            failures.append(first_line(error))
        else:
            failures.append(None)

    thread = threading.Thread(target=rest, name="rest", daemon=True)
    thread.start()
    thread.join(RESTING_S)
    return failures[0] if failures else f"the GPU is still busy after {RESTING_S:g} s"
