"""Emulated networks on one machine: a cluster's transfer times over a link between local processes.

A short message before each tensor says when the tensor is delivered. So the time of a transfer counts from the sender's
call: a receive that is posted late does not add it again. Delivery times are readings of `time.monotonic`, a clock that
all processes of one machine share. They travel between hosts also where tensors are those of GPUs: a host that read
them from a GPU could wait for ever, since such copies wait for streams that wait for other ranks.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skippipe._scheduler import Cluster
from skippipe.cluster import scaled_links
from skippipe.config import Contention, LinkChange
from skippipe.devices import await_stream
from skippipe.errors import unexpected
from skippipe.ranks import shown_names
from skippipe.runtime.actions import TAGS_PER_MICROBATCH
from skippipe.runtime.links import Link, Work
from skippipe.runtime.links.collectives import RingSums

PROBE_BYTES = 1e9
"""Transfer times are linear in the bytes; this size and 0 give the two coefficients."""


@dataclass(frozen=True)
class Uplink:
    """What one rank's messages to each of the ranks take: `fixed_s + bytes * per_byte_s`."""

    fixed_s: tuple[float, ...]
    """latency and overhead in seconds, by receiving rank"""
    per_byte_s: tuple[float, ...]
    """seconds per byte, by receiving rank; 0 if the cluster states only whole transfer times"""

    def transfer_s(self, to_rank: int, size_bytes: int) -> float:
        """Seconds from sending to delivery."""
        return self.fixed_s[to_rank] + self.occupied_s(to_rank, size_bytes)

    def occupied_s(self, to_rank: int, size_bytes: int) -> float:
        """Those of them during which the bytes leave the sender."""
        return size_bytes * self.per_byte_s[to_rank]


def uplink_of(cluster: Cluster, rank_of: Sequence[int], rank: int, time_scale: float = 1.0) -> Uplink:
    """The links of a rank, those between its nodes and the nodes of the other ranks.

    Args:
        cluster: the network to emulate.
        rank_of: the rank that serves each node.
        rank: the sender.
        time_scale: factor on all times; 0.1 is ten times as fast.

    Raises:
        InputError: nodes that share a rank have different links, so a message's link depends on more than its ranks.

    """
    empty_s, probe_s = (cluster.transfer_matrix(size) for size in (0.0, PROBE_BYTES))
    nodes_of = [[node for node, server in enumerate(rank_of) if server == each] for each in range(max(rank_of) + 1)]
    fixed_s, per_byte_s = [], []
    for to_rank, receivers in enumerate(nodes_of):
        pairs = [(i, j) for i in nodes_of[rank] for j in receivers if to_rank != rank]
        links = {(float(empty_s[pair]), float(probe_s[pair])) for pair in pairs} or {(0.0, 0.0)}
        if len(links) > 1:
            hint = f"nodes of ranks {rank} and {to_rank} have different links; start one process per node"
            raise unexpected("runtime.links", "emulated", "real", hint=hint)
        ((empty, probe),) = links
        fixed_s.append(time_scale * empty)
        per_byte_s.append(time_scale * (probe - empty) / PROBE_BYTES)
    return Uplink(tuple(fixed_s), tuple(per_byte_s))


def uplinks_of(
    cluster: Cluster, rank_of: Sequence[int], rank: int, time_scale: float, changes: Sequence[LinkChange]
) -> dict[int, Uplink]:
    """The links of a rank by the iterations before each of their states; arguments and errors as of `uplink_of`.

    Raises:
        InputError: also if a change names a node that is not in the cluster.

    """
    found = {0: uplink_of(cluster, rank_of, rank, time_scale)}
    for after in sorted({change.after for change in changes}):
        factors = np.ones((len(cluster), len(cluster)))
        for number, change in enumerate(changes):
            if change.after <= after:
                key = f"runtime.link_changes[{number}]"
                senders = _nodes(cluster, change.senders, f"{key}.senders")
                receivers = _nodes(cluster, change.receivers, f"{key}.receivers")
                factors[np.ix_(senders, receivers)] *= change.factor
        found[after] = uplink_of(scaled_links(cluster, factors), rank_of, rank, time_scale)
    return found


def _nodes(cluster: Cluster, names: Sequence[str], key: str) -> list[int]:
    """Numbers of nodes by name; no names: all nodes."""
    for index, name in enumerate(names):
        if name not in cluster.names:
            raise unexpected(f"{key}[{index}]", name, f"one of {shown_names(cluster.names)}")
    return [cluster.names.index(name) for name in names or cluster.names]


class EmulatedSend:
    """A send in flight; complete at once, or with its delivery."""

    __slots__ = ("_complete_at", "_delivery", "_delivery_work", "_work")

    def __init__(self, work: Work, delivery_work: Work, delivery: Tensor, complete_at: float) -> None:
        self._work, self._delivery_work, self._delivery = work, delivery_work, delivery
        self._complete_at = complete_at

    def wait(self, timeout_s: float) -> None:
        """Wait; see `Work`."""
        deadline = time.monotonic() + timeout_s
        self._work.wait(timeout_s)  # first: what is behind a message that never ends does not fail either
        self._delivery_work.wait(_left_s(deadline))
        _sleep_until(self._complete_at, deadline)


class EmulatedReceive:
    """A receive in flight."""

    __slots__ = ("_delivery", "_delivery_work", "_work")

    def __init__(self, work: Work, delivery_work: Work, delivery: Tensor) -> None:
        self._work, self._delivery_work, self._delivery = work, delivery_work, delivery

    def wait(self, timeout_s: float) -> None:
        """Wait for the message, then until its delivery; see `Work`."""
        deadline = time.monotonic() + timeout_s
        self._delivery_work.wait(timeout_s)
        self._work.wait(_left_s(deadline))
        _sleep_until(float(self._delivery), deadline)


class EmulatedLink(RingSums):
    """Transfers over another link, delivered no earlier than those of an emulated network.

    A sender is free at once, as in the simulator; only sends of collectives complete with their delivery, so that a
    step of a ring takes as long as its slowest transfer.
    """

    def __init__(
        self,
        link: Link,
        uplink: Uplink,
        contention: Contention = "none",
        changes: Mapping[int, Uplink] | None = None,
        host_link: Link | None = None,
    ) -> None:
        """Wrap a link.

        Args:
            link: the transfers, between processes of one machine.
            uplink: transfer times of this rank's messages.
            contention: messages that leave one after the other: none of them, those of a "link" (to the same rank), or
                all those of the "uplink".
            changes: other transfer times, by the iterations before each; None: they stay.
            host_link: carries the delivery times, as host tensors; None: `link` does.

        """
        self._link, self._host_link, self._contention = link, host_link or link, contention
        self.uplink = uplink
        """transfer times of this rank's messages now"""
        self._changes = {0: uplink} | dict(changes or {})
        self._free_at: dict[int | None, float] = {}

    def begin_iteration(self, iteration: int) -> None:
        """Take on the transfer times of an iteration of the run, from 1."""
        self.uplink = self._changes[max(after for after in self._changes if after < iteration)]

    def connect(self, pairs: Collection[tuple[int, int]], groups: Collection[tuple[int, ...]] = ()) -> None:
        """Prepare; see `Link`."""
        self._link.connect(pairs, groups)

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> EmulatedSend:
        """Start a send; see `Link`. A message leaves when the device has computed it."""
        await_stream(tensor.device)
        delivered_at = self._delivered_at(to_rank, tensor.nbytes)
        delivery = torch.tensor([delivered_at], dtype=torch.float64)
        delivery_work = self._host_link.isend(delivery, to_rank, tag)
        complete_at = delivered_at if tag < TAGS_PER_MICROBATCH else 0.0
        return EmulatedSend(self._link.isend(tensor, to_rank, tag), delivery_work, delivery, complete_at)

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> EmulatedReceive:
        """Start a receive; see `Link`."""
        delivery = torch.empty(1, dtype=torch.float64)
        delivery_work = self._host_link.irecv(delivery, from_rank, tag)
        return EmulatedReceive(self._link.irecv(tensor, from_rank, tag), delivery_work, delivery)

    def _delivered_at(self, to_rank: int, size_bytes: int) -> float:
        now = time.monotonic()
        if self._contention == "none":
            return now + self.uplink.transfer_s(to_rank, size_bytes)
        channel = to_rank if self._contention == "link" else None
        begin = max(now, self._free_at.get(channel, now))
        self._free_at[channel] = begin + self.uplink.occupied_s(to_rank, size_bytes)
        return begin + self.uplink.transfer_s(to_rank, size_bytes)


def _left_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _sleep_until(moment: float, deadline: float) -> None:
    """Sleep until a reading of the clock; at most until the deadline, which raises `TimeoutError` if it is earlier."""
    while (left_s := min(moment, deadline) - time.monotonic()) > 0:
        time.sleep(left_s)
    if moment > deadline:
        raise TimeoutError(f"timed out {moment - deadline:.3g} s before the delivery over the emulated link")
