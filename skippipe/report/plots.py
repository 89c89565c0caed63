"""Plots of a report as PNG: Gantt chart and search history."""

import io
from collections.abc import Sequence
from typing import Any

from skippipe._scheduler import Explanation, Plan, explain
from skippipe.packages import check_installed
from skippipe.report.analysis import PlanAnalysis
from skippipe.report.plan_metrics import reductions

COLOURS = {"F": "#a9d3ee", "L": "#f0a53a", "B": "#1f5f99"}
HATCHES = {"F": "", "L": "....", "B": "////"}
NAMES = {"F": "forward", "L": "head and loss", "B": "backward"}
ACCENT = "#b3005e"
MOST_HATCHED = 3000
"""tasks; with more, bars are too narrow for hatching"""
MOST_NAMED = 120
"""nodes; with more, rows are too low for labels"""


def plot_plan(plan: Plan, axes: Any = None) -> Any:
    """Draw a plan on `axes` (default: those of a new figure) and return them; see `Plan.plot`."""
    check_installed("Plan.plot", ["matplotlib"])
    import matplotlib.pyplot as plt  # noqa: PLC0415

    explanation = explain(plan)
    if axes is None:
        height = min(max(0.3 * sum(map(len, plan.stages)), 2), 36)
        _, axes = plt.subplots(figsize=(10, height), layout="constrained")
    _draw_chart(axes, explanation, plan.strategy)
    axes.set_xlim(0, explanation.plan.predicted.iteration_s * 1.01 or 1.0)
    axes.set_xlabel("seconds")
    _add_legend(axes)
    return axes


def draw_gantt(plans: Sequence[PlanAnalysis]) -> bytes:
    """Gantt charts of plans, one below the other, with the critical path outlined."""
    # Imported late: it takes a second, and reports do without.
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows = [sum(len(nodes) for nodes in analysis.plan.stages) for analysis in plans]
    heights = [min(max(0.19 * count, 1.5), 36) for count in rows]
    figure = Figure(figsize=(14, sum(heights) + 1.2 * len(plans)), dpi=100, layout="constrained")
    charts = figure.subplots(len(plans), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, analysis in zip(charts, plans, strict=True):
        _draw_chart(axes, analysis.explanation, f"{plain(analysis.name)}: {analysis.plan.strategy}")
    longest = max(analysis.plan.predicted.iteration_s for analysis in plans)
    charts[0].set_xlim(0, longest * 1.01 or 1.0)
    charts[-1].set_xlabel("seconds")
    _add_legend(charts[0])
    return png(figure)


def _add_legend(axes: Any) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415

    patches = [Patch(facecolor=COLOURS[k], hatch=HATCHES[k], edgecolor="0.35", label=NAMES[k]) for k in COLOURS]
    patches.append(Patch(facecolor="0.6", label="all-reduce"))
    patches.append(Patch(facecolor="none", edgecolor=ACCENT, label="critical path"))
    axes.legend(handles=patches, loc="lower right", bbox_to_anchor=(1, 1), ncols=5, fontsize=8, frameon=False)


def _draw_chart(axes: Any, explanation: Explanation, title: str) -> None:
    from matplotlib.collections import LineCollection, PolyCollection  # noqa: PLC0415

    plan = explanation.plan
    tasks = plan.tasks
    serving = [(stage, node) for stage, nodes in enumerate(plan.stages) for node in nodes]
    row = {node: index for index, (_, node) in enumerate(serving)}

    def box(number: int) -> list[tuple[float, float]]:
        task, low = tasks[number], row[tasks[number].node] - 0.42
        return [(task.start_s, low), (task.start_s, low + 0.84), (task.end_s, low + 0.84), (task.end_s, low)]

    hatched = len(tasks) <= MOST_HATCHED
    for kind, colour in COLOURS.items():
        boxes = [box(number) for number, task in enumerate(tasks) if task.kind == kind]
        bars = PolyCollection(boxes, facecolor=colour)
        if hatched:
            bars.set(edgecolor="white" if kind == "B" else "0.35", linewidth=0.3, hatch=HATCHES[kind])
        axes.add_collection(bars)
    reducing = [
        [(start, row[node] - 0.1), (start, row[node] + 0.1), (end, row[node] + 0.1), (end, row[node] - 0.1)]
        for stage, start, end in reductions(plan, tasks)
        for node in plan.stages[stage]
    ]
    axes.add_collection(PolyCollection(reducing, facecolor="0.6"))
    path = explanation.critical
    outlined = [box(segment.task) for segment in path if segment.task is not None]
    axes.add_collection(PolyCollection(outlined, facecolor="none", edgecolor=ACCENT, linewidth=1.2))
    hops = [[(s.start_s, row[s.link[0]]), (s.end_s, row[s.link[1]])] for s in path if s.link is not None]
    axes.add_collection(LineCollection(hops, color=ACCENT, linewidth=0.9))
    axes.axvline(plan.predicted.iteration_s, color="0.2", linewidth=0.8, linestyle="--")
    axes.set_ylim(len(serving) - 0.4, -0.6)
    named = len(serving) <= MOST_NAMED
    names = plan.cluster.names
    axes.set_yticks(range(len(serving)) if named else _middles(plan.stages))
    labels = [f"{stage}: {plain(names[node])}" for stage, node in serving]
    axes.set_yticklabels(
        labels if named else [f"stage {s}" for s, nodes in enumerate(plan.stages) if nodes], fontsize=7
    )
    ends = [index for index in range(1, len(serving)) if serving[index][0] != serving[index - 1][0]]
    axes.hlines([end - 0.5 for end in ends], 0, plan.predicted.iteration_s, color="0.75", linewidth=0.6)
    predicted = plan.predicted
    times = f"{predicted.iteration_s:.3f} s, lower bound {predicted.lower_bound_s:.3f} s"
    axes.set_title(f"{title}, {times}", fontsize=9, loc="left")


def _middles(stages: Sequence[Sequence[int]]) -> list[float]:
    """Middle row of each stage that has nodes."""
    middles, first = [], 0
    for nodes in stages:
        if nodes:
            middles.append(first + (len(nodes) - 1) / 2)
        first += len(nodes)
    return middles


def draw_curves(plans: Sequence[PlanAnalysis]) -> bytes | None:
    """Best iteration and lower bound over time and over work; None if no plan has a search history."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    searched = [analysis for analysis in plans if any(e.upper_s is not None for e in analysis.plan.solver.events)]
    if not searched:
        return None
    figure = Figure(figsize=(10, 4.2), dpi=100, layout="constrained")
    charts = figure.subplots(1, 2, sharey=True)
    for number, analysis in enumerate(searched):
        events = analysis.plan.solver.events
        # On a logarithmic axis, since most happens at the start.
        abscissas = ([max(e.elapsed_s, 1e-3) for e in events], [max(e.work, 1.0) for e in events])
        for axes, xs in zip(charts, abscissas, strict=True):
            for line, values in (("-", [e.upper_s for e in events]), ("--", [e.lower_s for e in events])):
                known = [(p, v) for p, v in zip(xs, values, strict=True) if v is not None]
                known.append((xs[-1], known[-1][1])) if known else None
                label = plain(analysis.name) + (": best plan" if line == "-" else ": lower bound")
                axes.step(
                    *zip(*known, strict=True), line, where="post", color=f"C{number}", label=label
                ) if known else None
    low, high = _limits(searched)
    charts[0].set_ylim(low, high)
    for axes, label in zip(charts, ("planning time, seconds", "work"), strict=True):
        axes.set_xlabel(label)
        axes.set_xscale("log")
        axes.grid(alpha=0.25)
    charts[0].set_ylabel("iteration, seconds")
    charts[0].legend(fontsize=8, frameon=False)
    return png(figure)


def _limits(searched: Sequence[PlanAnalysis]) -> tuple[float, float]:
    """Limits of the axis: without early plans and bounds far from the final ones."""
    uppers = [[e.upper_s for e in analysis.plan.solver.events if e.upper_s is not None] for analysis in searched]
    lowers = [e.lower_s for analysis in searched for e in analysis.plan.solver.events if e.lower_s is not None]
    high = max(min(max(own), 1.5 * own[-1]) for own in uppers)
    last = min(own[-1] for own in uppers)
    low = min([*(lower for lower in lowers if lower > 0.5 * last), last])
    margin = 0.03 * (high - low) or 0.1
    return low - margin, high + margin


def plain(text: str) -> str:
    """Escape text that matplotlib would parse as a formula."""
    return text.replace("$", r"\$")


def png(figure: Any) -> bytes:
    """A matplotlib figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
