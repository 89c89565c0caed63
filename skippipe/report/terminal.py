"""How plans and comparisons look in a terminal. All figures come from elsewhere."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich.text import Text

from skippipe._scheduler import Plan
from skippipe.console.output import Console, plain_table
from skippipe.planning import Outcome, saving
from skippipe.report.figures import busy_shares, lanes, serving_nodes
from skippipe.workload import Throughput

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


def show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print one row per strategy; savings where there is something to compare with; notes below."""
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
    console.print(plain_table(headings, rows, whole=(0,)))
    for outcome in outcomes:
        if outcome.note:
            console.write_line(f"{outcome.strategy}: {outcome.note}")


def show_comparison(console: Console, kind: str) -> None:
    """Say on whose allocations the strategies above were planned."""
    console.write_line(f"Comparison: {kind}.")


def show_gains(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Say what routing gains and what skipping gains on top of it, where both are known."""
    times = {outcome.strategy: outcome.iteration_s for outcome in outcomes}
    routing = saving(times.get("full-routed"), times.get("full"))
    skipping = saving(times.get("skippipe"), times.get("full-routed"))
    if routing is not None and skipping is not None:
        console.write_line(
            f"Routing alone saves {percent(routing)} of the full pipeline's time; skipping as well saves "
            f"{percent(skipping)} of what is left."
        )


def show_lanes(console: Console, plan: Plan) -> None:
    """Print what each node does over time; of many nodes, what the busiest do."""
    names, shares, serving = plan.cluster.names, busy_shares(plan), serving_nodes(plan)
    label_width = min(max(len(name) for name in names), 20)
    prefix = len("12  ") + label_width + len("  100 %  ")
    rows = lanes(plan, max(console.width - prefix - 1, 10), MAX_LANES)
    forward, loss, backward, reduce, idle = (GLYPHS[kind][0] for kind in "FLBR ")
    console.write_line(
        f"What each node does: {forward} forward  {loss} loss  {backward} backward  {reduce} all-reduce  {idle} idle"
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


def throughput_in_words(throughput: Throughput) -> str:
    """What is known of the work per second, as `, 4.2 microbatches/s, 4,300 tokens/s`."""
    shown = [(work_per_s(throughput, unit), unit) for unit in WORK_PER_S]
    return "".join(f", {value} {unit}" for value, unit in shown if value != "-")
