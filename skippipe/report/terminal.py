"""How plans, comparisons and progress look in a terminal. All figures come from elsewhere."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from skippipe._scheduler import Plan
from skippipe.planning import Outcome, Progress, saving
from skippipe.report.plan_metrics import gantt_rows, node_utilization, serving_nodes
from skippipe.workload import Throughput

PLAIN_WIDTH = 110
"""Characters in a line where standard output is no terminal and says nothing about its width."""
MAX_LANES = 40
"""More rows than this do not help anybody: the busiest nodes are shown then."""
WORK_PER_S = {"microbatches/s": "microbatches_per_s", "tokens/s": "tokens_per_s"}
GLYPHS = {
    "F": (">", "green"),
    "L": ("L", "bold magenta"),
    "B": ("<", "cyan"),
    "R": ("=", "yellow"),
    " ": (".", "bright_black"),
}


def make_console() -> Console:
    """Standard output: colours and its own width on a terminal, plain text elsewhere."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    width = os.environ.get("COLUMNS", "")
    return Console(highlight=False, width=int(width) if width.isdecimal() and int(width) > 0 else PLAIN_WIDTH)


def show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print one row per strategy; savings where there is something to compare with; notes below."""
    times = {outcome.strategy: outcome.iteration_s for outcome in outcomes}
    baselines = [name for name in ("full", "full-routed") if name in times]
    table = plain_table()
    table.padding = (0, 2, 0, 0)
    table.add_column("strategy", no_wrap=True)
    works = [name for name in WORK_PER_S if any(work_per_s(outcome.throughput, name) != "-" for outcome in outcomes)]
    for heading in ("iteration", "lower bound", "gap", *works, *(f"saved of {name}" for name in baselines)):
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
    """Say on whose allocations the strategies above were planned."""
    console.print(f"Comparison: {kind}.", markup=False, soft_wrap=True)


def show_gains(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Say what routing gains and what skipping gains on top of it, where both are known."""
    times = {outcome.strategy: outcome.iteration_s for outcome in outcomes}
    routing = saving(times.get("full-routed"), times.get("full"))
    skipping = saving(times.get("skippipe"), times.get("full-routed"))
    if routing is not None and skipping is not None:
        console.print(
            f"Routing alone saves {percent(routing)} of the full pipeline's time; skipping as well saves "
            f"{percent(skipping)} of what is left.",
            markup=False,
            soft_wrap=True,
        )


def show_gantt(console: Console, plan: Plan) -> None:
    """Print what each node does over time; of many nodes, what the busiest do."""
    names, shares, serving = plan.cluster.names, node_utilization(plan), serving_nodes(plan)
    label_width = min(max(len(name) for name in names), 20)
    prefix = len("12  ") + label_width + len("  100 %  ")
    rows = gantt_rows(plan, max(console.width - prefix - 1, 10), MAX_LANES)
    forward, loss, backward, reduce, idle = (GLYPHS[kind][0] for kind in "FLBR ")
    console.print(
        f"What each node does: {forward} forward  {loss} loss  {backward} backward  {reduce} all-reduce  {idle} idle",
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
    console.print(f"busy share of the nodes: least {low:.0%}, median {middle:.0%}, most {high:.0%}", markup=False)


@contextlib.contextmanager
def planning_progress(strategy: str) -> Iterator[Progress | None]:
    """Show how far the search is while it runs, on standard error if that is a terminal; else yield None."""
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


def seconds(value: float | None) -> str:
    """Write a time with its unit, or a dash where there is none."""
    return "-" if value is None else f"{value:.3f} s"


def percent(value: float | None) -> str:
    """Write a share in percent, or a dash where there is none."""
    return "-" if value is None else f"{value:.1%}"


def work_per_s(throughput: Throughput, unit: str) -> str:
    """Write the work per second in a unit of `WORK_PER_S`, or a dash where it is not known."""
    value = getattr(throughput, WORK_PER_S[unit])
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def throughput_text(throughput: Throughput) -> str:
    """What is known of the work per second, as `, 4.2 microbatches/s, 4,300 tokens/s`."""
    shown = [(work_per_s(throughput, unit), unit) for unit in WORK_PER_S]
    return "".join(f", {value} {unit}" for value, unit in shown if value != "-")


def plain_table() -> Table:
    """A table without frames, which reads as well in a file."""
    return Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
