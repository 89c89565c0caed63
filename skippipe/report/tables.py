"""What a report says in words and figures, as tables; terminal and page show the same ones."""

from collections.abc import Sequence

from skippipe._scheduler import Constraints
from skippipe.report.analysis import PARTS, PlanAnalysis, composition, endpoint_name, handovers, links, upgrade_name
from skippipe.report.comparison import COMPARED, comparison
from skippipe.report.format import WORK_PER_S, percent, seconds, work_per_s
from skippipe.report.stages import stage_table
from skippipe.report.table import Table
from skippipe.workload import skipped_executions, throughput

MAX_LINKS = 10
REASONS = {
    "input": "when their input arrived",
    "busy": "after their node had been busy",
    "memory": "after memory had been full",
    "order": "after the plan had let others go first",
    "wave": "when the wave before was home",
}
"""Why a task on the critical path did not start before."""

UNCHANGED = (
    "Routes and order stay as they are (dispatch rule: the order made anew, where that is shorter); a new plan may "
    "gain more. A node's forward, loss and backward are halved; a link's latency is halved and its bandwidth doubled."
)


def overview(plans: Sequence[PlanAnalysis]) -> list[Table]:
    """Tables of all plans side by side, and of two what makes them differ."""
    return [figures(plans), work(plans), *([comparison(*plans)] if len(plans) == COMPARED else [])]


def figures(plans: Sequence[PlanAnalysis]) -> Table:
    """Iteration, throughput, bound and rules of each plan."""
    headings = ["plan", "strategy", "iteration", *WORK_PER_S, "lower bound", "gap", "pipeline"]
    rows = []
    for analysis in plans:
        predicted, done = analysis.plan.predicted, throughput(analysis.plan)
        rates = [work_per_s(done, unit) for unit in WORK_PER_S]
        bounds = [seconds(predicted.lower_bound_s), percent(predicted.gap), seconds(predicted.pipeline_s)]
        rows.append([analysis.name, analysis.plan.strategy, seconds(predicted.iteration_s), *rates, *bounds])
    rules = [_rules(analysis.plan.constraints) for analysis in plans]
    notes = [f"Rules of {analysis.name}: {own}." for analysis, own in zip(plans, rules, strict=True)]
    shown = (f"Rules: {rules[0]}.",) if len(set(rules)) == 1 else tuple(notes)
    return Table("Figures", headings, rows, shown)


def work(plans: Sequence[PlanAnalysis]) -> Table:
    """What each plan's iteration does, and what it leaves out."""
    headings = ["plan", "nodes", "stages", "microbatches", "skip ratio", "layer executions skipped"]
    rows = []
    for analysis in plans:
        plan = analysis.plan
        counts = [str(len(part)) for part in (plan.cluster, plan.stages, plan.microbatches)]
        rows.append([analysis.name, *counts, f"{plan.skip_ratio:.4g}", percent(skipped_executions(plan))])
    return Table("Work", headings, rows)


def _rules(rules: Constraints) -> str:
    parts = [name for name in ("cc1", "cc2", "cc3") if getattr(rules, name)]
    parts += [f"tc1 {rules.tc1}", "tc2" if rules.tc2 else "tc2 off", f"at most {rules.max_swaps} swaps"]
    parts += [f"waves {rules.waves}"] + (
        [f"jumps of at most {rules.max_stage_jump}"] if rules.max_stage_jump is not None else []
    )
    return ", ".join(parts)


def times(analysis: PlanAnalysis) -> Table:
    """What the iteration is made of, on two ways through it."""
    explanation, whole = analysis.explanation, analysis.plan.predicted.iteration_s
    ways = [composition(analysis.tasks, way) for way in (explanation.critical, explanation.last)]
    last = [segment.task for segment in explanation.last if segment.task is not None]
    owner = f"microbatch {analysis.tasks[last[-1]].microbatch}" if last else "no microbatch"
    rows = [
        [words, *(cell for way in ways for cell in _cells(way.get(part), whole))]
        for part, words in PARTS.items()
        if any(part in way for way in ways)
    ]
    rows.append(["iteration", *_cells(whole, whole), *_cells(whole, whole)])
    ends_with = (
        f"The critical path is one chain of tasks and messages without a pause. It ends with {owner}, whose own way "
        "shows what it waited for."
    )
    headings = ["", "critical path", "share", "its last microbatch", "share"]
    return Table("What takes the time", headings, rows, (_path_text(analysis), ends_with))


def _cells(value: float | None, whole: float) -> list[str]:
    share = value / whole if value is not None and whole > 0 else None
    return [seconds(value), percent(share)]


def _path_text(analysis: PlanAnalysis) -> str:
    on_path = [analysis.tasks[s.task] for s in analysis.explanation.critical if s.task is not None]
    batches, nodes = {task.microbatch for task in on_path}, {task.node for task in on_path}
    counts = handovers(analysis)
    reasons = ", ".join(f"{counts[reason]} {words}" for reason, words in REASONS.items() if counts[reason])
    return f"{len(on_path)} tasks of {len(batches)} microbatches on {len(nodes)} nodes are on the critical path" + (
        f"; of these started {reasons}." if reasons else "."
    )


def link_times(analysis: PlanAnalysis) -> Table:
    """Links on the critical path."""
    cluster, uses = analysis.plan.cluster, links(analysis.plan.cluster, analysis.explanation.critical)
    rows = [
        [
            f"{endpoint_name(cluster, use.sender)} -> {endpoint_name(cluster, use.receiver)}",
            str(use.messages),
            seconds(use.seconds),
        ]
        for use in uses[:MAX_LINKS]
    ]
    more = (f"and {len(uses) - MAX_LINKS} more",) if len(uses) > MAX_LINKS else ()
    return Table("Links on the critical path", ["link", "messages", "seconds"], rows, more)


def upgrades(analysis: PlanAnalysis, most: int) -> Table:
    """Which node or link to make faster first."""
    cluster, whole = analysis.plan.cluster, analysis.plan.predicted.iteration_s
    headings = ["twice as fast", "iteration", "saved", "share", "dispatch rule"]
    headings += ["planned anew"] if analysis.replanned else []
    rows = []
    for number, upgrade in enumerate(analysis.upgrades[:most]):
        saved = whole - upgrade.iteration_s
        row = [upgrade_name(cluster, upgrade), seconds(upgrade.iteration_s), seconds(saved), percent(saved / whole)]
        row.append(seconds(upgrade.dispatched_s))
        if analysis.replanned:
            row.append(seconds(analysis.replanned[number]) if number < len(analysis.replanned) else "")
        rows.append(row)
    notes = [UNCHANGED]
    if not rows:
        notes.insert(0, "No single node or link shortens the iteration as long as routes and order stay as they are.")
    elif len(analysis.upgrades) > most:
        notes.append(f"{len(analysis.upgrades) - most} more shorten it by less.")
    return Table("What to upgrade first", headings, rows, tuple(notes))


def statistics(analysis: PlanAnalysis) -> Table:
    """What the search counted."""
    rows = [
        [name.replace("_", " "), f"{value:,.0f}" if value % 1 == 0 else f"{value:,.4g}"]
        for name, value in analysis.search.statistics.items()
    ]
    return Table("Statistics of the search", ["", "count"], rows)


def tables(analysis: PlanAnalysis, most: int) -> list[Table]:
    """All tables of one plan that have something to show."""
    found = [
        times(analysis), link_times(analysis), upgrades(analysis, most), stage_table(analysis.plan),
        statistics(analysis),
    ]  # fmt: skip
    return [table for table in found if table.rows or table.notes]
