"""The allocation: its cost by the surrogate, and the search for it. No output here."""

import re
from collections.abc import Collection, Sequence

from skippipe._scheduler import LeftOut, Plan, Scored, score_allocation
from skippipe.report.format import percent, seconds
from skippipe.report.plan_metrics import assumed_layers, node_utilization, visits_per_stage
from skippipe.report.table import Table
from skippipe.workload import partition_mismatch, source_mismatch

WIDEST = 48
"""Characters for the nodes of a stage; beyond, nodes are counted by site."""
BUSY_THROUGHOUT = 0.995
"""Fraction of the pipeline's time from which on a node counts as busy all the time."""
NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def stage_table(plan: Plan) -> Table:
    """One row per stage: its nodes, visits and slowest internal transfer; cost below."""
    visits, total = visits_per_stage(plan), len(plan.microbatches)
    inside, names = slowest_inside(plan), plan.cluster.names
    reduces, layers = any(plan.predicted.allreduce_s), plan.layers
    headings = [
        "stage", "nodes", "visits", "share", *(["all-reduce"] if reduces else []), *(["layers"] if layers else []),
        "slowest internal transfer", "node names",
    ]  # fmt: skip
    rows = []
    for stage, nodes in enumerate(plan.stages):
        size = "absent" if stage in plan.absent_stages else str(len(nodes))
        row = [str(stage), size, str(visits[stage]), percent(visits[stage] / total)]
        row += [seconds(plan.predicted.allreduce_s[stage])] if reduces else []
        row += [str(layers[stage])] if layers else []
        rows.append([*row, seconds(inside[stage]), members([names[node] for node in nodes])])
    notes = (
        *unused_text(plan), cost_text(cost(plan)), *search_text(plan), *assumptions_text(plan), *partition_text(plan)
    )  # fmt: skip
    return Table("Allocation", headings, rows, notes, texts=(0, len(headings) - 1))


CONTENTION_TEXTS = {
    "none": "no message that waits for another",
    "link": "messages from one node to another that leave one by one",
    "uplink": "messages of a node that leave one by one",
}


def assumptions_text(plan: Plan) -> list[str]:
    """What the times of a plan take for granted of the machines."""
    cluster, assumed = plan.cluster, plan.assumptions
    parts = [
        "processors that nodes share" if assumed.processors else "a processor per node",
        CONTENTION_TEXTS[assumed.contention],
        "all-reduces" if any(cluster.gradient_bytes) else "no all-reduce",
        "optimizer and norm" if cluster.norm_s or any(cluster.step_s) else "no optimizer, no norm",
    ]
    shared = [members([cluster.names[node] for node in nodes]) for nodes in assumed.processors]
    return [f"Times assume {', '.join(parts)}.", *(f"One processor for {names}." for names in shared)]


def partition_text(plan: Plan) -> list[str]:
    """Warn if the node times are for another model partition or other sources."""
    differing = partition_mismatch(plan, assumed_layers(plan))
    notes = [] if differing is None else [f"Node times are for another partition, real ones will differ: {differing}."]
    sources = source_mismatch(plan)
    return notes if sources is None else [*notes, f"Node times were measured with other sources: {sources}."]


def slowest_inside(plan: Plan) -> list[float | None]:
    """Longest transfer between two nodes of each stage, in seconds; None for a single node."""
    cluster = plan.cluster
    return [cluster.slowest_transfer(nodes) for nodes in plan.stages]


def cost(plan: Plan) -> Scored:
    """Surrogate score of a plan's allocation; stages may be reordered."""
    return score_allocation(plan.cluster, [nodes for nodes in plan.stages if nodes])


def members(names: Sequence[str], widest: int = WIDEST) -> str:
    """Names of nodes, abbreviated: `Iowa-0,1 Paris-0`, or `Iowa x2, Paris` if that is too long."""
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = NUMBERED.fullmatch(name)
        stem, number = parts.groups() if parts else (name, "")
        groups.setdefault(stem, []).append(number)
    named = " ".join(stem + ",".join(numbers) for stem, numbers in groups.items())
    if len(named) <= widest:
        return named
    most = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    counted = [stem.rstrip("-_. ") + (f" x{len(numbers)}" if len(numbers) > 1 else "") for stem, numbers in most]
    shown = len(counted)
    while shown > 1 and len(_counted(counted, shown)) > widest:
        shown -= 1
    return _counted(counted, shown)


def _counted(groups: Sequence[str], shown: int) -> str:
    left = len(groups) - shown
    return ", ".join(groups[:shown]) + (f" and {left} more sites" if left else "")


def cost_text(scored: Scored) -> str:
    """The components of the surrogate score."""
    return (
        f"Surrogate cost: {seconds(scored.score_s)} = {seconds(scored.replica_s)} within stages + "
        f"{seconds(scored.tour_s)} tour over stages + {seconds(scored.compute_s)} compute."
    )


def costs_of_use(plan: Plan) -> list[LeftOut]:
    """Cost of each unused node in the stage where it is lowest, as reported by the search."""
    found = plan.solver.allocation
    return [] if found is None else [cost for cost in found.left_out if cost.node in plan.absent_nodes]


def unused_text(plan: Plan) -> list[str]:
    """Nodes that serve no stage, grouped by the cost of using them."""
    names, known = plan.cluster.names, {cost.node: cost for cost in costs_of_use(plan)}
    reasons: dict[str, list[int]] = {}
    for node in plan.absent_nodes:
        reasons.setdefault(_reason(plan, known.get(node)), []).append(node)
    return [f"Unused: {members([names[node] for node in nodes])}{reason}." for reason, nodes in reasons.items()]


def _reason(plan: Plan, cost: LeftOut | None) -> str:
    if cost is None:
        return ""
    now_s = plan.predicted.iteration_s
    effect = (
        f"the iteration {seconds(cost.iteration_s)} instead of {seconds(now_s)}"
        if cost.iteration_s > now_s
        else "the iteration would not be shorter, and no shorter plan was found"
    )
    return (
        f" (in stage {cost.stage}, with unchanged routes, the all-reduce would take {seconds(cost.allreduce_s)}, not "
        f"{seconds(cost.allreduce_without_s)}, {effect})"
    )


def bounds_text(plan: Plan) -> str | None:
    """Lower bounds for the plan's allocation and for all allocations; None if the allocation was given."""
    found = plan.solver.allocation
    if found is None:
        return None
    every_s, predicted = found.lower_bound_s, plan.predicted
    gap = None if every_s <= 0 else predicted.iteration_s / every_s - 1
    return (
        f"Lower bound for this allocation {seconds(predicted.lower_bound_s)} (gap {percent(predicted.gap)}), for all "
        f"allocations {seconds(every_s)} (gap {percent(gap)})."
    )


def stage_0_text(plan: Plan) -> str | None:
    """Say that stage 0 is the bottleneck, so that skipping cannot help; None where a source has idle time left."""
    shares = node_utilization(plan)
    source = max(plan.stages[0], key=lambda node: shares[node])
    busy_s = shares[source] * plan.predicted.iteration_s
    if not plan.constraints.cc1 or busy_s < BUSY_THROUGHOUT * plan.predicted.pipeline_s:
        return None
    return (
        f"Stage 0 is the bottleneck: {plan.cluster.names[source]} is busy all the time, so with these sources "
        f"skipping {'more ' if plan.skip_ratio > 0 else ''}cannot shorten the iteration. "
        "Give stage 0 more nodes or fewer layers."
    )


def search_text(plan: Plan) -> list[str]:
    """Results of the allocation search by surrogate and by iteration time, if known."""
    surrogate, found, notes = plan.solver.surrogate, plan.solver.allocation, []
    if surrogate is not None:
        best, other = surrogate.best, surrogate.runner_up
        runner_up = "" if other is None else _runner_up_text(other.score_s, moved(best.stages, other.stages))
        bound = f"lower bound {seconds(surrogate.lower_bound_s)}"
        notes.append(f"Best surrogate cost: {seconds(best.score_s)}, {bound}{runner_up}.")
    if found is not None:
        second = found.runner_up
        runner_up = "" if second is None else _runner_up_text(second.iteration_s, moved(plan.stages, second.stages))
        first = "" if found.start_s is None else f"began at {seconds(found.start_s)} with that allocation, "
        notes.append(f"Search by the iteration: {first}lower bound {seconds(found.lower_bound_s)}{runner_up}.")
    return notes


def _runner_up_text(time_s: float, count: int) -> str:
    difference = "the same stages in another order" if count == 0 else f"{count} node{'' if count == 1 else 's'} moved"
    return f"; runner-up {seconds(time_s)} ({difference})"


def moved(stages: Sequence[Collection[int]], others: Sequence[Collection[int]]) -> int:
    """Number of nodes to move to turn one partition into another, whatever the stage order.

    Stages are matched greedily by the number of common nodes.
    """
    common = [(-len(set(own) & set(other)), i, j) for i, own in enumerate(stages) for j, other in enumerate(others)]
    left, right, kept = set(range(len(stages))), set(range(len(others))), 0
    for negative, i, j in sorted(common):
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            kept -= negative
    return sum(map(len, stages)) - kept
