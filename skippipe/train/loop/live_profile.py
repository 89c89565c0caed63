"""A cluster whose figures follow what training measures.

A figure is the median of what the last three iterations saw, and at first of the plan's own: one odd iteration changes
nothing, and a lasting change counts from its second iteration on. Messages of one size cannot tell latency from
bandwidth: both are taken to change by the same factor, which is exact for messages and an assumption for all-reduces.
Where a cluster has regions, links that carried no message are taken to change as those between the same regions did.
A link that is used no more keeps its last figure, unless those that are used between the same regions have become
slower than that: then it is taken to be as slow, so that a plan does not move from slow links to others that were fast
when they were last used, but are no longer. One that the cluster says takes no time stays so. All-reduces, optimizer
steps and the norm keep the figures of the cluster.
"""

import json
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from skippipe._scheduler import Cluster
from skippipe.cluster import scaled_links
from skippipe.train.loop.observed import MessageTime, Observations, task_times

WINDOW = 3
"""Iterations that count."""
MEASURED = "; times measured in training"
"""In what a cluster says of its source."""
LEAST_FACTOR = 1e-3
"""Lower limit on the factor of a link, whose overhead may be all that is left."""


class LiveProfile:
    """Figures of nodes and links."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin with the figures of a plan's cluster."""
        self._base = cluster
        self._tasks: dict[tuple[int, str], deque[float]] = {}
        self._links: dict[tuple[int, int], deque[float]] = {}
        self._used: dict[tuple[int, int], int] = {}
        """the iteration in which a link was measured last; those of an earlier phase end with 0"""
        self.iterations = 0
        """seen so far"""

    def add(self, seen: Observations) -> None:
        """Take one iteration."""
        self.iterations += 1
        columns = task_times(self._base)
        for (node, kind), seconds in seen.tasks.items():
            known = self._tasks.setdefault((node, kind), deque([float(columns[kind][node])] * 2, WINDOW))
            known.append(statistics.median(seconds))
        before = self.transfer_s()
        for pair, messages in _by_link(seen.messages).items():
            now = float(before[pair])
            exact = [message.seconds for message in messages if message.exact]
            below = [message.seconds for message in messages if not message.exact and message.seconds < now]
            if exact or below:
                if not self._in_use(pair):
                    self._links[pair] = deque([now] * 2, WINDOW)
                self._links[pair].append(statistics.median(exact or below))
                self._used[pair] = self.iterations

    def slowdowns(self) -> dict[int, float]:
        """By how much the tasks of nodes take longer than the plan's cluster says, for nodes that have run any."""
        columns = task_times(self._base)
        now: defaultdict[int, float] = defaultdict(float)
        then: defaultdict[int, float] = defaultdict(float)
        for (node, kind), seconds in self._tasks.items():
            now[node] += statistics.median(seconds)
            then[node] += float(columns[kind][node])
        return {node: now[node] / then[node] for node in now if then[node] > 0}

    def rebased(self, cluster: Cluster) -> "LiveProfile":
        """The same links with the nodes of another cluster, such as that of a later phase."""
        other = LiveProfile(cluster)
        other._links = self._links
        other._used = {pair: used - self.iterations for pair, used in self._used.items()}
        return other

    def _in_use(self, pair: tuple[int, int]) -> bool:
        """Whether the latest iterations have measured a link."""
        return pair in self._used and self.iterations - self._used[pair] < WINDOW

    def transfer_s(self) -> NDArray[np.float64]:
        """Seconds of a message by sending and receiving node."""
        found = self._base.transfer_matrix().copy()
        known = {pair: statistics.median(seconds) for pair, seconds in self._links.items()}
        regions = self._base.region_of
        if regions is not None:
            changes: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
            older: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
            for (i, j), seconds in known.items():
                of_all = changes if self._in_use((i, j)) else older
                of_all[int(regions[i]), int(regions[j])].append(self._factor(i, j, seconds))
            overhead_s = self._base.overhead_s
            for (a, b), factors in (older | changes).items():
                at = np.ix_(np.asarray(regions) == a, np.asarray(regions) == b)
                found[at] = overhead_s + (found[at] - overhead_s) * statistics.median(factors)
            np.fill_diagonal(found, 0.0)
        for pair, seconds in known.items():
            found[pair] = seconds if self._in_use(pair) else max(seconds, float(found[pair]))
        return found

    def _factor(self, sender: int, receiver: int, seconds: float) -> float:
        """By how much a link's latency and seconds per byte are larger than in the cluster."""
        base_s, overhead_s = float(self._base.transfer_matrix()[sender, receiver]), self._base.overhead_s
        return max((seconds - overhead_s) / (base_s - overhead_s), LEAST_FACTOR) if base_s > overhead_s else 1.0

    def cluster(self) -> Cluster:
        """The cluster with the figures as they are now."""
        columns = {kind: np.array(seconds, dtype=np.float64) for kind, seconds in task_times(self._base).items()}
        for (node, kind), seconds in self._tasks.items():
            columns[kind][node] = statistics.median(seconds)
        overhead_s, base_s = self._base.overhead_s, self._base.transfer_matrix() - self._base.overhead_s
        changed = np.maximum(self.transfer_s() - overhead_s, LEAST_FACTOR * base_s)
        factors = np.divide(changed, base_s, out=np.ones_like(base_s), where=base_s > 0)
        linked = scaled_links(self._base, factors)
        content = json.loads(linked.with_times(columns["F"], columns["B"], columns["L"]).to_json())
        origin = (self._base.source or "").partition(MEASURED)[0]
        content["source"] = f"{origin}{MEASURED} over {self.iterations} iterations"
        return Cluster.from_json(json.dumps(content))


def _by_link(messages: Iterable[MessageTime]) -> dict[tuple[int, int], list[MessageTime]]:
    found: defaultdict[tuple[int, int], list[MessageTime]] = defaultdict(list)
    for message in messages:
        found[message.sender, message.receiver].append(message)
    return found
