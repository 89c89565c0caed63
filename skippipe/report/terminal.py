"""Terminal output of plans, comparisons and reports."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich.text import Text

from skippipe._scheduler import Plan
from skippipe.console.output import Console, plain_table
from skippipe.planning import Outcome, saving
from skippipe.report.analysis import PlanAnalysis
from skippipe.report.format import WORK_PER_S, percent, seconds, work_per_s
from skippipe.report.plan_metrics import gantt_rows, node_utilization, serving_nodes
from skippipe.report.stages import stage_table
from skippipe.report.table import Table
from skippipe.report.tables import overview, tables

MAX_GANTT_ROWS = 40
"""With more nodes, only the busiest are shown."""
GLYPHS = {
    "F": (">", "green"),
    "L": ("L", "bold magenta"),
    "B": ("<", "cyan"),
    "R": ("=", "yellow"),
    " ": (".", "bright_black"),
}


def show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print one row per strategy, with savings vs. the baselines, and notes below."""
    times = {outcome.strategy: outcome.iteration_s for outcome in outcomes}
    baselines = [name for name in ("full", "full-routed") if name in times]
    works = [name for name in WORK_PER_S if any(work_per_s(outcome.throughput, name) != "-" for outcome in outcomes)]
    headings = ["strategy", "iteration", "lower bound", "gap", *works, *(f"saved vs. {name}" for name in baselines)]
    rows = []
    for outcome in outcomes:
        savings = [None if name == outcome.strategy else saving(outcome.iteration_s, times[name]) for name in baselines]
        times_shown = (seconds(outcome.iteration_s), seconds(outcome.lower_bound_s))
        rates = [work_per_s(outcome.throughput, name) for name in works]
        rows.append([outcome.strategy, *times_shown, percent(outcome.gap), *rates, *map(percent, savings)])
    console.print(plain_table(headings, rows, unbroken=(0,)))
    for outcome in outcomes:
        if outcome.note:
            console.write_line(f"{outcome.strategy}: {outcome.note}")


def show_comparison(console: Console, kind: str) -> None:
    """Print which allocations the strategies were compared on."""
    console.write_line(f"Comparison: {kind}.")


def show_savings(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print the savings of routing and, on top of it, of skipping, if both are known."""
    times = {outcome.strategy: outcome.iteration_s for outcome in outcomes}
    routing = saving(times.get("full-routed"), times.get("full"))
    skipping = saving(times.get("skippipe"), times.get("full-routed"))
    if routing is not None and skipping is not None:
        console.write_line(
            f"Routing alone saves {percent(routing)} of the full pipeline's time; skipping saves a further "
            f"{percent(skipping)} of the rest."
        )


def show_gantt(console: Console, plan: Plan) -> None:
    """Print a Gantt chart of the nodes; of many, the busiest."""
    names, shares, serving = plan.cluster.names, node_utilization(plan), serving_nodes(plan)
    label_width = min(max(len(name) for name in names), 20)
    prefix = len("12  ") + label_width + len("  100 %  ")
    rows = gantt_rows(plan, max(console.width - prefix - 1, 10), MAX_GANTT_ROWS)
    forward, loss, backward, reduce, idle = (GLYPHS[kind][0] for kind in "FLBR ")
    console.write_line(
        f"Gantt chart: {forward} forward  {loss} loss  {backward} backward  {reduce} all-reduce  {idle} idle"
    )
    if len(rows) < len(serving):
        console.write_line(f"(the {len(rows)} busiest of {len(serving)} nodes)")
    heading = f"{'st':>2}  {'node':<{label_width}}  {'busy':>5}  "
    end = f"{plan.predicted.iteration_s:.4g} s"
    console.write_line(heading + "0 s" + end.rjust(len(rows[0].cells) - 3), style="bold")
    for lane in rows:
        text = Text(f"{lane.stage:>2}  {names[lane.node][:label_width]:<{label_width}}  {shares[lane.node]:>5.0%}  ")
        for kind, run in groupby(lane.cells):
            glyph, style = GLYPHS[kind]
            text.append(glyph * len(list(run)), style)
        console.print(text, no_wrap=True, overflow="crop")
    low, middle, high = np.quantile(shares[serving], [0.0, 0.5, 1.0])
    console.write_line(f"node utilization: min {low:.0%}, median {middle:.0%}, max {high:.0%}")


def show_report(console: Console, plans: Sequence[PlanAnalysis], most: int) -> None:
    """Print the overview of all plans, then the analysis of each."""
    for number, table in enumerate(overview(plans)):
        if number:
            console.write_line()
        show_table(console, table)
    for analysis in plans:
        if len(plans) > 1:
            console.write_line(f"\n{analysis.name}", style="bold")
        for table in tables(analysis, most):
            console.write_line()
            show_table(console, table)


def show_plan(console: Console, plan: Plan) -> None:
    """Print a plan's allocation and Gantt chart."""
    show_table(console, stage_table(plan))
    console.write_line()
    show_gantt(console, plan)


def show_table(console: Console, table: Table) -> None:
    """Print a table with its title above and its notes below."""
    console.write_line(table.title, style="bold")
    if table.rows:
        console.print(plain_table(table.headings, table.rows, left=table.texts))
    for note in table.notes:
        console.write_line(note)
