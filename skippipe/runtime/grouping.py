"""Grouping of microbatches into joint passes when one process serves all stages. Pure, without torch.

A stage waits until as many as possible of the microbatches that still have to visit it are there. Microbatches with the
same route stay together, and so do those whose routes differ only in the stages skipped before or after.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """One joint forward pass of microbatches through a stage."""

    stage: int
    microbatches: tuple[int, ...]


def group_passes(routes: Mapping[int, Sequence[int]], most: int) -> list[Pass]:
    """Group and order the forward passes of all microbatches; the backward order is the reverse.

    Args:
        routes: the stages of each microbatch's route in order, by its number.
        most: limit on microbatches per pass.

    Returns:
        Passes in which each microbatch visits each stage of its route once, in order.

    """
    left = {number: list(stages) for number, stages in routes.items() if stages}
    visits = Counter(stage for stages in left.values() for stage in stages)
    passes: list[Pass] = []
    while left:
        waiting = Counter(stages[0] for stages in left.values())
        # The largest fraction of its outstanding visits, then the most, then the earliest stage.
        stage = min(waiting, key=lambda s: (-waiting[s] / visits[s], -waiting[s], s))
        ready = [number for number, stages in left.items() if stages[0] == stage]
        visits[stage] -= len(ready)
        for number in ready:
            left[number].pop(0)
            if not left[number]:
                del left[number]
        passes += [Pass(stage, part) for part in even_parts(ready, most)]
    return passes


def even_parts(numbers: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Split into the fewest parts of at most `most`; sizes differ by at most one."""
    count = -(-len(numbers) // most)
    return [tuple(numbers[i * len(numbers) // count : (i + 1) * len(numbers) // count]) for i in range(count)]
