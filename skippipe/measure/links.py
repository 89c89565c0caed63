"""Latency and bandwidth between any two ranks, timed over the links that training uses, in rounds of disjoint pairs.

The receiver of the messages asks for them: it knows their sizes, and waits for each of them already when it asks.
"""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
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

LEAST_SHORT_MESSAGES, SHORT_MESSAGES = 3, 9
"""Messages of a byte from which the latency is taken: as many as `SHORT_S` has room for."""
SHORT_S = 0.25
"""How long these, or the messages of a part, may take beyond the fewest."""
PART_MESSAGES = 3
"""Messages of a part of the real size from which the time of the real one is extrapolated; one of them on links with
long round trips."""
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
_NO_MORE = 255
"""Asked for in place of a number of parts: nothing more."""


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

    def publish(self, key: str, text: str) -> None:
        """Publish a text of this rank."""

    def receive(self, key: str, rank: int, extra_s: float = 0.0) -> str:
        """Wait for a text of another rank, `extra_s` longer than usual if it takes that long."""

    def all_gather(self, key: str, text: str, extra_s: float = 0.0) -> list[str]:
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
        report: told after each of this rank's rounds how many of all are done. A rank waits for its partner alone, so
            that links with short round trips need not take as long as the longest.

    """
    link.connect(set(itertools.combinations(range(exchange.world), 2)))
    messages = _Messages(link, message_spec, exchange)
    own: dict[int, DirectionTimes] = {}
    all_rounds = rounds(exchange.world)
    for number, pairs in enumerate(all_rounds):
        for a, b in pairs:
            if exchange.rank in (a, b):
                # The partner may still be in an earlier round, in which links are slower.
                exchange.publish(f"timed {number}, {key}", "")
                exchange.receive(f"timed {number}, {key}", a + b - exchange.rank, number * exchange.timeout_s)
                with exchange.transferring("messages to be timed", (a, b)):
                    own[a + b - exchange.rank] = messages.time(a, b)
        report(number + 1, len(all_rounds))
    gathered = exchange.all_gather(f"links, {key}", json.dumps(own), len(all_rounds) * exchange.timeout_s)
    return link_times([_parsed(text) for text in gathered], message_spec.payload_bytes)


def _parsed(text: str) -> dict[int, DirectionTimes]:
    return {
        int(peer): DirectionTimes(Timing(*latency), part_s, None if full is None else Timing(*full))
        for peer, (latency, part_s, full) in json.loads(text).items()
    }


def link_times(by_rank: list[dict[int, DirectionTimes]], size_bytes: int) -> LinkTimes:
    """Latency and bandwidth from what each rank has timed, by sending rank; messages have `size_bytes`."""
    world = len(by_rank)
    latency_s, latency_spread_s, message_spread_s = (np.zeros((world, world)) for _ in range(3))
    bandwidth, counts = np.full((world, world), LOCAL_BANDWIDTH), np.zeros((world, world), dtype=np.int64)
    errors = []
    for receiver, own in enumerate(by_rank):
        for sender, times in own.items():
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
        self._byte, self._request = (torch.zeros(1, dtype=torch.uint8, device=self._device) for _ in range(2))
        self._full = message_spec.empty_payload().zero_()
        self._part_values = max(self._full.numel() // PART, 1)

    def time(self, a: int, b: int) -> DirectionTimes:
        """Time messages in both directions, first those to the first rank; both call this. Gives those received.

        Where a message of the real size would take too long, it is sent in one of the two directions alone.
        """
        if self._exchange.rank == a:
            times = self._fetch(b, self._ping(b), always=(a + b) % 2 == 1)
            self._serve(b)
            return times
        return self._fetch(a, self._serve(a), always=(a + b) % 2 == 0)

    def _ping(self, sender: int) -> list[float]:
        """Round trips of a byte, after one that does not count, since it may connect the ranks."""
        trips = [self._trip(0, sender)]
        begin = time.perf_counter()
        while len(trips) <= LEAST_SHORT_MESSAGES or (
            len(trips) <= SHORT_MESSAGES and time.perf_counter() - begin < SHORT_S
        ):
            trips.append(self._trip(0, sender))
        return trips[1:]

    def _fetch(self, sender: int, round_trips_s: Sequence[float], *, always: bool) -> DirectionTimes:
        """Ask a rank for messages, and time them."""
        short = summarize(round_trips_s)
        parts_s = [self._trip(1, sender)]
        part_s = max(parts_s[0] - short.median_s, SHORTEST_S)
        growth = min(math.ceil(GROWTH_ROUND_TRIPS * short.median_s / part_s), PART)
        if growth > 1:
            self._trip(growth, sender)
            parts_s.clear()
        count = PART_MESSAGES if PART_MESSAGES * short.median_s < SHORT_S else 1
        parts_s += [self._trip(1, sender) for _ in range(count - len(parts_s))]
        part_s = max(statistics.median(parts_s) - short.median_s, SHORTEST_S)
        trips = [self._trip(PART, sender) for _ in range(full_messages(PART * part_s, always=always))]
        self._ask(_NO_MORE, sender)
        full = summarize([max(seconds - short.median_s, 0.0) for seconds in trips]) if trips else None
        return DirectionTimes(Timing(short.median_s / 2, short.spread_s / 2, short.samples), part_s, full)

    def _serve(self, receiver: int) -> list[float]:
        """Send a rank what it asks for; gives the round trips of a byte but the first: until its next request."""
        parts, round_trips_s = self._asked(receiver), list[float]()
        while parts != _NO_MORE:
            begin, sent = time.perf_counter(), parts
            self._link.isend(self._message(sent), receiver, 0).wait(self._exchange.timeout_s)
            parts = self._asked(receiver)
            if sent == 0:
                round_trips_s.append(time.perf_counter() - begin)
        return round_trips_s[1:]

    def _asked(self, receiver: int) -> int:
        """Wait for a request."""
        self._link.irecv(self._request, receiver, 0).wait(self._exchange.timeout_s)
        return int(self._request.item())

    def _trip(self, parts: int, sender: int) -> float:
        """Seconds from asking for a message of so many parts until it is there; of a byte for 0."""

        def fetch() -> None:
            message = self._link.irecv(self._message(parts), sender, 0)
            self._ask(parts, sender)
            message.wait(self._exchange.timeout_s)

        return seconds_of(fetch, self._device)

    def _ask(self, parts: int, sender: int) -> None:
        self._link.isend(self._request.fill_(parts), sender, 0).wait(self._exchange.timeout_s)

    def _message(self, parts: int) -> Tensor:
        """The buffer of a message of so many parts."""
        if parts == 0:
            return self._byte
        return self._full if parts == PART else self._full.view(-1)[: parts * self._part_values]


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
