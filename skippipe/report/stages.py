"""Which node serves which stage: what that costs by the surrogate, and how the search for it went. No output here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from skippipe._scheduler import AllocationReport, Plan, Scored, score_allocation
from skippipe.report.figures import assumed_layers, visits_per_stage
from skippipe.report.table import Table
from skippipe.report.terminal import percent, seconds
from skippipe.workload import other_cut, other_sources

WIDEST = 48
"""Characters for the nodes of a stage: with more, places are counted instead of nodes named."""
NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


@dataclass(frozen=True)
class Other:
    """Another allocation that the search has seen."""

    seconds: float
    """of its iteration, or its score by the surrogate"""
    moved: int
    """nodes that serve another stage in it"""


@dataclass(frozen=True)
class LeftOut:
    """What a node that serves no stage would cost where it costs least, with the same routes; times in seconds."""

    node: int
    stage: int
    allreduce_s: float
    """of that stage with the node"""
    allreduce_without_s: float
    iteration_s: float
    """with the node"""


@dataclass(frozen=True)
class AllocationSearch:
    """What a plan's `solver` says of the search for its allocation; None where it does not say."""

    score_s: float | None = None
    """score of the best allocation by the surrogate, which the planner began with"""
    score_bound_s: float | None = None
    """no allocation of these sizes scores less"""
    next_score: Other | None = None
    start_s: float | None = None
    """iteration with that allocation"""
    lower_bound_s: float | None = None
    """no allocation that was allowed has a shorter iteration"""
    next_iteration: Other | None = None
    left_out: tuple[LeftOut, ...] = ()


def stage_table(plan: Plan) -> Table:
    """One row for every stage: who serves it, how often it is visited, how far apart its replicas are; cost below."""
    visits, total = visits_per_stage(plan), len(plan.microbatches)
    inside, names = slowest_inside(plan), plan.cluster.names
    reduces, layers = any(plan.predicted.allreduce_s), plan.layers
    headings = [
        "stage", "nodes", "visits", "share", *(["all-reduce"] if reduces else []), *(["layers"] if layers else []),
        "slowest inside", "who serves it",
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
        cost_in_words(cost(plan)),
        *search_in_words(search),
        *cut_in_words(plan),
    )
    return Table("Which node serves which stage", headings, rows, notes, texts=(0, len(headings) - 1))


def cut_in_words(plan: Plan) -> list[str]:
    """Warn where the node times hold for stages of other lengths than the plan's."""
    differing = other_cut(plan, assumed_layers(plan))
    told = [] if differing is None else [f"Node times are for another cut, and real ones will differ: {differing}."]
    sources = other_sources(plan)
    return told if sources is None else [*told, f"Node times were taken with other sources: {sources}."]


def slowest_inside(plan: Plan) -> list[float | None]:
    """Longest transfer between two nodes of each stage, in seconds; None where it has but one."""
    cluster = plan.cluster
    return [cluster.slowest_transfer(nodes) for nodes in plan.stages]


def cost(plan: Plan) -> Scored:
    """What the surrogate says of a plan's allocation; its stages may stand in another order."""
    return score_allocation(plan.cluster, [nodes for nodes in plan.stages if nodes])


def members(names: Sequence[str], widest: int = WIDEST) -> str:
    """Names of nodes, briefly: `Iowa-0,1 Paris-0`; where that is too long `Iowa x2, Paris`, and the most of that."""
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
    return ", ".join(groups[:shown]) + (f" and {left} more places" if left else "")


def cost_in_words(scored: Scored) -> str:
    """The parts of the surrogate's score."""
    return (
        f"Cost by the surrogate: {seconds(scored.score_s)} = {seconds(scored.replica_s)} inside a stage + "
        f"{seconds(scored.tour_s)} tour over the stages + {seconds(scored.compute_s)} computing."
    )


def left_out_in_words(plan: Plan, costs: Sequence[LeftOut]) -> list[str]:
    """Which nodes serve no stage, and what each would cost; alike ones together."""
    names, known = plan.cluster.names, {cost.node: cost for cost in costs}
    reasons: dict[str, list[int]] = {}
    for node in plan.absent_nodes:
        reasons.setdefault(_reason(plan, known.get(node)), []).append(node)
    return [f"Left out: {members([names[node] for node in nodes])}{reason}." for reason, nodes in reasons.items()]


def _reason(plan: Plan, cost: LeftOut | None) -> str:
    if cost is None:
        return ""
    now_s = plan.predicted.iteration_s
    effect = (
        f"the iteration {seconds(cost.iteration_s)} instead of {seconds(now_s)}"
        if cost.iteration_s > now_s
        else "the iteration no less; no shorter plan with it was found"
    )
    return (
        f" (in stage {cost.stage}, with the same routes, the all-reduce would take {seconds(cost.allreduce_s)} instead "
        f"of {seconds(cost.allreduce_without_s)}, {effect})"
    )


def bounds_in_words(plan: Plan) -> str | None:
    """The bound of the plan's allocation beside that of all allocations; None where the allocation was not searched."""
    every_s = read_allocation_search(plan).lower_bound_s
    if every_s is None:
        return None
    predicted = plan.predicted
    gap = None if every_s <= 0 else predicted.iteration_s / every_s - 1
    return (
        f"Lower bound of this allocation {seconds(predicted.lower_bound_s)} (gap {percent(predicted.gap)}), of all "
        f"allocations {seconds(every_s)} (gap {percent(gap)})."
    )


def search_in_words(search: AllocationSearch) -> list[str]:
    """How the surrogate and the planner came to the allocation, as far as it is known."""
    told = []
    if search.score_s is not None:
        told.append(
            f"The best by it: {seconds(search.score_s)}, none below {seconds(search.score_bound_s)}"
            f"{_beside(search.next_score)}."
        )
    if search.lower_bound_s is not None:
        first = "" if search.start_s is None else f"{seconds(search.start_s)} with that one, "
        told.append(f"Iterations: {first}none below {seconds(search.lower_bound_s)}{_beside(search.next_iteration)}.")
    return told


def _beside(other: Other | None) -> str:
    if other is None:
        return ""
    nodes = f"{other.moved} node{'' if other.moved == 1 else 's'}"
    return f"; runner-up {seconds(other.seconds)} ({nodes} elsewhere)"


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


def _left_out(found: AllocationReport, plan: Plan) -> tuple[LeftOut, ...]:
    return tuple(
        LeftOut(row.node, row.stage, row.allreduce_s, row.allreduce_without_s, row.iteration_s)
        for row in found.left_out
        if row.node in plan.absent_nodes
    )


def _other(time_s: float, stages: list[list[int]], others: list[list[int]]) -> Other:
    return Other(time_s, moved([frozenset(nodes) for nodes in stages], [frozenset(nodes) for nodes in others]))


def moved(stages: Sequence[frozenset[int]], others: Sequence[frozenset[int]]) -> int:
    """Nodes that would have to move to make one partition of another, whatever the order of its stages.

    Stages that have most nodes in common are taken to be the same.
    """
    common = [(-len(own & other), i, j) for i, own in enumerate(stages) for j, other in enumerate(others)]
    left, right, kept = set(range(len(stages))), set(range(len(others))), 0
    for negative, i, j in sorted(common):
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            kept -= negative
    return sum(map(len, stages)) - kept
