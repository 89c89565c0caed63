"""The map of a plan: layout, links and output."""

import html
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st
from report.conftest import HOSTILE
from report.test_report_command import shape_of

from skippipe import Cluster
from skippipe.plan_file import load_plan
from skippipe.report.map.layout import (
    arranged,
    group_nodes,
    labels,
    lay_out,
    link_lines,
    messages,
    multidimensional_scaling,
    separated,
    stage_colours,
)

POINTS = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=12)


def distances(points: np.ndarray) -> np.ndarray:
    return np.asarray(np.hypot(*(points[:, None] - points[None, :]).T))


@given(POINTS)
def test_planar_points_are_recovered(points: list[tuple[float, float]]) -> None:
    """Up to translation, rotation and scale; square roots of the distances are embedded."""
    given_ = distances(np.array(points))
    found = distances(multidimensional_scaling(given_**2))
    if given_.max() < 1e-3:
        return
    assert found * given_.max() == pytest.approx(given_ * found.max(), abs=1e-4)


@given(POINTS, st.floats(0.01, 0.3))
def test_overlapping_discs_are_separated(points: list[tuple[float, float]], radius: float) -> None:
    radii = radius * (1.0 + np.arange(len(points), dtype=np.float64) % 3)
    gaps = distances(separated(np.array(points), radii)) - radii[:, None] - radii[None, :]
    np.fill_diagonal(gaps, 0)
    assert gaps.min() > -0.5 * radius


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 50, 400])
def test_nodes_of_a_site_keep_their_distance(count: int) -> None:
    found = distances(arranged(count, 1.0))
    np.fill_diagonal(found, np.inf)
    assert found.min() >= 0.85
    assert distances(arranged(count, 1.0)).max() <= 1.3 * count**0.5 + 0.5


def matrix_cluster(transfer_s: np.ndarray) -> Cluster:
    count = len(transfer_s)
    return Cluster(
        [f"n{i}" for i in range(count)], [1.0] * count, [2.0] * count, [0.1] * count, [2] * count, transfer_s=transfer_s
    )


def test_nodes_with_equal_links_are_one_site() -> None:
    """Two nodes that differ only in the links between them, or in one direction to a third."""
    site = np.array([0, 1, 0, 2, 1])
    between = np.array([[0.1, 3, 5], [4, 0.2, 6], [7, 8, 0.3]])
    transfer_s = between[np.ix_(site, site)]
    np.fill_diagonal(transfer_s, 0)
    assert group_nodes(matrix_cluster(transfer_s)) == [[0, 2], [1, 4], [3]]
    transfer_s[3, 2] += 0.5
    assert group_nodes(matrix_cluster(transfer_s)) == [[0], [1, 4], [2], [3]]


def test_close_nodes_are_merged_if_there_are_many() -> None:
    """Distant sites with measured, unequal links."""
    noise = np.random.default_rng(1).uniform(0.8, 1.2, (80, 80))
    site = np.arange(80) % 5
    between = 2.0 + np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    np.fill_diagonal(between, 0.1)
    transfer_s = between[np.ix_(site, site)] * noise
    np.fill_diagonal(transfer_s, 0)
    assert group_nodes(matrix_cluster(transfer_s)) == [list(range(s, 80, 5)) for s in range(5)]


def test_one_region_and_one_node() -> None:
    alone = matrix_cluster(np.zeros((1, 1)))
    assert lay_out(alone, [[0]]).nodes.tolist() == lay_out(alone, [[0]]).centres.tolist()
    equal = matrix_cluster(1 - np.eye(5))
    layout = lay_out(equal, [[0, 1], [2, 3, 4]])
    assert layout.groups == [[0, 1, 2, 3, 4]]
    assert np.isfinite(layout.nodes).all()
    assert len(set(map(tuple, layout.nodes.tolist()))) == 5


@pytest.mark.parametrize("name", ["plan.json", "large.json"])
def test_a_map_of_a_plan(name: str, plans: Path) -> None:
    plan = load_plan(str(plans / name))
    layout = lay_out(plan.cluster, plan.stages)
    assert sorted(node for nodes in layout.groups for node in nodes) == list(range(len(plan.cluster)))
    assert np.array_equal(layout.nodes, lay_out(plan.cluster, plan.stages).nodes)
    gaps = distances(layout.nodes)
    np.fill_diagonal(gaps, np.inf)
    assert gaps.min() >= 2 * layout.radius
    assert len(labels(plan, layout)) == len(layout.groups)
    drawn = link_lines(plan, layout)
    shown = [line.messages for line in drawn]
    assert shown == sorted(shown)
    assert 0 < len(drawn) <= 1000
    if len(plan.cluster) <= 60:
        assert sum(shown) == sum(messages(plan).values())


def test_messages_match_the_tasks(plans: Path) -> None:
    """Counted from each microbatch's tasks."""
    plan = load_plan(str(plans / "plan.json"))
    counted: Counter[tuple[int, int]] = Counter()
    order = {"F": 0, "L": 1, "B": 2}
    for microbatch in plan.microbatches:
        own = [task for task in plan.tasks if task.microbatch == microbatch.id]
        own.sort(key=lambda task: (order[task.kind], -task.hop if task.kind == "B" else task.hop))
        for one, other in pairwise(own):
            if one.node != other.node:
                counted[min(one.node, other.node), max(one.node, other.node)] += 1
    assert messages(plan) == counted


@pytest.mark.parametrize("stages", [1, 6, 20, 21, 60])
def test_stage_colours_are_distinct(stages: int) -> None:
    colours = stage_colours(stages)
    assert len(set(colours)) == stages
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


@pytest.mark.parametrize("name", ["plan.json", "large.json", "hostile.json"])
def test_map_as_png(name: str, plans: Path, run: Run, tmp_path: Path) -> None:
    result = run("report", f"plan={plans / name}", "output=null", "map=map.png")
    assert result.status == 0, result.err
    assert "written: map.png" in result.out
    height, width, _ = shape_of(tmp_path / "map.png")
    assert min(height, width) > 600


def test_the_map_in_the_page(pages: Path) -> None:
    plan, page = load_plan(str(pages / "plan.json")), (pages / "plan.html").read_text()
    drawn = page.partition('<svg class="map"')[2].partition("</svg>")[0]
    stage_of = {node: stage for stage, nodes in enumerate(plan.stages) for node in nodes}
    titles = [f"{name}, stage {stage_of[node]}" for node, name in enumerate(plan.cluster.names)]
    assert sorted(re.findall("<title>(.*?)</title>", drawn)) == sorted(titles)
    assert drawn.count("<circle") == len(plan.cluster) - len(plan.stages[0])
    assert drawn.count('class="link"') == len(messages(plan))
    hostile = (pages / "hostile.html").read_text().partition('<svg class="map"')[2].partition("</svg>")[0]
    assert html.escape(f"3{HOSTILE}") in hostile
    assert (pages / "compare.html").read_text().count('<svg class="map"') == 2
