"""Where nodes lie on a map that knows no geography: near each other where messages between them are quick."""

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
"""The most steps in which places that overlap are moved apart."""
RING = 6
"""Nodes of a place that lie on one circle; with more, they fill it."""
NEAR = 0.05
"""Of the mean transfer time: nodes nearer to each other are the first to be joined."""
FAR = 3.0
"""Places are at most so many times as far apart as the middle pair of places."""
LABEL_ROOM = 0.012
"""Left around each place for its name."""
MOST_NODES = 60
"""With more, links are shown from place to place instead of from node to node."""
MOST_LINES = 1000
"""Of more, those with most messages are shown."""
MOST_PLACES = 32
"""Of more, those near each other are joined."""
NAME = 28
"""Characters at a place."""
COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
    "#9ecae1", "#fdbe85", "#98df8a", "#ff9896", "#c5b0d5", "#c49c94", "#f7b6d2", "#c7c7c7", "#dbdb8d", "#9edae5",
)  # fmt: skip


@dataclass(frozen=True)
class MapLayout:
    """A map: about 1 wide, places do not overlap."""

    groups: list[list[int]]
    """nodes of each place: a region, or nodes with equal links"""
    centres: Floats
    """shape (G, 2)"""
    nodes: Floats
    """shape (N, 2)"""
    radius: float
    """of the sign of a node"""


def lay_out(cluster: Cluster, stages: Sequence[Sequence[int]]) -> MapLayout:
    """Lay out a cluster: places by transfer times, the nodes of a place around its middle in the order of `stages`."""
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
    """Nodes of one region; where the cluster has no regions, nodes whose links to all others are equal.

    Where these are too many to be told apart, regions or nodes that are quick to reach from each other are one place.
    """
    regions = cluster.region_of
    if regions is None:
        parts = [[node] for node in range(len(cluster))]
    else:
        parts = grouped(len(cluster), lambda node: np.asarray(regions == regions[node]))
    # One node stands for its region: a matrix over all nodes can be large beyond measure.
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

    groups = grouped(len(parts), equal, MOST_PLACES) if regions is None else [[part] for part in range(len(parts))]
    within = NEAR * float(mean_s.mean())
    while len(groups) > MOST_PLACES:
        groups = grouped(len(parts), near(within))
        within *= 2
    return [sorted(node for part in group for node in parts[part]) for group in groups]


def grouped(count: int, joined: Callable[[int], Bools], most: int | None = None) -> list[list[int]]:
    """Groups of nodes: the first that is left, and all that are left and `joined` with it; shape (count,).

    Where more than `most` groups come of it, the rest is left out: these are too many anyway.
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
    """Mean of both directions; links that are slow out of all proportion count as far, and no more than that."""
    mean_s = (transfer_s + transfer_s.T) / 2
    between = mean_s[~np.eye(len(mean_s), dtype=bool)]
    most_s = FAR * float(np.median(between)) if between.size else 0.0
    return np.asarray(np.minimum(mean_s, most_s), dtype=np.float64)


def multidimensional_scaling(distances: Floats) -> Floats:
    """Classical multidimensional scaling of symmetric `distances`, shape (G, G), to two dimensions, about 1 wide.

    The square roots are laid out: they come nearer to distances of a plane, and far places leave room for near ones.
    """
    count = len(distances)
    squares = distances.copy()
    np.fill_diagonal(squares, 0.0)
    middle = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * middle @ squares @ middle)
    largest: Floats = np.zeros((count, 2))
    for axis in range(min(2, count)):
        vector = vectors[:, -1 - axis]
        # The sign of an eigenvector is free: the entry that counts most is made positive.
        sign = np.sign(vector[np.argmax(np.abs(vector).round(9))]) or 1.0
        largest[:, axis] = sign * vector * max(values[-1 - axis], 0.0) ** 0.5
    width = float(np.ptp(largest, axis=0).max())
    return largest / width if width > 0 else largest


def separated(centres: Floats, radii: Floats) -> Floats:
    """Move discs apart until they overlap no more, or hardly; deterministic. Shapes (G, 2) and (G,)."""
    centres, count = centres.copy(), len(centres)
    least = radii[:, None] + radii[None, :]
    # Those in the very same place part in directions of their own.
    centres += _on_circles(np.full(count, 1e-6), GOLDEN_ANGLE * np.arange(count, dtype=np.float64))
    for _ in range(STEPS):
        ways = centres[:, None, :] - centres[None, :, :]
        lengths = np.hypot(ways[..., 0], ways[..., 1])
        np.fill_diagonal(lengths, np.inf)
        missing = np.maximum(least - lengths, 0.0)
        if missing.max(initial=0.0) < 1e-3 * least.max(initial=1.0):
            break
        centres += (0.5 * (missing / lengths)[..., None] * ways).sum(axis=1)
    return centres


def arranged(count: int, spacing: float) -> Floats:
    """Lay points around 0: few on a ring, many evenly from the middle outwards (a sunflower); shape (count, 2)."""
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
    """What a map shows of the links in use between two nodes, or between two places."""

    start: tuple[float, float]
    end: tuple[float, float]
    messages: int
    """of an iteration, both directions together"""


def link_lines(plan: Plan, layout: MapLayout) -> list[LinkLine]:
    """Links in use, those with most messages last; from place to place where nodes are many."""
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
    """Messages between two nodes, both directions together, by node numbers with the lower first.

    A microbatch goes from node to node of its route, home for the loss, and all the way back.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for microbatch in plan.microbatches:
        way = [microbatch.source, *microbatch.nodes, microbatch.source]
        for one, other in pairwise(way):
            if one != other:
                counts[min(one, other), max(one, other)] += 2
    return counts


@dataclass(frozen=True)
class Label:
    """Text below a place."""

    text: str
    x: float
    y: float


def labels(plan: Plan, layout: MapLayout) -> list[Label]:
    """What the places are called."""
    found, called = [], plan.cluster.names
    for nodes in layout.groups:
        points = layout.nodes[nodes]
        text = members([called[node] for node in nodes], NAME)
        found.append(Label(text[: 2 * NAME], float(points[:, 0].mean()), float(points[:, 1].min()) - layout.radius))
    return found


def stage_colours(stages: int) -> list[str]:
    """A colour for each stage, `#rrggbb`: well apart for few, around the circle of hues for many."""
    if stages <= len(COLOURS):
        return list(COLOURS[:stages])
    hues = (colorsys.hls_to_rgb(stage / stages, (0.42, 0.62)[stage % 2], 0.7) for stage in range(stages))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hue) for hue in hues]


def stage_words(plan: Plan, stage: int) -> str:
    """What the legend says of a stage."""
    count = len(plan.stages[stage])
    return f"stage {stage}, {count} node{'' if count == 1 else 's'}" + ("" if stage else " (squares)")


def _point(place: Floats) -> tuple[float, float]:
    return float(place[0]), float(place[1])
