"""The allocator's surrogate, written from its definition alone, and the best partition by looking at all of them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Stages = list[list[int]]


@dataclass(frozen=True)
class Parts:
    """What the surrogate says of an allocation, in seconds."""

    replica_s: float
    """slowest message between two nodes of one stage"""
    tour_s: float
    """round trips between neighbouring stages, along the best way over all stages and back to stage 0"""
    compute_s: float
    """twice the mean forward of each stage, for all stages"""

    @property
    def score_s(self) -> float:
        """All of them together."""
        return self.replica_s + self.tour_s + self.compute_s


class Surrogate:
    """The surrogate of one cluster.

    Args:
        transfer: seconds of a message, shape (N, N), row = sender.
        forward: seconds of a forward on each node, shape (N,).

    """

    def __init__(self, transfer: Matrix, forward: NDArray[np.float64]) -> None:
        self.round_trip = (transfer + transfer.T).tolist()
        self.slower = np.maximum(transfer, transfer.T).tolist()
        self.forward = forward.tolist()
        self.bottleneck = cache(self._bottleneck)
        self.replica = cache(self._replica)

    def _replica(self, stage: frozenset[int]) -> float:
        return max((self.slower[i][j] for i, j in itertools.combinations(stage, 2)), default=0.0)

    def _bottleneck(self, pair: frozenset[frozenset[int]]) -> float:
        """Match the smaller of two stages into the larger: for every set of partners taken, the best so far."""
        smaller, larger = sorted(pair, key=len)
        partners = sorted(larger)
        best = {0: 0.0}
        for node in smaller:
            trips = [self.round_trip[node][partner] for partner in partners]
            following: dict[int, float] = {}
            for taken, worst in best.items():
                for index, trip in enumerate(trips):
                    if not taken >> index & 1:
                        key = taken | 1 << index
                        following[key] = min(following.get(key, float("inf")), max(worst, trip))
            best = following
        return min(best.values())

    def length(self, order: Sequence[frozenset[int]]) -> float:
        """Seconds of the tour over stages in this order, returning from the last to the first."""
        if len(order) == 1:
            return 0.0
        return sum(self.bottleneck(frozenset(pair)) for pair in zip(order, [*order[1:], order[0]], strict=True))

    def score(self, stages: Sequence[Sequence[int]]) -> Parts:
        """The surrogate score with the best order of the stages after stage 0, by exhaustive search."""
        first, *rest = map(frozenset, stages)
        tours = (self.length([first, *order]) for order in itertools.permutations(rest))
        return Parts(
            max(self.replica(stage) for stage in (first, *rest)),
            min(tours),
            sum(2 * sum(self.forward[node] for node in stage) / len(stage) for stage in stages),
        )

    def best(
        self, sizes: Sequence[int], sources: Sequence[int] | None = None, limit_s: float | None = None
    ) -> tuple[Parts, Stages] | None:
        """The allowed partition with the lowest score; None if there is none."""
        found = None
        for stages in partitions(len(self.forward), sizes, sources):
            parts = self.score(stages)
            if limit_s is not None and parts.replica_s > limit_s:
                continue
            if found is None or parts.score_s < found[0].score_s:
                found = parts, stages
        return found


def partitions(nodes: int, sizes: Sequence[int], sources: Sequence[int] | None = None) -> Iterator[Stages]:
    """Every partition of the nodes into stages of these sizes: stage 0 first, the order of the others not counted."""
    firsts = [tuple(sources)] if sources is not None else itertools.combinations(range(nodes), sizes[0])
    for first in firsts:
        left = [node for node in range(nodes) if node not in first]
        for rest in _groups(left, tuple(sorted(sizes[1:]))):
            yield [sorted(first), *rest]


def _groups(nodes: list[int], sizes: tuple[int, ...]) -> Iterator[Stages]:
    """Every way to cut nodes into groups; the lowest node left always goes first, so that none is made twice."""
    if not nodes:
        yield []
        return
    lowest, *others = nodes
    for size in sorted(set(sizes)):
        index = sizes.index(size)
        for chosen in itertools.combinations(others, size - 1):
            left = [node for node in others if node not in chosen]
            for rest in _groups(left, sizes[:index] + sizes[index + 1 :]):
                yield [[lowest, *chosen], *rest]
