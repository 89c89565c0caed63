"""What is left of a run when nodes are lost. Pure."""

import dataclasses
from collections.abc import Callable, Collection, Sequence

from skippipe.allocation import Allocation
from skippipe.errors import SchedulerError
from skippipe.moves import Holding
from skippipe.ranks import shown_names
from skippipe.remaining import left_of, without_lost_stages
from skippipe.train.resolve.spec import RunSpec

Left = Callable[[Sequence[Sequence[int]], Collection[int]], list[list[int]]]
"""Gives the nodes of each stage that are left, from those before and those that are lost."""


class NotRecoverableError(SchedulerError):
    """The nodes that are left cannot go on; the run may start again from a checkpoint."""


def without_nodes(spec: RunSpec, lost: Collection[int], left: Left = left_of, *, skip: bool = False) -> RunSpec:
    """The same run without some nodes, which are then unused as if its allocation had left them out.

    Args:
        spec: the run.
        lost: nodes.
        left: gives the nodes of each stage that are left.
        skip: whether the run may do without stages other than the first one.

    Raises:
        NotRecoverableError: a stage would have no node left.

    """

    def reduced(allocation: Allocation) -> Allocation:
        stages = left(allocation.stages, lost)
        emptied = [stage for stage, nodes in enumerate(allocation.stages) if nodes and not stages[stage]]
        if emptied and (not skip or 0 in emptied):
            names = [spec.layout.cluster.names[node] for node in sorted(lost)]
            raise NotRecoverableError(
                f"lost node {shown_names(names)}, and no other node serves stage {', '.join(map(str, emptied))}"
            )
        absent = tuple(sorted({*allocation.absent_nodes, *lost}))
        return dataclasses.replace(without_lost_stages(allocation, stages), absent_nodes=absent)

    phases = [reduced(phase.allocation) for phase in spec.phases]
    # What matters is what phases need: nodes may have changed stages since the run began.
    run = without_lost_stages(spec.layout.allocation, left(spec.layout.allocation.stages, lost))
    absent = tuple(sorted({*run.absent_nodes, *lost}))
    return with_allocations(spec, dataclasses.replace(run, absent_nodes=absent), phases)


def with_allocations(spec: RunSpec, allocation: Allocation, phases: Sequence[Allocation]) -> RunSpec:
    """The same run with other allocations of itself and of its phases."""
    return dataclasses.replace(
        spec,
        layout=dataclasses.replace(spec.layout, allocation=allocation),
        phases=tuple(
            dataclasses.replace(phase, allocation=own) for phase, own in zip(spec.phases, phases, strict=True)
        ),
    )


def without_stages(holding: Holding, gone: Collection[int], stage_layers: Sequence[range]) -> Holding:
    """Who has which weights in a model that does without some stages."""
    layers = {layer for stage in gone for layer in stage_layers[stage]}
    current = {stage: ranks for stage, ranks in holding.current.items() if stage not in gone}
    return Holding(current, holding.joined - layers)


def stages_gone(holding: Holding) -> list[int]:
    """The stages whose weights nobody has."""
    return [stage for stage, ranks in sorted(holding.current.items()) if not ranks]
