"""Layout of the map: no geography; nodes are close if transfers between them are fast."""

import colorsys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from skippipe._scheduler import Cluster, Plan
from skippipe.report.stages import members

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
GOLDEN_ANGLE = np.pi * (3 - 5**0.5)
STEPS = 200
"""Limit on the steps that separate overlapping sites."""
RING = 6
"""Up to this many nodes of a site are placed on a circle; more fill a disc."""
NEAR = 0.05
"""Initial merging distance, as a fraction of the mean transfer time."""
FAR = 3.0
"""Limit on distances between sites, as a multiple of the median."""
LABEL_ROOM = 0.012
"""Margin around each site for its label."""
MOST_NODES = 60
"""With more nodes, links are drawn between sites instead of nodes."""
MOST_LINES = 1000
"""With more links, those with the most messages are drawn."""
MOST_SITES = 32
"""With more sites, close ones are merged."""
LABEL_WIDTH = 28
"""Characters of a label."""
COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
    "#9ecae1", "#fdbe85", "#98df8a", "#ff9896", "#c5b0d5", "#c49c94", "#f7b6d2", "#c7c7c7", "#dbdb8d", "#9edae5",
)  # fmt: skip


@dataclass(frozen=True)
class MapLayout:
    """A map about 1 wide with non-overlapping sites."""

    groups: list[list[int]]
    """nodes of each site: a region, or nodes with equal links"""
    centres: Floats
    """shape (G, 2)"""
    nodes: Floats
    """shape (N, 2)"""
    radius: float
    """radius of a node's symbol"""


def lay_out(cluster: Cluster, stages: Sequence[Sequence[int]]) -> MapLayout:
    """Lay out a cluster: sites by transfer times, the nodes of a site around its centre in the order of `stages`."""
    groups = group_nodes(cluster)
    first = [nodes[0] for nodes in groups]
    centres = multidimensional_scaling(_both_ways(cluster.transfer_times(first, first)))
    spacing = 0.6 / max(len(cluster), 20) ** 0.5 / 2
    radii = spacing * (0.55 * np.sqrt([len(nodes) for nodes in groups]) + 0.75) + LABEL_ROOM
    centres = separated(centres, radii)
    rank = {node: number for number, node in enumerate(node for nodes in stages for node in nodes)}
    nodes = np.zeros((len(cluster), 2))
    for centre, own in zip(centres, groups, strict=True):
        nodes[sorted(own, key=lambda node: rank.get(node, len(rank)))] = centre + arranged(len(own), spacing)
    return MapLayout(groups, centres, nodes, 0.38 * spacing)


def group_nodes(cluster: Cluster) -> list[list[int]]:
    """Sites: the nodes of a region, or, without regions, nodes with equal links to all others.

    If there are too many, regions or nodes with fast transfers between them are merged.
    """
    regions = cluster.region_of
    if regions is None:
        parts = [[node] for node in range(len(cluster))]
    else:
        parts = grouped(len(cluster), lambda node: np.asarray(regions == regions[node]))
    # One node represents its region: a matrix over all nodes could be huge.
    first = [nodes[0] for nodes in parts]
    transfer_s = cluster.transfer_times(first, first)
    mean_s = (transfer_s + transfer_s.T) / 2

    def equal(part: int) -> Bools:
        differs = ~(np.isclose(transfer_s, transfer_s[part]) & np.isclose(transfer_s.T, transfer_s[:, part]))
        differs[:, part] = False
        np.fill_diagonal(differs, val=False)
        return np.asarray(~differs.any(axis=1))

    def near(within: float) -> Callable[[int], Bools]:
        return lambda part: np.asarray(mean_s[part] <= within)

    groups = grouped(len(parts), equal, MOST_SITES) if regions is None else [[part] for part in range(len(parts))]
    within = NEAR * float(mean_s.mean())
    while len(groups) > MOST_SITES:
        groups = grouped(len(parts), near(within))
        within *= 2
    return [sorted(node for part in group for node in parts[part]) for group in groups]


def grouped(count: int, joined: Callable[[int], Bools], most: int | None = None) -> list[list[int]]:
    """Group nodes: each group is the first remaining node and all remaining ones `joined` with it; shape (count,).

    Stops after more than `most` groups: these are too many anyway.
    """
    groups: list[list[int]] = []
    free = np.ones(count, dtype=bool)
    for node in range(count):
        if most is not None and len(groups) > most:
            break
        if free[node]:
            own = np.flatnonzero(free & joined(node))
            free[own] = False
            groups.append(own.tolist())
    return groups


def _both_ways(transfer_s: Floats) -> Floats:
    """Mean of both directions, limited for extremely slow links."""
    mean_s = (transfer_s + transfer_s.T) / 2
    between = mean_s[~np.eye(len(mean_s), dtype=bool)]
    most_s = FAR * float(np.median(between)) if between.size else 0.0
    return np.asarray(np.minimum(mean_s, most_s), dtype=np.float64)


def multidimensional_scaling(distances: Floats) -> Floats:
    """Classical multidimensional scaling of symmetric `distances`, shape (G, G), to two dimensions, about 1 wide.

    Square roots are embedded: they are closer to planar distances, and distant sites leave room for close ones.
    """
    count = len(distances)
    squares = distances.copy()
    np.fill_diagonal(squares, 0.0)
    middle = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * middle @ squares @ middle)
    largest: Floats = np.zeros((count, 2))
    for axis in range(min(2, count)):
        vector = vectors[:, -1 - axis]
        # The sign of an eigenvector is arbitrary: its largest entry is made positive.
        sign = np.sign(vector[np.argmax(np.abs(vector).round(9))]) or 1.0
        largest[:, axis] = sign * vector * max(values[-1 - axis], 0.0) ** 0.5
    width = float(np.ptp(largest, axis=0).max())
    return largest / width if width > 0 else largest


def separated(centres: Floats, radii: Floats) -> Floats:
    """Move discs apart until they (almost) do not overlap; deterministic. Shapes (G, 2) and (G,)."""
    centres, count = centres.copy(), len(centres)
    least = radii[:, None] + radii[None, :]
    # Coinciding discs are separated in different directions.
    centres += _on_circles(np.full(count, 1e-6), GOLDEN_ANGLE * np.arange(count, dtype=np.float64))
    for _ in range(STEPS):
        offsets = centres[:, None, :] - centres[None, :, :]
        lengths = np.hypot(offsets[..., 0], offsets[..., 1])
        np.fill_diagonal(lengths, np.inf)
        missing = np.maximum(least - lengths, 0.0)
        if missing.max(initial=0.0) < 1e-3 * least.max(initial=1.0):
            break
        centres += (0.5 * (missing / lengths)[..., None] * offsets).sum(axis=1)
    return centres


def arranged(count: int, spacing: float) -> Floats:
    """Arrange points around 0: few on a ring, many in a sunflower pattern; shape (count, 2)."""
    if count == 1:
        return np.zeros((1, 2))
    numbers = np.arange(count, dtype=np.float64)
    if count <= RING:
        return _on_circles(np.full(count, 0.5 * spacing / np.sin(np.pi / count)), 2 * np.pi / count * numbers)
    return _on_circles(0.6 * spacing * np.sqrt(numbers + 0.5), GOLDEN_ANGLE * numbers)


def _on_circles(radii: Floats, angles: Floats) -> Floats:
    """Points by radius and angle; shape (count, 2)."""
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


@dataclass(frozen=True)
class LinkLine:
    """The links in use between two nodes or two sites."""

    start: tuple[float, float]
    end: tuple[float, float]
    messages: int
    """per iteration, both directions"""


def link_lines(plan: Plan, layout: MapLayout) -> list[LinkLine]:
    """Links in use, by number of messages; between sites if there are many nodes."""
    counts, ends = messages(plan), layout.nodes
    if len(plan.cluster) > MOST_NODES:
        group_of = {node: group for group, nodes in enumerate(layout.groups) for node in nodes}
        between: Counter[tuple[int, int]] = Counter()
        for (one, other), count in counts.items():
            low, high = sorted((group_of[one], group_of[other]))
            if low != high:
                between[low, high] += count
        counts, ends = between, layout.centres
    used = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    return [LinkLine(_point(ends[one]), _point(ends[other]), count) for (one, other), count in used[-MOST_LINES:]]


def messages(plan: Plan) -> Counter[tuple[int, int]]:
    """Messages between two nodes in both directions, by node numbers, the lower first.

    A microbatch follows its route, returns to its source for the loss, and its backward pass takes the same links back.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for microbatch in plan.microbatches:
        cycle = [microbatch.source, *microbatch.nodes, microbatch.source]
        for one, other in pairwise(cycle):
            if one != other:
                counts[min(one, other), max(one, other)] += 2
    return counts


@dataclass(frozen=True)
class Label:
    """Text below a site."""

    text: str
    x: float
    y: float


def labels(plan: Plan, layout: MapLayout) -> list[Label]:
    """Labels of the sites."""
    found, called = [], plan.cluster.names
    for nodes in layout.groups:
        points = layout.nodes[nodes]
        text = members([called[node] for node in nodes], LABEL_WIDTH)
        found.append(
            Label(text[: 2 * LABEL_WIDTH], float(points[:, 0].mean()), float(points[:, 1].min()) - layout.radius)
        )
    return found


def stage_colours(stages: int) -> list[str]:
    """A colour per stage, `#rrggbb`: distinct ones for few stages, evenly spaced hues for many."""
    if stages <= len(COLOURS):
        return list(COLOURS[:stages])
    hues = (colorsys.hls_to_rgb(stage / stages, (0.42, 0.62)[stage % 2], 0.7) for stage in range(stages))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hue) for hue in hues]


def stage_legend(plan: Plan, stage: int) -> str:
    """Legend entry of a stage."""
    count = len(plan.stages[stage])
    return f"stage {stage}, {count} node{'' if count == 1 else 's'}" + ("" if stage else " (squares)")


def _point(position: Floats) -> tuple[float, float]:
    return float(position[0]), float(position[1])
