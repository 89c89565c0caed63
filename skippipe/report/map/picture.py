"""Map of a plan as PNG: nodes laid out by transfer times, coloured by stage, with the links in use."""

from typing import Any

import numpy as np

from skippipe._scheduler import Plan
from skippipe.report.map.layout import MapLayout, labels, lay_out, link_lines, stage_colours, stage_legend
from skippipe.report.plots import plain, png

WIDEST = 5.0
"""Line width of the link with the most messages, in points."""
MIN_SIDE = 0.5
"""Smallest side of the visible map."""


def draw_map(plan: Plan) -> bytes:
    """Draw a PNG: one site per region, close if transfers are fast; nodes of stage 0 are squares."""
    # Imported late: it takes a second, and reports do without.
    from matplotlib.figure import Figure  # noqa: PLC0415

    layout = lay_out(plan.cluster, plan.stages)
    figure = Figure(figsize=(11, 8), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.set_aspect("equal")
    axes.axis("off")
    _draw_links(axes, plan, layout)
    _draw_nodes(axes, plan, layout)
    for name in labels(plan, layout):
        axes.text(
            name.x, name.y - 0.4 * layout.radius, plain(name.text), ha="center", va="top", fontsize=7.5, zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6},
        )  # fmt: skip
    low, high = layout.nodes.min(axis=0), layout.nodes.max(axis=0)
    middle, reach = (low + high) / 2, np.maximum((high - low) / 2 + 0.06, MIN_SIDE / 2)
    axes.set_xlim(middle[0] - reach[0], middle[0] + reach[0])
    axes.set_ylim(middle[1] - reach[1], middle[1] + reach[1])
    title = f"{len(plan.cluster)} nodes in {len(plan.stages)} stages, {plan.strategy}"
    axes.set_title(f"{title}: {plan.predicted.iteration_s:.3f} s", fontsize=10, loc="left")
    return png(figure)


def _draw_nodes(axes: Any, plan: Plan, layout: MapLayout) -> None:
    from matplotlib.collections import PatchCollection  # noqa: PLC0415
    from matplotlib.patches import Circle, Patch, Rectangle  # noqa: PLC0415

    radius, handles = layout.radius, []
    for stage, (nodes, colour) in enumerate(zip(plan.stages, stage_colours(len(plan.stages)), strict=True)):
        middles = [layout.nodes[node] for node in nodes]
        signs = [
            Circle(tuple(middle), radius)
            if stage
            else Rectangle(tuple(middle - 0.9 * radius), 1.8 * radius, 1.8 * radius)
            for middle in middles
        ]
        axes.add_collection(
            PatchCollection(signs, facecolor=colour, edgecolor="0.15", linewidth=0.6 if stage else 1.2, zorder=3)
        )
        handles.append(Patch(facecolor=colour, edgecolor="0.15", label=stage_legend(plan, stage)))
    columns = 1 + len(handles) // 40
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False, ncols=columns)


def _draw_links(axes: Any, plan: Plan, layout: MapLayout) -> None:
    """Draw links with widths by their number of messages."""
    from matplotlib.collections import LineCollection  # noqa: PLC0415

    drawn = link_lines(plan, layout)
    most = max((line.messages for line in drawn), default=1)
    axes.add_collection(
        LineCollection(
            [[line.start, line.end] for line in drawn],
            linewidths=[max(WIDEST * line.messages / most, 0.3) for line in drawn],
            colors=[(0.25, 0.3, 0.4, 0.15 + 0.4 * line.messages / most) for line in drawn],
            capstyle="round",
            zorder=1,
        )
    )
    note = f"widest line: {most} messages per iteration" if drawn else "no messages"
    axes.annotate(note, (0, -0.01), xycoords="axes fraction", va="top", fontsize=8, color="0.35")
