"""Why one plan takes longer than another, in words taken from their figures. No output here."""

from collections.abc import Sequence

from skippipe._scheduler import Plan
from skippipe.report.analysis import PARTS, PlanAnalysis, composition
from skippipe.report.format import percent, seconds, throughput_text
from skippipe.report.plan_metrics import visits_per_stage
from skippipe.report.stages import moved
from skippipe.report.table import Table
from skippipe.workload import throughput

COMPARED = 2
"""So many plans are compared."""
WORTH_TELLING = 0.01
"""Share of the longer iteration below which a difference is not told."""
SAME = 1e-9
"""Share of an iteration within which two are equally long."""
MOST_PARTS = 4
MOST_STAGES = 12
"""Stages whose visits are listed; of more, least and most."""


def comparison(first: PlanAnalysis, second: PlanAnalysis) -> Table:
    """Say which of two plans takes longer, what differs, and whether that lies in the question or in the search."""
    slow, fast = sorted((first, second), key=lambda analysis: -analysis.plan.predicted.iteration_s)
    longer_s = slow.plan.predicted.iteration_s - fast.plan.predicted.iteration_s
    if longer_s <= SAME * slow.plan.predicted.iteration_s:
        return Table("Comparison", [], [], (f"Both take {seconds(slow.plan.predicted.iteration_s)}.",))
    notes = [
        _headline(slow, fast, longer_s),
        *_other_question(slow.plan, fast.plan),
        *_allocations(slow.plan, fast.plan),
        *_work(slow, fast),
        *_waits(slow, fast),
        *_critical_path(slow, fast),
        _bound(slow, fast),
    ]
    return Table(f"Why {slow.name} takes longer than {fast.name}", [], [], tuple(notes))


def _headline(slow: PlanAnalysis, fast: PlanAnalysis, longer_s: float) -> str:
    share = percent(longer_s / fast.plan.predicted.iteration_s)
    text = f"It takes {seconds(longer_s)} longer ({share})"
    batches, other_batches = len(slow.plan.microbatches), len(fast.plan.microbatches)
    if batches != other_batches:
        rates = [throughput_text(throughput(analysis.plan))[2:] for analysis in (slow, fast)]
        return f"{text}, for {batches} microbatches where the other runs {other_batches}: {' against '.join(rates)}."
    ours, theirs = executed_visits(slow.plan), executed_visits(fast.plan)
    if ours != theirs:
        text += f"{', although it runs' if ours < theirs else ':'} {ours} stage visits where the other runs {theirs}"
    return f"{text}."


def executed_visits(plan: Plan) -> int:
    """Count the stage visits of all microbatches."""
    return sum(len(microbatch.stages) for microbatch in plan.microbatches)


def _other_question(slow: Plan, fast: Plan) -> list[str]:
    """What makes the two plans answers to different questions, beside the skip ratio."""
    differing = [
        name
        for name, ours, theirs in (
            ("cluster", slow.cluster, fast.cluster),
            ("rules", slow.constraints, fast.constraints),
            ("strategies", slow.strategy, fast.strategy),
            ("layers per stage", slow.layers, fast.layers),
        )
        if ours != theirs
    ]
    return [f"They differ in more than the skip ratio: {', '.join(differing)}."] if differing else []


def _allocations(slow: Plan, fast: Plan) -> list[str]:
    if slow.stages == fast.stages:
        return []
    if slow.cluster.names != fast.cluster.names or len(slow.stages) != len(fast.stages):
        return [f"Their nodes or stages differ: {len(slow.stages)} stages against {len(fast.stages)}."]
    count = sum(a != b for a, b in zip(stage_of(slow), stage_of(fast), strict=True))
    reordered = moved([frozenset(s) for s in slow.stages], [frozenset(s) for s in fast.stages]) == 0
    how = ", the same groups of nodes in another order" if reordered else ""
    return [f"Another allocation: {count} nodes serve another stage{how}."] if count else []


def stage_of(plan: Plan) -> list[int | None]:
    """Stage of each node; None where it serves none."""
    found: list[int | None] = [None] * len(plan.cluster)
    for stage, nodes in enumerate(plan.stages):
        for node in nodes:
            found[node] = stage
    return found


def _work(slow: PlanAnalysis, fast: PlanAnalysis) -> list[str]:
    """What each has to run: visits of stages, lengths of routes, and its busiest node."""
    told = []
    ours, theirs = visits_per_stage(slow.plan), visits_per_stage(fast.plan)
    if ours != theirs and len(ours) == len(theirs):
        told.append(f"Visits per stage: {_counts(ours)} against {_counts(theirs)}.")
        lengths = [sorted({len(m.stages) for m in plan.microbatches}) for plan in (slow.plan, fast.plan)]
        if lengths[0] != lengths[1]:
            told.append(f"Stages on a route: {_either(lengths[0])} against {_either(lengths[1])}.")
        grown = [stage for stage, (mine, other) in enumerate(zip(ours, theirs, strict=True)) if mine > other]
        if grown and executed_visits(slow.plan) < executed_visits(fast.plan):
            told.append(
                f"Stage {', '.join(map(str, grown))} is visited more often, though fewer visits are made in all."
            )
    (name, busy_s), (other, other_s) = (busiest(analysis) for analysis in (slow, fast))
    if abs(busy_s - other_s) >= WORTH_TELLING * slow.plan.predicted.iteration_s:
        told.append(f"Its busiest node, {name}, works for {seconds(busy_s)}; the other's, {other}, {seconds(other_s)}.")
    return told


def busiest(analysis: PlanAnalysis) -> tuple[str, float]:
    """Name the node with the longest tasks in all, and give their seconds."""
    busy: dict[int, float] = dict.fromkeys(range(len(analysis.plan.cluster)), 0.0)
    for task in analysis.tasks:
        busy[task.node] += task.end_s - task.start_s
    node = max(busy, key=lambda number: busy[number])
    return analysis.plan.cluster.names[node], busy[node]


def _waits(slow: PlanAnalysis, fast: PlanAnalysis) -> list[str]:
    """How long messages take, and how much tasks wait for memory."""
    told = []
    (count, total_s), (other_count, other_s) = messages(slow), messages(fast)
    if count and other_count:
        mean, other_mean = total_s / count, other_s / other_count
        if abs(mean - other_mean) > 0.05 * max(mean, other_mean):
            told.append(
                f"Its {count} messages take {seconds(mean)} on average, the other's {other_count} {seconds(other_mean)}"
                f"{': routes that leave stages out step over slower links' if mean > other_mean else ''}."
            )
    held, other_held = (float(e.explanation.memory_s.sum()) for e in (slow, fast))
    if abs(held - other_held) >= WORTH_TELLING * slow.plan.predicted.iteration_s:
        told.append(f"Its tasks wait {seconds(held)} for memory in all, the other's {seconds(other_held)}.")
    return told


def messages(analysis: PlanAnalysis) -> tuple[int, float]:
    """Count the messages of an iteration, and add up their seconds."""
    arrival = analysis.explanation.arrival_s.tolist()
    index = {(t.microbatch, t.kind, t.hop): i for i, t in enumerate(analysis.tasks)}
    last_hop = {microbatch.id: len(microbatch.nodes) - 1 for microbatch in analysis.plan.microbatches}
    count, total = 0, 0.0
    for i, task in enumerate(analysis.tasks):
        last = last_hop[task.microbatch]
        turned = ("L", 0) if task.hop == last else ("B", task.hop + 1)
        kind, hop = {"F": ("F", task.hop - 1), "L": ("F", last), "B": turned}[task.kind]
        before = index.get((task.microbatch, kind, hop))
        if before is not None and analysis.tasks[before].node != task.node:
            count, total = count + 1, total + arrival[i] - analysis.tasks[before].end_s
    return count, total


def _critical_path(slow: PlanAnalysis, fast: PlanAnalysis) -> list[str]:
    """Which parts of the critical path are longer, and which shorter."""
    ours, theirs = (composition(analysis.tasks, analysis.explanation.critical) for analysis in (slow, fast))
    changes = {part: ours.get(part, 0.0) - theirs.get(part, 0.0) for part in PARTS}
    least = WORTH_TELLING * slow.plan.predicted.iteration_s
    largest = sorted((part for part in PARTS if abs(changes[part]) >= least), key=lambda part: -abs(changes[part]))
    if not largest:
        return []
    shown = ", ".join(f"{PARTS[part]} {changes[part]:+.3f} s" for part in largest[:MOST_PARTS])
    return [f"On the critical path: {shown}."]


def _bound(slow: PlanAnalysis, fast: PlanAnalysis) -> str:
    """Whether the difference lies in the question, or may lie in the search."""
    bound_s, other_s = slow.plan.predicted.lower_bound_s, fast.plan.predicted.iteration_s
    whose = "with these routes" if slow.plan.strategy in OWN_ROUTES else "for its allocation and rules"
    if bound_s > other_s:
        return (
            f"The difference is real: {whose}, no plan takes less than {seconds(bound_s)}, more than the other's "
            f"{seconds(other_s)}."
            + ("" if slow.plan.stages == fast.plan.stages else " The other's allocation may suit it better.")
        )
    return (
        f"The search may be the cause: {whose}, plans of {seconds(bound_s)} are not ruled out, less than the other's "
        f"{seconds(other_s)}; more time (planner.time_limit_s) may find a shorter one."
    )


OWN_ROUTES = ("random-skip", "skippipe-no-tc2")
"""Strategies whose bound holds for the routes of the plan alone."""


def _counts(visits: Sequence[int]) -> str:
    if len(visits) > MOST_STAGES:
        return f"{min(visits)} to {max(visits)}"
    return ", ".join(map(str, visits))


def _either(lengths: Sequence[int]) -> str:
    return " or ".join(map(str, lengths)) if len(lengths) <= 3 else f"{lengths[0]} to {lengths[-1]}"
