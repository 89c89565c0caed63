"""Terminal output of plans, comparisons, reports and progress."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from skippipe._scheduler import Plan
from skippipe.planning import Outcome, Progress, saving
from skippipe.report.analysis import PlanAnalysis
from skippipe.report.format import WORK_PER_S, percent, seconds, work_per_s
from skippipe.report.plan_metrics import gantt_rows, node_utilization, serving_nodes
from skippipe.report.stages import stage_table
from skippipe.report.table import Table
from skippipe.report.tables import overview, tables

PLAIN_WIDTH = 110
"""Line width if standard output is not a terminal and COLUMNS is not set."""
MAX_GANTT_ROWS = 40
"""With more nodes, only the busiest are shown."""
GLYPHS = {
    "F": (">", "green"),
    "L": ("L", "bold magenta"),
    "B": ("<", "cyan"),
    "R": ("=", "yellow"),
    " ": (".", "bright_black"),
}


def make_console() -> Console:
    """Console on standard output: colours and full width on a terminal, plain text elsewhere."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    width = os.environ.get("COLUMNS", "")
    return Console(highlight=False, width=int(width) if width.isdecimal() and int(width) > 0 else PLAIN_WIDTH)


def show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print one row per strategy, with savings vs. the baselines, and notes below."""
    times = {outcome.strategy: outcome.iteration_s for outcome in outcomes}
    baselines = [name for name in ("full", "full-routed") if name in times]
    table = plain_table()
    table.padding = (0, 2, 0, 0)
    table.add_column("strategy", no_wrap=True)
    works = [name for name in WORK_PER_S if any(work_per_s(outcome.throughput, name) != "-" for outcome in outcomes)]
    for heading in ("iteration", "lower bound", "gap", *works, *(f"saved vs. {name}" for name in baselines)):
        table.add_column(heading, justify="right", overflow="fold")
    for outcome in outcomes:
        savings = [None if name == outcome.strategy else saving(outcome.iteration_s, times[name]) for name in baselines]
        times_shown = (seconds(outcome.iteration_s), seconds(outcome.lower_bound_s))
        rates = [work_per_s(outcome.throughput, name) for name in works]
        table.add_row(outcome.strategy, *times_shown, percent(outcome.gap), *rates, *map(percent, savings))
    console.print(table)
    for outcome in outcomes:
        if outcome.note:
            console.print(f"{outcome.strategy}: {outcome.note}", markup=False, soft_wrap=True)


def show_comparison(console: Console, kind: str) -> None:
    """Print which allocations the strategies were compared on."""
    console.print(f"Comparison: {kind}.", markup=False, soft_wrap=True)


def show_savings(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print the savings of routing and, on top of it, of skipping, if both are known."""
    times = {outcome.strategy: outcome.iteration_s for outcome in outcomes}
    routing = saving(times.get("full-routed"), times.get("full"))
    skipping = saving(times.get("skippipe"), times.get("full-routed"))
    if routing is not None and skipping is not None:
        console.print(
            f"Routing alone saves {percent(routing)} of the full pipeline's time; skipping saves a further "
            f"{percent(skipping)} of the rest.",
            markup=False,
            soft_wrap=True,
        )


def show_gantt(console: Console, plan: Plan) -> None:
    """Print a Gantt chart of the nodes; of many, the busiest."""
    names, shares, serving = plan.cluster.names, node_utilization(plan), serving_nodes(plan)
    label_width = min(max(len(name) for name in names), 20)
    prefix = len("12  ") + label_width + len("  100 %  ")
    rows = gantt_rows(plan, max(console.width - prefix - 1, 10), MAX_GANTT_ROWS)
    forward, loss, backward, reduce, idle = (GLYPHS[kind][0] for kind in "FLBR ")
    console.print(
        f"Gantt chart: {forward} forward  {loss} loss  {backward} backward  {reduce} all-reduce  {idle} idle",
        markup=False,
    )
    if len(rows) < len(serving):
        console.print(f"(the {len(rows)} busiest of {len(serving)} nodes)")
    heading = f"{'st':>2}  {'node':<{label_width}}  {'busy':>5}  "
    end = f"{plan.predicted.iteration_s:.4g} s"
    console.print(heading + "0 s" + end.rjust(len(rows[0].cells) - 3), markup=False, style="bold")
    for lane in rows:
        text = Text(f"{lane.stage:>2}  {names[lane.node][:label_width]:<{label_width}}  {shares[lane.node]:>5.0%}  ")
        for kind, run in groupby(lane.cells):
            glyph, style = GLYPHS[kind]
            text.append(glyph * len(list(run)), style)
        console.print(text, no_wrap=True, overflow="crop")
    low, middle, high = np.quantile(shares[serving], [0.0, 0.5, 1.0])
    console.print(f"node utilization: min {low:.0%}, median {middle:.0%}, max {high:.0%}", markup=False)


@contextlib.contextmanager
def planning_progress(strategy: str) -> Iterator[Progress | None]:
    """Show the search's progress on standard error if it is a terminal; else yield None."""
    if not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True).status(f"planning {strategy}") as status:

        def show(elapsed_s: float, incumbent_s: float, lower_bound_s: float, work: int) -> None:
            best = f"best {incumbent_s:.4g} s" if np.isfinite(incumbent_s) else "no plan yet"
            status.update(
                f"planning {strategy}: {elapsed_s:.1f} s, {best}, lower bound {lower_bound_s:.4g} s, work {work:,}"
            )

        yield show


def plain_table() -> RichTable:
    """A table without borders, readable in files too."""
    return RichTable(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")


def show_report(console: Console, plans: Sequence[PlanAnalysis], most: int) -> None:
    """Print the overview of all plans, then the analysis of each."""
    for number, table in enumerate(overview(plans)):
        if number:
            console.print()
        show_table(console, table)
    for analysis in plans:
        if len(plans) > 1:
            console.print(f"\n{analysis.name}", markup=False, style="bold")
        for table in tables(analysis, most):
            console.print()
            show_table(console, table)


def show_plan(console: Console, plan: Plan) -> None:
    """Print a plan's allocation and Gantt chart."""
    show_table(console, stage_table(plan))
    console.print()
    show_gantt(console, plan)


def show_table(console: Console, table: Table) -> None:
    """Print a table with its title above and its notes below."""
    console.print(table.title, markup=False, style="bold")
    if table.rows:
        drawn = plain_table()
        drawn.padding = (0, 2, 0, 0)
        for number, heading in enumerate(table.headings):
            drawn.add_column(escape(heading), justify="left" if number in table.texts else "right", overflow="fold")
        for row in table.rows:
            drawn.add_row(*map(escape, row))
        console.print(drawn)
    for note in table.notes:
        console.print(note, markup=False, soft_wrap=True)
