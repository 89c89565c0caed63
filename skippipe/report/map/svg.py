"""Map of a plan as SVG for the page."""

import html
from dataclasses import dataclass

from skippipe._scheduler import Plan
from skippipe.report.map.layout import MapLayout, labels, lay_out, link_lines, stage_colours, stage_legend

WIDTH, LEGEND, MARGIN, ROW = 760, 190, 30, 17
WIDEST = 6.0
NOTE = (
    "Sites are close if transfers between them are fast; the map is not geographic. Line width: number of messages, at "
    "most {most} per iteration."
)


@dataclass(frozen=True)
class Frame:
    """Transformation from map to pixel coordinates."""

    left: float
    top: float
    scale: float
    """pixels for each unit of the map"""

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return MARGIN + (value - self.left) * self.scale

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return MARGIN + (self.top - value) * self.scale


def stage_map(plan: Plan) -> str:
    """Nodes coloured by stage, those of stage 0 as squares, and the links in use."""
    layout = lay_out(plan.cluster, plan.stages)
    low, high = layout.nodes.min(axis=0).tolist(), layout.nodes.max(axis=0).tolist()
    side = max(high[0] - low[0], 0.5)
    frame = Frame((low[0] + high[0] - side) / 2, high[1], (WIDTH - 2 * MARGIN) / side)
    height = max(frame.y(low[1]) + MARGIN + ROW, ROW * (len(plan.stages) + 1))
    drawn = link_lines(plan, layout)
    most = max((line.messages for line in drawn), default=0)
    parts = []
    for line in drawn:
        (x1, y1), (x2, y2), share = line.start, line.end, line.messages / most
        parts.append(
            f'<path class="link" stroke-width="{max(WIDEST * share, 0.4):.1f}" opacity="{0.15 + 0.45 * share:.2f}" '
            f'd="M{frame.x(x1):.1f} {frame.y(y1):.1f}L{frame.x(x2):.1f} {frame.y(y2):.1f}"/>'
        )
    for stage, colour in enumerate(stage_colours(len(plan.stages))):
        signs = "".join(_sign(plan, layout, frame, node, stage) for node in plan.stages[stage])
        y = ROW * (stage + 1)
        parts.append(f'<g class="stage" fill="{colour}">{signs}')
        parts.append(f'<rect x="{WIDTH}" y="{y - 10}" width="18" height="11"/></g>')
        parts.append(f'<text x="{WIDTH + 24}" y="{y}">{stage_legend(plan, stage)}</text>')
    for name in labels(plan, layout):
        x, y_text = frame.x(name.x), frame.y(name.y) + 12
        parts.append(f'<text text-anchor="middle" x="{x:.1f}" y="{y_text:.1f}">{html.escape(name.text)}</text>')
    size = f'width="{WIDTH + LEGEND}" height="{height:.0f}" viewBox="0 0 {WIDTH + LEGEND} {height:.0f}"'
    return (
        f'<h2>Map</h2><svg class="map" {size} role="img" aria-label="nodes by stage and site">'
        f"{''.join(parts)}</svg><p>{NOTE.format(most=most)}</p>"
    )


def _sign(plan: Plan, layout: MapLayout, frame: Frame, node: int, stage: int) -> str:
    """One node, with its name as a tooltip."""
    x, y = frame.x(float(layout.nodes[node, 0])), frame.y(float(layout.nodes[node, 1]))
    radius = layout.radius * frame.scale
    title = f"<title>{html.escape(plan.cluster.names[node])}, stage {stage}</title>"
    if stage:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">{title}</circle>'
    side = 1.8 * radius
    return f'<rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}">{title}</rect>'
