"""The question that is left of a plan when nodes are lost. Pure."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from skippipe._scheduler import Plan, Problem
from skippipe.allocation import Allocation


def left_of(stages: Sequence[Sequence[int]], lost: Collection[int]) -> list[list[int]]:
    """The nodes of each stage that are left."""
    return [[node for node in nodes if node not in lost] for nodes in stages]


def taken_over(stages: Sequence[Sequence[int]], lost: Collection[int]) -> list[list[int]]:
    """The nodes of each stage that are left, where one of a stage with several takes over a stage that has none.

    It comes from the stage with the most nodes, of several the last one. Stage 0, which has the text, is not taken
    over; a stage for which there is no node stays empty.
    """
    left = left_of(stages, lost)
    for stage, nodes in enumerate(stages):
        if nodes and not left[stage] and stage:
            donor = max(range(len(left)), key=lambda number: (len(left[number]), number))
            if len(left[donor]) > 1:
                left[stage].append(left[donor].pop())
    return left


def without_lost_stages(allocation: Allocation, left: Sequence[Sequence[int]]) -> Allocation:
    """An allocation of the nodes that are `left`, in which stages that have none any more are absent."""
    emptied = {stage for stage, nodes in enumerate(allocation.stages) if nodes and not left[stage]}
    return dataclasses.replace(
        allocation,
        stages=[[*nodes] for nodes in left],
        absent_stages=tuple(sorted({*allocation.absent_stages, *emptied})),
        lost_stages=tuple(sorted({*allocation.lost_stages, *emptied})),
    )


def remaining_problem(plan: Plan, allocation: Allocation) -> Problem:
    """The question of a plan on another allocation of its stages: the same rules, and as many microbatches."""
    asked = plan.problem()
    counts = dict(zip(asked.stages[0], asked.microbatches, strict=True))
    return Problem(
        asked.cluster,
        allocation.stages,
        redistributed(counts, allocation.stages[0]),
        skip_ratio=asked.skip_ratio,
        constraints=asked.constraints,
        layers=asked.layers,
        absent_stages=allocation.absent_stages,
        absent_nodes=allocation.absent_nodes,
    )


def redistributed(counts: Mapping[int, int], sources: Sequence[int]) -> list[int]:
    """Microbatches of each source: of those in `counts` that are left, and of new ones.

    They take over those of the others as evenly as possible. A new source then gets one after the other from the source
    that has most, as long as it has fewer itself.
    """
    left = {source: counts.get(source, 0) for source in sources}
    for _ in range(sum(counts.values()) - sum(left.values())):
        left[min(left, key=lambda source: left[source])] += 1
    for new in [source for source in sources if source not in counts]:
        while left[most := max(left, key=lambda source: left[source])] > left[new] + 1:
            left[most] -= 1
            left[new] += 1
    return list(left.values())
