"""Latency and bandwidth between any two ranks, timed over the links that training uses, in rounds of disjoint pairs."""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skippipe.measure.timing import Timing, seconds_of, summarize
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import tree_sum
from skippipe.runtime.message import MessageSpec

Floats = NDArray[np.float64]

SHORT_MESSAGES = 9
"""Messages of a byte from which the latency is taken."""
PART_MESSAGES = 2
"""Messages of a part of the real size from which the time of the real one is extrapolated."""
PART = 8
"""That part: one in so many bytes."""
GROWTH_ROUND_TRIPS = 4
"""A new TCP connection sends little per round trip, and more each time. Before messages are timed it has to carry what
the link can in so many round trips, but no more than a message of the real size."""
FULL_MESSAGES = 9
"""Most messages of the real size, in each direction."""
FULL_S = 0.25
"""How long these may take, in each direction."""
NORMS = 5
LOCAL_BANDWIDTH = 1e12
"""Bytes per second between two nodes of one rank, where nothing is sent."""
SHORTEST_S = 1e-9


class Exchange(Protocol):
    """What ranks that measure together tell each other."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def world(self) -> int:
        """Number of ranks."""

    @property
    def timeout_s(self) -> float:
        """Longest wait for a message."""

    def all_gather(self, key: str, text: str) -> list[str]:
        """Publish this rank's text and receive those of all, by rank."""

    def transferring(self, what: str, ranks: Iterable[int]) -> AbstractContextManager[None]:
        """Within: transfers between `ranks`; an error names `what` they are for."""


class DirectionTimes(NamedTuple):
    """Messages from one rank to another."""

    latency: Timing
    """half a round trip of a byte"""
    part_s: float
    """median for a message of one in `PART` bytes, beyond the latency"""
    full: Timing | None
    """for messages of the real size, beyond the latency; None: they take too long to be sampled in both directions"""


@dataclass(frozen=True)
class LinkTimes:
    """All links; matrices of shape (ranks, ranks), row = sender."""

    latency_s: Floats
    bandwidth: Floats
    """bytes per second, for messages of the real size"""
    latency_spread_s: Floats
    message_spread_s: Floats
    """of the time of a message of the real size"""
    messages: NDArray[np.int64]
    """messages of the real size that were timed; 0: extrapolated"""
    error: float
    """median relative error of extrapolated times, where they could be compared; 0 if there are none"""


def time_links(
    exchange: Exchange,
    link: Link,
    message_spec: MessageSpec,
    key: str,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> LinkTimes:
    """Time messages in both directions between any two ranks. All ranks call this.

    A node's messages to all others take at most about 1.5 times as long as sending each of them one of the real size,
    and some round trips.

    Args:
        exchange: the ranks.
        link: between them.
        message_spec: the messages.
        key: of the exchanges, used once in a job.
        report: told after each round how many of all rounds are done.

    """
    link.connect(set(itertools.combinations(range(exchange.world), 2)))
    messages = _Messages(link, message_spec, exchange)
    own: dict[int, DirectionTimes] = {}
    all_rounds = rounds(exchange.world)
    for number, pairs in enumerate(all_rounds):
        for a, b in pairs:
            if exchange.rank in (a, b):
                with exchange.transferring("messages to be timed", (a, b)):
                    forth, back = (
                        messages.time(a, b, always=(a + b) % 2 == 0),
                        messages.time(b, a, always=(a + b) % 2 == 1),
                    )
                own[a + b - exchange.rank] = forth if exchange.rank == a else back
        exchange.all_gather(f"timed {number}, {key}", "")
        report(number + 1, len(all_rounds))
    gathered = exchange.all_gather(f"links, {key}", json.dumps(own))
    return link_times([_parsed(text) for text in gathered], message_spec.payload_bytes)


def _parsed(text: str) -> dict[int, DirectionTimes]:
    return {
        int(peer): DirectionTimes(Timing(*latency), part_s, None if full is None else Timing(*full))
        for peer, (latency, part_s, full) in json.loads(text).items()
    }


def link_times(by_rank: list[dict[int, DirectionTimes]], size_bytes: int) -> LinkTimes:
    """Latency and bandwidth from what each rank has timed, by receiving rank; messages have `size_bytes`."""
    world = len(by_rank)
    latency_s, latency_spread_s, message_spread_s = (np.zeros((world, world)) for _ in range(3))
    bandwidth, counts = np.full((world, world), LOCAL_BANDWIDTH), np.zeros((world, world), dtype=np.int64)
    errors = []
    for sender, own in enumerate(by_rank):
        for receiver, times in own.items():
            extrapolated_s = PART * times.part_s
            message_s = extrapolated_s if times.full is None else times.full.median_s
            message_s = max(message_s, size_bytes / LOCAL_BANDWIDTH)  # noise may leave nothing of it
            at = (sender, receiver)
            latency_s[at], latency_spread_s[at] = times.latency.median_s, times.latency.spread_s
            bandwidth[at] = size_bytes / message_s
            if times.full is not None:
                message_spread_s[at], counts[at] = times.full.spread_s, times.full.samples
                errors.append(abs(extrapolated_s - message_s) / message_s)
    has_extrapolated = any(times.full is None for own in by_rank for times in own.values())
    error = statistics.median(errors) if errors and has_extrapolated else 0.0
    return LinkTimes(latency_s, bandwidth, latency_spread_s, message_spread_s, counts, error)


def full_messages(message_s: float, *, always: bool) -> int:
    """How many messages of the real size are timed if one takes about `message_s`: as many as `FULL_S` has room for."""
    return min(int(FULL_S / message_s), FULL_MESSAGES) or int(always)


class _Messages:
    """Buffers of one rank, and the trips that it times with them."""

    def __init__(self, link: Link, message_spec: MessageSpec, exchange: Exchange) -> None:
        self._link, self._exchange, self._device = link, exchange, message_spec.device
        self._size_bytes = message_spec.payload_bytes
        self._byte, self._answer = (torch.zeros(1, dtype=torch.uint8, device=self._device) for _ in range(2))
        self._full = message_spec.empty_payload().zero_()
        self._part = self._full.view(-1)[: max(self._full.numel() // PART, 1)]

    def time(self, sender: int, receiver: int, *, always: bool) -> DirectionTimes:
        """Time messages from one rank to another, each answered by a byte; both call this, the sender's result counts.

        Where a message of the real size would take too long, it is sent once and only if `always`.
        """
        short = summarize([self._trip(self._byte, sender, receiver) for _ in range(SHORT_MESSAGES + 1)][1:])
        part_s = self._time_parts(short.median_s, sender, receiver)
        growth = min(math.ceil(GROWTH_ROUND_TRIPS * short.median_s / part_s), PART)
        growth = self._agree(growth, sender, receiver)
        if growth > 1:
            self._trip(self._full.view(-1)[: growth * self._part.numel()], sender, receiver)
            part_s = self._time_parts(short.median_s, sender, receiver)
        count = self._agree(full_messages(PART * part_s, always=always), sender, receiver)
        trips = [self._trip(self._full, sender, receiver) for _ in range(count)]
        full = summarize([max(seconds - short.median_s, 0.0) for seconds in trips]) if trips else None
        return DirectionTimes(Timing(short.median_s / 2, short.spread_s / 2, short.samples), part_s, full)

    def _time_parts(self, round_trip_s: float, sender: int, receiver: int) -> float:
        """Median of messages of a part of the real size, beyond the round trip of a byte."""
        trips = [self._trip(self._part, sender, receiver) for _ in range(PART_MESSAGES + 1)]
        return max(statistics.median(trips) - round_trip_s, SHORTEST_S)

    def _agree(self, number: int, sender: int, receiver: int) -> int:
        """Have the receiver know a number of the sender's, of at most 255."""
        self._byte.fill_(number)
        self._trip(self._byte, sender, receiver)
        return int(self._byte.item())

    def _trip(self, tensor: Tensor, sender: int, receiver: int) -> float:
        """Seconds from sending a tensor until its answer is there; on the receiver without meaning."""
        return seconds_of(lambda: self._send_or_answer(tensor, sender, receiver), self._device)

    def _send_or_answer(self, tensor: Tensor, sender: int, receiver: int) -> None:
        timeout_s = self._exchange.timeout_s
        if self._exchange.rank == sender:
            answer = self._link.irecv(self._answer, receiver, 0)
            self._link.isend(tensor, receiver, 0).wait(timeout_s)
            answer.wait(timeout_s)
        else:
            self._link.irecv(tensor, sender, 0).wait(timeout_s)
            self._link.isend(self._answer, sender, 0).wait(timeout_s)


def rounds(world: int) -> list[list[tuple[int, int]]]:
    """All pairs `(a, b)`, a < b, of ranks in as few rounds of disjoint pairs as possible."""
    # Round robin by the circle method: one position is fixed, the others rotate; an odd number is padded.
    circle = list(range(world + world % 2))
    found = []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < world])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def time_norm(exchange: Exchange, link: Link, stages: int) -> float:
    """Seconds of an exchange of the norm of so many stages; ranks measure different times, and those of rank 0 count.

    `link` is that for tensors in the host's memory.
    """
    ranks = range(exchange.world)

    def norm() -> None:
        tree_sum(link, torch.zeros(stages, dtype=torch.float64), exchange.rank, ranks, exchange.timeout_s)

    with exchange.transferring("an exchange of the norm to be timed", ranks):
        return statistics.median([seconds_of(norm, torch.device("cpu")) for _ in range(NORMS + 1)][1:])
