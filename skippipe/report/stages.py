"""The allocation: its cost by the surrogate, and the search for it. No output here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from skippipe._scheduler import AllocationReport, Plan, Scored, score_allocation
from skippipe.report.format import percent, seconds
from skippipe.report.plan_metrics import assumed_layers, visits_per_stage
from skippipe.report.table import Table
from skippipe.workload import partition_mismatch, source_mismatch

WIDEST = 48
"""Characters for the nodes of a stage; beyond, nodes are counted by site."""
NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


@dataclass(frozen=True)
class RunnerUp:
    """The next best allocation of the search."""

    seconds: float
    """its iteration time, or its score by the surrogate"""
    moved: int
    """nodes that serve another stage"""


@dataclass(frozen=True)
class UnusedNode:
    """The cheapest placement of a node that serves no stage, with unchanged routes; times in seconds."""

    node: int
    stage: int
    allreduce_s: float
    """of the stage with the node"""
    allreduce_without_s: float
    iteration_s: float
    """with the node"""


@dataclass(frozen=True)
class AllocationSearch:
    """Allocation search in a plan's `solver`; None: unknown."""

    score_s: float | None = None
    """best score by the surrogate; the planner started from this allocation"""
    score_bound_s: float | None = None
    """lower bound on the score of allocations with these sizes"""
    next_score: RunnerUp | None = None
    start_s: float | None = None
    """iteration time of the starting allocation"""
    lower_bound_s: float | None = None
    """lower bound on the iteration over all allowed allocations"""
    next_iteration: RunnerUp | None = None
    left_out: tuple[UnusedNode, ...] = ()


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
    search = read_allocation_search(plan)
    notes = (
        *left_out_in_words(plan, search.left_out),
        cost_text(cost(plan)),
        *search_text(search),
        *partition_text(plan),
    )
    return Table("Allocation", headings, rows, notes, texts=(0, len(headings) - 1))


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


def left_out_in_words(plan: Plan, costs: Sequence[UnusedNode]) -> list[str]:
    """Nodes that serve no stage, grouped by the cost of using them."""
    names, known = plan.cluster.names, {cost.node: cost for cost in costs}
    reasons: dict[str, list[int]] = {}
    for node in plan.absent_nodes:
        reasons.setdefault(_reason(plan, known.get(node)), []).append(node)
    return [f"Unused: {members([names[node] for node in nodes])}{reason}." for reason, nodes in reasons.items()]


def _reason(plan: Plan, cost: UnusedNode | None) -> str:
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
    every_s = read_allocation_search(plan).lower_bound_s
    if every_s is None:
        return None
    predicted = plan.predicted
    gap = None if every_s <= 0 else predicted.iteration_s / every_s - 1
    return (
        f"Lower bound for this allocation {seconds(predicted.lower_bound_s)} (gap {percent(predicted.gap)}), for all "
        f"allocations {seconds(every_s)} (gap {percent(gap)})."
    )


def search_text(search: AllocationSearch) -> list[str]:
    """Results of the allocation search by surrogate and by iteration time, if known."""
    notes = []
    if search.score_s is not None:
        notes.append(
            f"Best surrogate cost: {seconds(search.score_s)}, lower bound {seconds(search.score_bound_s)}"
            f"{_runner_up_text(search.next_score)}."
        )
    if search.lower_bound_s is not None:
        first = "" if search.start_s is None else f"{seconds(search.start_s)} with that allocation, "
        bound = f"lower bound {seconds(search.lower_bound_s)}"
        notes.append(f"Iteration: {first}{bound}{_runner_up_text(search.next_iteration)}.")
    return notes


def _runner_up_text(other: RunnerUp | None) -> str:
    if other is None:
        return ""
    nodes = f"{other.moved} node{'' if other.moved == 1 else 's'}"
    return f"; runner-up {seconds(other.seconds)} ({nodes} moved)"


def read_allocation_search(plan: Plan) -> AllocationSearch:
    """Read what a plan reports of the search for its allocation; times in seconds."""
    surrogate, found = plan.solver.surrogate, plan.solver.allocation
    return AllocationSearch(
        score_s=None if surrogate is None else surrogate.best.score_s,
        score_bound_s=None if surrogate is None else surrogate.lower_bound_s,
        next_score=None
        if surrogate is None or surrogate.runner_up is None
        else _other(surrogate.runner_up.score_s, surrogate.best.stages, surrogate.runner_up.stages),
        start_s=None if found is None else found.start_s,
        lower_bound_s=None if found is None else found.lower_bound_s,
        next_iteration=None
        if found is None or found.runner_up is None
        else _other(found.runner_up.iteration_s, plan.stages, found.runner_up.stages),
        left_out=() if found is None else _left_out(found, plan),
    )


def _left_out(found: AllocationReport, plan: Plan) -> tuple[UnusedNode, ...]:
    return tuple(
        UnusedNode(row.node, row.stage, row.allreduce_s, row.allreduce_without_s, row.iteration_s)
        for row in found.left_out
        if row.node in plan.absent_nodes
    )


def _other(time_s: float, stages: list[list[int]], others: list[list[int]]) -> RunnerUp:
    return RunnerUp(time_s, moved([frozenset(nodes) for nodes in stages], [frozenset(nodes) for nodes in others]))


def moved(stages: Sequence[frozenset[int]], others: Sequence[frozenset[int]]) -> int:
    """Number of nodes to move to turn one partition into another, whatever the stage order.

    Stages are matched greedily by the number of common nodes.
    """
    common = [(-len(own & other), i, j) for i, own in enumerate(stages) for j, other in enumerate(others)]
    left, right, kept = set(range(len(stages))), set(range(len(others))), 0
    for negative, i, j in sorted(common):
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            kept -= negative
    return sum(map(len, stages)) - kept
