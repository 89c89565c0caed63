"""Which nodes are so slow that a run is better off without them. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SlowRank:
    """A rank to be treated as lost."""

    rank: int
    slowdown: float
    """how many times its planned time it takes, compared with the other nodes"""


def slowest_rank(
    slowdowns: Mapping[int, float], stages: Sequence[Sequence[int]], rank_of: Sequence[int], most: float
) -> SlowRank | None:
    """The slowest rank that is slower than planned by more than the factor `most`, if the others can go on without it.

    Where plan and machine differ for all nodes alike, nobody is slow: what counts is the factor compared with the
    median one (the lower one of two).

    Args:
        slowdowns: measured time over the planned one, by node.
        stages: the nodes of each stage.
        rank_of: the rank that serves each node.
        most: the factor.

    """
    if not slowdowns:
        return None
    usual = statistics.median_low(slowdowns.values())
    node = max(slowdowns, key=lambda node: slowdowns[node])
    rank, slowdown = rank_of[node], slowdowns[node] / usual
    served = [nodes for nodes in stages if nodes]
    if slowdown <= most or any(all(rank_of[node] == rank for node in nodes) for nodes in served):
        return None
    return SlowRank(rank, slowdown)
