"""What an iteration says about nodes and links: how long tasks took, and how long messages were on their way. Pure.

A message leaves when its SEND ends and arrives when its RECV ends, if that had to wait; otherwise it came earlier, and
only an upper bound of its time is known. Its time is that of the link only if it was on its own there: it counts if its
receive had been posted when it left, and the message before it on the same link (or uplink) had arrived. Links that
share more than that are not told apart: what one loses to another counts as its own.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skippipe._scheduler import Cluster
from skippipe.config import Contention
from skippipe.runtime.actions import Program, Recv, Send, Task
from skippipe.train.loop.timelines import RankTimeline

LEAST_WAIT_S = 5e-4
"""A RECV that takes less did not wait: the message was there."""


class MessageTime(NamedTuple):
    """How long a message took from a node to a node."""

    sender: int
    receiver: int
    seconds: float
    exact: bool
    """whether it was seen to arrive; else it took no longer than that"""


@dataclass(frozen=True)
class Observations:
    """Of one iteration; seconds."""

    tasks: Mapping[tuple[int, str], Sequence[float]]
    """by node and kind of task (F, L, B)"""
    messages: Sequence[MessageTime]


class Ratios(NamedTuple):
    """Measured seconds over predicted ones, summed over an iteration; None: nothing was seen or predicted."""

    tasks: float | None
    messages: float | None


@dataclass(frozen=True)
class _Flight:
    """A message; moments are readings of one clock."""

    sender: int
    receiver: int
    ranks: tuple[int, int]
    posted: float
    departed: float
    awaited: float
    arrived: float
    """no later than that"""

    @property
    def waited_for(self) -> bool:
        return self.arrived - self.awaited >= LEAST_WAIT_S

    @property
    def seconds(self) -> float:
        return self.arrived - self.departed


def observe(
    programs: Sequence[Program],
    timelines: Sequence[RankTimeline],
    *,
    recv_buffers: int,
    shared: Contention,
    expected_s: NDArray[np.float64],
) -> Observations:
    """Read one iteration.

    Args:
        programs: of all ranks.
        timelines: of all ranks, on one clock.
        recv_buffers: receives posted ahead, per sending rank.
        shared: what messages have to take turns on: nothing, the link to a rank, or all that leave a rank.
        expected_s: seconds of a message by sending and receiving node, to tell when one has arrived that nobody
            awaited.

    """
    tasks: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    departed: dict[Task, float] = {}
    received: list[tuple[Recv, int, int, float, float]] = []
    for program, (began_at, ends) in zip(programs, timelines, strict=True):
        waiting: tuple[Recv, float, float] | None = None
        for action, start, end in zip(program.actions, [0.0, *ends[:-1]], ends, strict=True):
            if isinstance(action, Recv):
                waiting = action, began_at + start, began_at + end
            elif isinstance(action, Send):
                departed[action.task] = began_at + end
            elif isinstance(action, Task):
                if waiting is not None:  # the task that needs a message follows its RECV
                    recv, awaited, arrived = waiting
                    received.append((recv, program.rank, action.node, awaited, arrived))
                    waiting = None
                if action.kind in "FLB":
                    tasks[action.node, action.kind].append(end - start)
    posted = _posted(programs, received, recv_buffers)
    flights = [
        _Flight(recv.task.node, node, (recv.from_rank, rank), posted[recv.task], departed[recv.task], awaited, arrived)
        for recv, rank, node, awaited, arrived in received
    ]
    return Observations(dict(tasks), _message_times(flights, shared, expected_s))


def _posted(
    programs: Sequence[Program], received: Iterable[tuple[Recv, int, int, float, float]], recv_buffers: int
) -> dict[Task, float]:
    """When the receive of each message was posted: in sending order, one for each that is consumed."""
    consumed: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for recv, rank, _, _, arrived in received:
        consumed[recv.from_rank, rank].append(arrived)
    found: dict[Task, float] = {}
    for program in programs:
        for sender, incoming in program.incoming.items():
            moments = [-math.inf] * recv_buffers + sorted(consumed[sender, program.rank])
            found.update(zip(incoming, moments, strict=False))
    return found


def _message_times(
    flights: Iterable[_Flight], shared: Contention, expected_s: NDArray[np.float64]
) -> list[MessageTime]:
    """Times of messages that say something about their link."""
    busy_until: defaultdict[tuple[int, ...], float] = defaultdict(lambda: -math.inf)
    found = []
    for flight in sorted(flights, key=lambda flight: flight.departed):
        channel = flight.ranks if shared == "link" else flight.ranks[:1]
        alone = shared == "none" or flight.departed >= busy_until[channel]
        arrived = flight.arrived
        if not flight.waited_for:
            arrived = min(arrived, flight.departed + float(expected_s[flight.sender, flight.receiver]))
        busy_until[channel] = max(busy_until[channel], arrived)
        if not flight.waited_for:
            found.append(MessageTime(flight.sender, flight.receiver, max(flight.seconds, 0.0), exact=False))
        elif alone and flight.posted <= flight.departed and flight.seconds > 0:
            found.append(MessageTime(flight.sender, flight.receiver, flight.seconds, exact=True))
    return found


def task_times(cluster: Cluster) -> dict[str, NDArray[np.float64]]:
    """Seconds of tasks by kind and node."""
    return {"F": cluster.forward_s, "B": cluster.backward_s, "L": cluster.loss_s}


def ratios(seen: Observations, cluster: Cluster) -> Ratios:
    """Compare an iteration with the times of a cluster; of messages, those that were seen to arrive."""
    columns = task_times(cluster)
    transfer_s = cluster.transfer_matrix()
    tasks_s = sum(len(seconds) * float(columns[kind][node]) for (node, kind), seconds in seen.tasks.items())
    exact = [message for message in seen.messages if message.exact]
    messages_s = sum(float(transfer_s[message.sender, message.receiver]) for message in exact)
    measured_s = sum(itertools.chain.from_iterable(seen.tasks.values()))
    return Ratios(
        measured_s / tasks_s if tasks_s else None,
        sum(message.seconds for message in exact) / messages_s if messages_s else None,
    )
