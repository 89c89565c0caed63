"""Links between GPUs of one machine: the sender's copy engine writes straight into the receiver's memory.

A kernel that waits, as those of NCCL do, holds a multiprocessor meanwhile; products of matrices run on all of them, and
get slower by about 7 % on an H200, however few are held. Here streams wait for numbers in memory instead: that of the
receiver for the number of messages copied, that of the sender for the number of slots that are free again. Neither a
multiprocessor nor the host is involved, so the host runs ahead of the GPU.

Messages travel through a few slots. A stream of its own copies each to where its receive was posted for, in the order
of posting, which is that of sending; so transfers wait for what the proof says and no more
(`skippipe.runtime.deadlock`).
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from skippipe.runtime.links.addresses import machine_id

Edge = tuple[int, int]
"""Sender and receiver."""
SLOTS = 2
"""One is filled while the other is emptied."""
ENOUGH = 2**31 - 1
"""A number for which no stream waits any longer."""


class Inbox:
    """The receiver's end of an edge."""

    def __init__(self, device: torch.device, slot_bytes: int) -> None:
        """Allocate slots, and the number of those that the sender has filled."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slots = torch.empty(SLOTS, slot_bytes, dtype=torch.uint8, device=device)
        self._copied = torch.zeros(1, dtype=torch.int32, device=device)
        self._taken = 0

    def exported(self) -> dict[str, Any]:
        """What the sender needs, as JSON."""
        return {"slots": _exported(self._slots), "copied": _exported(self._copied)}

    def open(self, exported: dict[str, Any]) -> None:
        """Map what the sender has exported; raises as `_opened` does."""
        self._freed = _opened(exported["freed"], torch.int32, self._device)

    def release(self, stream: torch.cuda.Stream) -> None:
        """Have `stream` write that all messages have been copied."""
        _write_number(stream, self._copied, ENOUGH)

    def receive(self, into: Tensor) -> torch.cuda.Event:
        """Copy the next message once the current stream has no use for `into` any more; gives the event of its end."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for part in _parts(into, self._slots.shape[1]):
                slot = self._taken % SLOTS
                self._taken += 1
                _await_number(stream, self._copied, self._taken)
                part.copy_(self._slots[slot, : part.numel()], non_blocking=True)
                _write_number(stream, self._freed, self._taken)
            return _recorded(stream)


class Outbox:
    """The sender's end of an edge."""

    def __init__(self, device: torch.device) -> None:
        """Allocate the number of slots that the receiver has emptied."""
        self._device = device
        self._freed = torch.zeros(1, dtype=torch.int32, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._sent = 0

    def exported(self) -> dict[str, Any]:
        """What the receiver needs, as JSON."""
        return {"freed": _exported(self._freed)}

    def open(self, exported: dict[str, Any]) -> None:
        """Map what the receiver has exported; raises as `_opened` does."""
        self._slots = _opened(exported["slots"], torch.uint8, self._device)
        self._copied = _opened(exported["copied"], torch.int32, self._device)

    def release(self, stream: torch.cuda.Stream) -> None:
        """Have `stream` write that all slots are free."""
        _write_number(stream, self._freed, ENOUGH)

    def send(self, tensor: Tensor) -> torch.cuda.Event:
        """Start copying a message once the current stream has computed it; gives the event of its end."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for part in _parts(tensor, self._slots.shape[1]):
                slot = self._sent % SLOTS
                self._sent += 1
                if self._sent > SLOTS:
                    _await_number(stream, self._freed, self._sent - SLOTS)
                self._slots[slot, : part.numel()].copy_(part, non_blocking=True)
                _write_number(stream, self._copied, self._sent)
            return _recorded(stream)


class PeerWork:
    """A transfer in flight."""

    __slots__ = ("_done",)

    def __init__(self, done: torch.cuda.Event) -> None:
        self._done = done

    def wait(self, timeout_s: float) -> None:
        """Have the current stream wait; see `Work`."""
        del timeout_s
        self._done.wait()


class PeerEdges:
    """Edges between this rank and others on the same machine."""

    def __init__(self, rank: int, device: torch.device, slot_bytes: int, exchange: Callable[[str], list[str]]) -> None:
        """Prepare.

        Args:
            rank: this one.
            device: its GPU.
            slot_bytes: of the usual message; larger ones travel in parts.
            exchange: gives a text of this rank to all, and returns theirs by rank.

        """
        self._rank, self._device, self._slot_bytes, self._exchange = rank, device, slot_bytes, exchange
        self.reached: set[Edge] = set()
        """edges that are connected, the same on all ranks"""
        self._inboxes: dict[int, Inbox] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._releasing = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def connect(self, edges: Collection[Edge]) -> None:
        """Connect the edges whose ends can reach each other. All ranks call this with the same ones."""
        inboxes = {(a, b): Inbox(self._device, self._slot_bytes) for a, b in edges if b == self._rank}
        outboxes = {(a, b): Outbox(self._device) for a, b in edges if a == self._rank}
        ends: dict[Edge, Inbox | Outbox] = {**inboxes, **outboxes}
        torch.cuda.synchronize(self._device)  # the numbers are zero
        exported = {_name(edge): end.exported() for edge, end in ends.items()}
        own = {"machine": machine_id(), "ends": exported}
        by_rank: list[dict[str, Any]] = [json.loads(text) for text in self._exchange(json.dumps(own))]
        failed: list[Edge] = []
        for edge, end in ends.items():
            theirs = by_rank[edge[edge[0] == self._rank]]
            if theirs["machine"] != own["machine"]:
                failed.append(edge)
                continue
            try:
                end.open(theirs["ends"][_name(edge)])
            except (RuntimeError, ImportError):
                failed.append(edge)
        unreachable = {tuple(edge) for text in self._exchange(json.dumps(failed)) for edge in json.loads(text)}
        reached = set(edges) - unreachable
        self.reached |= reached
        self._inboxes |= {edge[0]: inbox for edge, inbox in inboxes.items() if edge in reached}
        self._outboxes |= {edge[1]: outbox for edge, outbox in outboxes.items() if edge in reached}

    def send(self, tensor: Tensor, to_rank: int) -> PeerWork:
        """Start a send over a connected edge."""
        return PeerWork(self._outboxes[to_rank].send(tensor))

    def receive(self, into: Tensor, from_rank: int) -> PeerWork:
        """Start a receive over a connected edge."""
        return PeerWork(self._inboxes[from_rank].receive(into))

    def release(self) -> None:
        """Have streams that wait for other ranks go on, as if these had done their part; called by any thread.

        One that still lives may write smaller numbers afterwards: called again and again, until no stream waits.
        """
        ends: list[Inbox | Outbox] = [*self._inboxes.values(), *self._outboxes.values()]
        with torch.cuda.device(self._device):
            for end in ends:
                end.release(self._releasing)

    def close(self) -> None:
        """Unmap what belongs to other processes, once nothing is written any more."""
        self._releasing.synchronize()
        self._inboxes.clear()
        self._outboxes.clear()


def edges_of(pairs: Iterable[Edge]) -> list[Edge]:
    """Both directions of pairs of ranks, those that share no rank beside each other."""
    wanted = {(min(pair), max(pair)) for pair in pairs}
    # Pairs with the same sum share no rank.
    in_order = sorted(wanted, key=lambda pair: (sum(pair), pair))
    return [edge for low, high in in_order for edge in ((low, high), (high, low))]


def _parts(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """The bytes of a contiguous tensor in parts of at most `most`."""
    assert tensor.is_contiguous(), "its memory is copied as it is"
    memory = tensor.view(-1).view(torch.uint8)
    yield from (memory[begin : begin + most] for begin in range(0, memory.numel(), most))


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _name(edge: Edge) -> str:
    return f"{edge[0]} {edge[1]}"


def _exported(tensor: Tensor) -> list[Any]:
    """What another process needs to map a tensor, as JSON; by the functions that torch.multiprocessing uses."""
    storage: Any = tensor.untyped_storage()
    _, memory, size, offset, counter, counter_offset, event, synchronize = storage._share_cuda_()
    return [list(tensor.shape), memory.hex(), size, offset, counter.hex(), counter_offset, event.hex(), synchronize]


def _opened(exported: list[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Map a tensor of another process, which may be on another GPU of this machine, into the memory of `device`.

    Raises:
        RuntimeError: it cannot be reached.
        ImportError: there is no `cuda.bindings`.

    """
    from cuda.bindings import driver  # type: ignore[import-untyped]  # noqa: F401, PLC0415 - torch needs it for GPUs

    shape, memory, size, offset, counter, counter_offset, event, synchronize = exported
    new_shared: Any = torch.UntypedStorage._new_shared_cuda  # noqa: SLF001
    # torch need not know that the memory is another GPU's: the driver does.
    storage = new_shared(
        device.index, bytes.fromhex(memory), size, offset, bytes.fromhex(counter), counter_offset,
        bytes.fromhex(event), synchronize,
    )  # fmt: skip
    return torch.empty(0, dtype=dtype, device=device).set_(storage).view(shape)


def _await_number(stream: torch.cuda.Stream, number: Tensor, least: int) -> None:
    """Have a stream wait until a number in the memory of its GPU is at least `least`."""
    from cuda.bindings import driver  # noqa: PLC0415 - see above

    flags = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    _check(driver.cuStreamWaitValue32(stream.cuda_stream, number.data_ptr(), least, flags))


def _write_number(stream: torch.cuda.Stream, number: Tensor, value: int) -> None:
    """Have a stream write a number, after everything that it has written before can be seen."""
    from cuda.bindings import driver  # noqa: PLC0415 - see above

    flags = driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT
    _check(driver.cuStreamWriteValue32(stream.cuda_stream, number.data_ptr(), value, flags))


def _check(result: tuple[Any, ...]) -> None:
    if int(result[0]):
        raise RuntimeError(f"CUDA: {result[0].name}")
