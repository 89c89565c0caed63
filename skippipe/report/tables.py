"""The tables of a report, the same in terminal and HTML page."""

from collections.abc import Sequence

from skippipe._scheduler import Constraints
from skippipe.report.analysis import PARTS, PlanAnalysis, composition, endpoint_name, handovers, links, upgrade_name
from skippipe.report.comparison import COMPARED, comparison
from skippipe.report.format import WORK_PER_S, percent, seconds, work_per_s
from skippipe.report.stages import stage_table
from skippipe.report.table import Table
from skippipe.rules import bent_rules
from skippipe.workload import skipped_executions, throughput

MAX_LINKS = 10
REASONS = {
    "input": "when their input arrived",
    "busy": "after their node was busy",
    "memory": "after memory was full",
    "order": "after others, by plan order",
    "wave": "after the previous wave",
}
"""When tasks on the critical path started, by reason."""

UNCHANGED = (
    "With unchanged routes and order (dispatch rule: reordered, if that is shorter); replanning may save more. An "
    "upgrade halves a node's forward, loss and backward, or halves a link's latency and doubles its bandwidth."
)


def overview(plans: Sequence[PlanAnalysis]) -> list[Table]:
    """Summary of all plans, and for two plans their comparison."""
    return [summary(plans), work(plans), *([comparison(*plans)] if len(plans) == COMPARED else [])]


def summary(plans: Sequence[PlanAnalysis]) -> Table:
    """Iteration, throughput, bound and rules of each plan."""
    headings = ["plan", "strategy", "iteration", *WORK_PER_S, "lower bound", "gap", "pipeline"]
    rows = []
    for analysis in plans:
        predicted, done = analysis.plan.predicted, throughput(analysis.plan)
        rates = [work_per_s(done, unit) for unit in WORK_PER_S]
        bounds = [seconds(predicted.lower_bound_s), percent(predicted.gap), seconds(predicted.pipeline_s)]
        rows.append([analysis.name, analysis.plan.strategy, seconds(predicted.iteration_s), *rates, *bounds])
    rules = [_rules(analysis.plan.constraints, analysis.plan.absent_stages) for analysis in plans]
    notes = [f"Rules of {analysis.name}: {own}." for analysis, own in zip(plans, rules, strict=True)]
    shown = (f"Rules: {rules[0]}.",) if len(set(rules)) == 1 else tuple(notes)
    return Table("Summary", headings, rows, shown)


def work(plans: Sequence[PlanAnalysis]) -> Table:
    """Work per iteration of each plan."""
    headings = ["plan", "nodes", "stages", "microbatches", "skip ratio", "layer executions skipped"]
    rows = []
    for analysis in plans:
        plan = analysis.plan
        counts = [str(len(part)) for part in (plan.cluster, plan.stages, plan.microbatches)]
        rows.append([analysis.name, *counts, f"{plan.skip_ratio:.4g}", percent(skipped_executions(plan))])
    return Table("Work", headings, rows)


def _rules(rules: Constraints, absent_stages: Sequence[int]) -> str:
    parts = [name for name in ("cc1", "cc2", "cc3") if getattr(rules, name)]
    parts += [
        f"tc1 {rules.tc1}",
        "tc2" if rules.tc2 else "tc2 off",
        f"at most {rules.max_swaps} swap{'' if rules.max_swaps == 1 else 's'}",
    ]
    parts += [f"waves {rules.waves}"] + (
        [f"jumps of at most {rules.max_stage_jump}"] if rules.max_stage_jump is not None else []
    )
    if rules.profile is not None:
        parts.append(f"profile {', '.join(f'{weight:.4g}' for weight in rules.profile)}")
    parts += [f"{routes} routes over stages {', '.join(map(str, stages))}" for stages, routes in rules.classes or []]
    return f"{', '.join(parts)}; bent: {', '.join(bent_rules(rules, absent_stages)) or 'none'}"


def times(analysis: PlanAnalysis) -> Table:
    """Time breakdown of the critical path and of its last microbatch."""
    explanation, iteration_s = analysis.explanation, analysis.plan.predicted.iteration_s
    paths = [composition(analysis.tasks, path) for path in (explanation.critical, explanation.last)]
    last = [segment.task for segment in explanation.last if segment.task is not None]
    owner = f"microbatch {analysis.tasks[last[-1]].microbatch}" if last else "no microbatch"
    rows = [
        [name, *(cell for path in paths for cell in _cells(path.get(part), iteration_s))]
        for part, name in PARTS.items()
        if any(part in path for path in paths)
    ]
    rows.append(["iteration", *_cells(iteration_s, iteration_s) * 2])
    ends_with = (
        f"The critical path is a gapless chain of tasks and messages. It ends with {owner}, whose own path shows what "
        "it waited for."
    )
    headings = ["", "critical path", "share", "its last microbatch", "share"]
    return Table("Time breakdown", headings, rows, (_path_text(analysis), ends_with))


def _cells(value: float | None, total: float) -> list[str]:
    share = value / total if value is not None and total > 0 else None
    return [seconds(value), percent(share)]


def _path_text(analysis: PlanAnalysis) -> str:
    on_path = [analysis.tasks[s.task] for s in analysis.explanation.critical if s.task is not None]
    microbatches, nodes = {task.microbatch for task in on_path}, {task.node for task in on_path}
    counts = handovers(analysis)
    reasons = ", ".join(f"{counts[reason]} {when}" for reason, when in REASONS.items() if counts[reason])
    return (
        f"{len(on_path)} tasks of {len(microbatches)} microbatches on {len(nodes)} nodes are on the critical path"
        + (f"; they started: {reasons}." if reasons else ".")
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
    """Upgrade advice: which node or link to speed up first."""
    cluster, iteration_s = analysis.plan.cluster, analysis.plan.predicted.iteration_s
    headings = ["twice as fast", "iteration", "saved", "share", "dispatch rule"]
    headings += ["replanned"] if analysis.replanned else []
    rows = []
    for number, upgrade in enumerate(analysis.upgrades[:most]):
        saved = iteration_s - upgrade.iteration_s
        share = percent(saved / iteration_s)
        row = [upgrade_name(cluster, upgrade), seconds(upgrade.iteration_s), seconds(saved), share]
        row.append(seconds(upgrade.dispatched_s))
        if analysis.replanned:
            row.append(seconds(analysis.replanned[number]) if number < len(analysis.replanned) else "")
        rows.append(row)
    notes = [UNCHANGED]
    if not rows:
        notes.insert(0, "No single upgrade shortens the iteration with unchanged routes and order.")
    elif len(analysis.upgrades) > most:
        notes.append(f"{len(analysis.upgrades) - most} more upgrades save less.")
    return Table("Upgrades", headings, rows, tuple(notes))


def statistics(analysis: PlanAnalysis) -> Table:
    """Counters of the search."""
    rows = [
        [name.replace("_", " "), f"{value:,.0f}" if value % 1 == 0 else f"{value:,.4g}"]
        for name, value in analysis.plan.solver.statistics.items()
    ]
    return Table("Search statistics", ["", "count"], rows)


def tables(analysis: PlanAnalysis, most: int) -> list[Table]:
    """All non-empty tables of one plan."""
    found = [
        times(analysis), link_times(analysis), upgrades(analysis, most), stage_table(analysis.plan),
        statistics(analysis),
    ]  # fmt: skip
    return [table for table in found if table.rows or table.notes]
