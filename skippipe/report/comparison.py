"""Why one plan takes longer than another, as text. No output here."""

from collections.abc import Sequence

from skippipe._scheduler import Plan
from skippipe.report.analysis import PARTS, PlanAnalysis, composition
from skippipe.report.format import percent, seconds, throughput_text
from skippipe.report.plan_metrics import visits_per_stage
from skippipe.report.stages import moved
from skippipe.report.table import Table
from skippipe.workload import throughput

COMPARED = 2
"""Number of plans in a comparison."""
SIGNIFICANT = 0.01
"""Smallest difference reported, as a fraction of the longer iteration."""
SAME = 1e-9
"""Relative tolerance for equal iterations."""
MOST_PARTS = 4
MOST_STAGES = 12
"""Limit on stages whose visits are listed; beyond, minimum and maximum."""


def comparison(first: PlanAnalysis, second: PlanAnalysis) -> Table:
    """Report which of two plans takes longer, what differs, and whether the search may be the cause."""
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
    count, other_count = len(slow.plan.microbatches), len(fast.plan.microbatches)
    if count != other_count:
        rates = [throughput_text(throughput(analysis.plan))[2:] for analysis in (slow, fast)]
        return f"{text}, for {count} microbatches vs. {other_count}: {' vs. '.join(rates)}."
    ours, theirs = executed_visits(slow.plan), executed_visits(fast.plan)
    if ours != theirs:
        text += (
            f"{', despite fewer stage visits' if ours < theirs else ', with more stage visits'}: {ours} vs. {theirs}"
        )
    return f"{text}."


def executed_visits(plan: Plan) -> int:
    """Count the stage visits of all microbatches."""
    return sum(len(microbatch.stages) for microbatch in plan.microbatches)


def _other_question(slow: Plan, fast: Plan) -> list[str]:
    """Differences between the two problems, other than the skip ratio."""
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
    return [f"Other differences than the skip ratio: {', '.join(differing)}."] if differing else []


def _allocations(slow: Plan, fast: Plan) -> list[str]:
    if slow.stages == fast.stages:
        return []
    if slow.cluster.names != fast.cluster.names or len(slow.stages) != len(fast.stages):
        return [f"Different nodes or stages: {len(slow.stages)} vs. {len(fast.stages)} stages."]
    count = sum(a != b for a, b in zip(stage_of(slow), stage_of(fast), strict=True))
    reordered = moved(slow.stages, fast.stages) == 0
    how = ", the same groups in another stage order" if reordered else ""
    return [f"Different allocation: {count} nodes serve another stage{how}."] if count else []


def stage_of(plan: Plan) -> list[int | None]:
    """Stage of each node; None if it serves none."""
    found: list[int | None] = [None] * len(plan.cluster)
    for stage, nodes in enumerate(plan.stages):
        for node in nodes:
            found[node] = stage
    return found


def _work(slow: PlanAnalysis, fast: PlanAnalysis) -> list[str]:
    """Differences in work: visits per stage, route lengths, busiest node."""
    notes = []
    ours, theirs = visits_per_stage(slow.plan), visits_per_stage(fast.plan)
    if ours != theirs and len(ours) == len(theirs):
        notes.append(f"Visits per stage: {_counts(ours)} vs. {_counts(theirs)}.")
        lengths = [sorted({len(m.stages) for m in plan.microbatches}) for plan in (slow.plan, fast.plan)]
        if lengths[0] != lengths[1]:
            notes.append(f"Stages per route: {_either(lengths[0])} vs. {_either(lengths[1])}.")
        grown = [stage for stage, (mine, other) in enumerate(zip(ours, theirs, strict=True)) if mine > other]
        if grown and executed_visits(slow.plan) < executed_visits(fast.plan):
            notes.append(f"Stage {', '.join(map(str, grown))} has more visits, despite fewer in total.")
    (name, busy_s), (other, other_s) = (busiest(analysis) for analysis in (slow, fast))
    if abs(busy_s - other_s) >= SIGNIFICANT * slow.plan.predicted.iteration_s:
        notes.append(f"Busiest node: {name}, {seconds(busy_s)}, vs. {other}, {seconds(other_s)}.")
    return notes


def busiest(analysis: PlanAnalysis) -> tuple[str, float]:
    """Name and busy seconds of the node with the largest total task time."""
    busy: dict[int, float] = dict.fromkeys(range(len(analysis.plan.cluster)), 0.0)
    for task in analysis.tasks:
        busy[task.node] += task.end_s - task.start_s
    node = max(busy, key=lambda number: busy[number])
    return analysis.plan.cluster.names[node], busy[node]


def _waits(slow: PlanAnalysis, fast: PlanAnalysis) -> list[str]:
    """Differences in message times and waiting for memory."""
    notes = []
    (count, total_s), (other_count, other_s) = messages(slow), messages(fast)
    if count and other_count:
        mean, other_mean = total_s / count, other_s / other_count
        if abs(mean - other_mean) > 0.05 * max(mean, other_mean):
            notes.append(
                f"Mean message time: {seconds(mean)} over {count} messages vs. {seconds(other_mean)} over {other_count}"
                f"{': routes that skip stages use slower links' if mean > other_mean else ''}."
            )
    waited, other_waited = (float(e.explanation.memory_s.sum()) for e in (slow, fast))
    if abs(waited - other_waited) >= SIGNIFICANT * slow.plan.predicted.iteration_s:
        notes.append(f"Total waiting for memory: {seconds(waited)} vs. {seconds(other_waited)}.")
    return notes


def messages(analysis: PlanAnalysis) -> tuple[int, float]:
    """Number of messages of an iteration, and their total seconds."""
    arrival = analysis.explanation.arrival_s.tolist()
    index = {(t.microbatch, t.kind, t.hop): i for i, t in enumerate(analysis.tasks)}
    last_hop = {microbatch.id: len(microbatch.nodes) - 1 for microbatch in analysis.plan.microbatches}
    count, total = 0, 0.0
    for i, task in enumerate(analysis.tasks):
        last = last_hop[task.microbatch]
        upstream = ("L", 0) if task.hop == last else ("B", task.hop + 1)
        kind, hop = {"F": ("F", task.hop - 1), "L": ("F", last), "B": upstream}[task.kind]
        before = index.get((task.microbatch, kind, hop))
        if before is not None and analysis.tasks[before].node != task.node:
            count, total = count + 1, total + arrival[i] - analysis.tasks[before].end_s
    return count, total


def _critical_path(slow: PlanAnalysis, fast: PlanAnalysis) -> list[str]:
    """Largest differences between the parts of the critical paths."""
    ours, theirs = (composition(analysis.tasks, analysis.explanation.critical) for analysis in (slow, fast))
    changes = {part: ours.get(part, 0.0) - theirs.get(part, 0.0) for part in PARTS}
    least = SIGNIFICANT * slow.plan.predicted.iteration_s
    largest = sorted((part for part in PARTS if abs(changes[part]) >= least), key=lambda part: -abs(changes[part]))
    if not largest:
        return []
    shown = ", ".join(f"{PARTS[part]} {changes[part]:+.3f} s" for part in largest[:MOST_PARTS])
    return [f"On the critical path: {shown}."]


def _bound(slow: PlanAnalysis, fast: PlanAnalysis) -> str:
    """Whether the difference is proved, or may be due to the search."""
    bound_s, other_s = slow.plan.predicted.lower_bound_s, fast.plan.predicted.iteration_s
    whose = "with these routes" if slow.plan.is_bound_by_routes else "for its allocation and rules"
    if bound_s > other_s:
        return (
            f"The difference is proved: {whose}, the lower bound {seconds(bound_s)} exceeds the other's "
            f"{seconds(other_s)}."
            + (
                ""
                if stage_of(slow.plan) == stage_of(fast.plan)
                else " The other plan's allocation may be better for it."
            )
        )
    return (
        f"The search may be the cause: {whose}, the lower bound {seconds(bound_s)} is below the other's "
        f"{seconds(other_s)}; more time (planner.time_limit_s) may find a shorter plan."
    )


def _counts(visits: Sequence[int]) -> str:
    if len(visits) > MOST_STAGES:
        return f"{min(visits)} to {max(visits)}"
    return ", ".join(map(str, visits))


def _either(lengths: Sequence[int]) -> str:
    return " or ".join(map(str, lengths)) if len(lengths) <= 3 else f"{lengths[0]} to {lengths[-1]}"
