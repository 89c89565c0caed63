"""Which microbatches go through a stage together where one process serves all stages. Pure, and without torch.

A stage waits until as many as can be of those that still have to visit it are there. Microbatches of one route thus
stay together, and so do those whose routes differ only in what they leave out before or after.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """One forward pass of some microbatches through one stage."""

    stage: int
    microbatches: tuple[int, ...]


def group_passes(routes: Mapping[int, Sequence[int]], most: int) -> list[Pass]:
    """Put the forward passes of all microbatches in an order; backward runs in the opposite one.

    Args:
        routes: stages of each microbatch in the order of its route, by its number.
        most: microbatches in one pass, at most.

    Returns:
        Passes in which each microbatch visits each stage of its route once, in that order.

    """
    left = {number: list(stages) for number, stages in routes.items() if stages}
    visits = Counter(stage for stages in left.values() for stage in stages)
    passes: list[Pass] = []
    while left:
        waiting = Counter(stages[0] for stages in left.values())
        # The largest share of those still to come, then the most, then the earliest stage.
        stage = min(waiting, key=lambda s: (-waiting[s] / visits[s], -waiting[s], s))
        there = [number for number, stages in left.items() if stages[0] == stage]
        visits[stage] -= len(there)
        for number in there:
            left[number].pop(0)
            if not left[number]:
                del left[number]
        passes += [Pass(stage, part) for part in even_parts(there, most)]
    return passes


def even_parts(numbers: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Cut into as few parts of at most `most` as there can be, their sizes at most one apart."""
    count = -(-len(numbers) // most)
    return [tuple(numbers[i * len(numbers) // count : (i + 1) * len(numbers) // count]) for i in range(count)]
