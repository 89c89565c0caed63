"""Figures of a measured cluster, for stages of other sizes than those that were timed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from skippipe.cluster import Cluster
from skippipe.console.output import Console
from skippipe.errors import InputError
from skippipe.measured import MOST_HELD, for_planning, layers_by_node, with_layers
from skippipe.plan_file import load_plan
from skippipe.report.cluster import show_cluster
from skippipe.workload import workload_of

NODE = {
    "layer_forward_s": 0.1, "layer_backward_s": 0.2, "layer_step_s": 0.01, "forward_spread_s": 0.0,
    "backward_spread_s": 0.0, "loss_spread_s": 0.0, "samples": 9, "timed_layers": [1, 2], "held_bytes": 10.0,
    "layer_held_bytes": 5.0, "layer_state_bytes": 100.0, "fixed_bytes": 50.0, "memory_bytes": 1000.0,
}  # fmt: skip


@pytest.fixture
def content(small_cluster: dict[str, Any]) -> dict[str, Any]:
    """Four nodes, timed with two of seven layers: a forward takes 0.05 s and 0.1 s per layer."""
    count = len(small_cluster["nodes"])
    for node in small_cluster["nodes"]:
        node |= {"forward_s": 0.25, "backward_s": 0.45}
    return small_cluster | {
        "workload": {"layers": 7, "node_layers": [2] * count},
        "step_s": [0.03] * count,
        "gradient_bytes": [1.0, 1.0, 1.0],
        "measured": {
            "nodes": [dict(NODE) for _ in range(count)],
            "layer_gradient_bytes": 30.0,
            "head_gradient_bytes": 7.0,
            "links": {"latency_spread_s": [], "message_spread_s": [], "messages": []},
        },
    }


@pytest.fixture
def measured(content: dict[str, Any]) -> Cluster:
    return Cluster.from_json(json.dumps(content))


def test_it_comes_back_as_it_was(content: dict[str, Any], measured: Cluster) -> None:
    assert json.loads(measured.to_json())["measured"] == content["measured"]
    assert json.loads(measured.measured or "") == content["measured"]


def test_stages_of_other_sizes(measured: Cluster) -> None:
    other = with_layers(measured, [1, 2, 3, 5], 3)
    assert list(other.forward_s) == pytest.approx([0.15, 0.25, 0.35, 0.55])
    assert list(other.backward_s) == pytest.approx([0.25, 0.45, 0.65, 1.05])
    assert list(other.step_s) == pytest.approx([0.02, 0.03, 0.04, 0.06])
    assert list(other.memory) == [850 // 15, 750 // 20, 650 // 25, 450 // 35]
    assert workload_of(other).node_layers == (1, 2, 3, 5)
    assert other.gradient_bytes == pytest.approx([77.0, 70.0, 70.0])
    assert list(other.loss_s) == list(measured.loss_s)


def test_a_node_without_room(content: dict[str, Any]) -> None:
    content["measured"]["nodes"][2]["memory_bytes"] = 260
    cluster = Cluster.from_json(json.dumps(content))
    with pytest.raises(
        InputError, match="expected room for a microbatch of a stage of 2 decoder layers, got 260 bytes"
    ):
        with_layers(cluster, [2] * 4, 3)
    content["measured"]["nodes"][2]["memory_bytes"] = 1e12
    assert with_layers(Cluster.from_json(json.dumps(content)), [2] * 4, 3).memory[2] == MOST_HELD


def test_for_a_plan(measured: Cluster) -> None:
    even = for_planning(measured, 3, total=None, searched=False)
    assert workload_of(even).node_layers == (3, 3, 3, 3), "7 layers on 3 stages: the largest has 3"
    assert even.measured is None
    searched = for_planning(measured, 3, total=None, searched=True)
    assert list(searched.forward_s) == pytest.approx([0.05 + 0.1 * 7 / 3] * 4)
    assert workload_of(searched).node_layers == (None,) * 4, "no stage has 7/3 layers"
    more = for_planning(measured, 2, total=10, searched=False)
    assert list(more.forward_s) == pytest.approx([0.55] * 4)
    given = layers_by_node([[0, 3], [1]], [5, 2], measured)
    assert given == [5, 2, 1, 5]
    assert layers_by_node([[0, 3], [1]], [], measured) == [4, 3, 1, 4]
    assert workload_of(for_planning(measured, 2, total=None, searched=False, node_layers=given)).node_layers == (
        5,
        2,
        1,
        5,
    )
    assert for_planning(measured, 8, total=None, searched=False) is measured, "fewer layers than stages"


def test_a_plan_from_a_measured_file(content: dict[str, Any], tmp_path: Path, run: Run) -> None:
    (tmp_path / "c.json").write_text(json.dumps(content))
    line = ["plan", "cluster.file=c.json", "planner.work_limit=20000", "output=plan.json", "allocate.sizes=[2,1,1]"]
    assert run(*line).status == 0
    plan = load_plan(str(tmp_path / "plan.json"))
    assert list(plan.cluster.forward_s) == pytest.approx([0.35] * 4)
    assert run(*line, "allocate.layers=auto").status == 0
    plan = load_plan(str(tmp_path / "plan.json"))
    assert sum(plan.layers) == 7
    for nodes, layers in zip(plan.stages, plan.layers, strict=True):
        for node in nodes:
            assert plan.cluster.forward_s[node] == pytest.approx((0.05 + 0.1 * 7 / 3) * layers * 3 / 7)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["nodes"], [], "measured.nodes: expected one entry for each of the 4 nodes, got a list of 0"),
        (["nodes", 1, "layer_forward_s"], -1.0, "measured.nodes[1].layer_forward_s: expected a number of seconds"),
        (["nodes", 1, "memory_bytes"], -1.0, "measured.nodes[1].memory_bytes: expected a finite number of at least 0"),
        (["layer_gradient_bytes"], -1.0, "measured.layer_gradient_bytes: expected a finite number"),
        (["links", "messages"], [[1]], "measured.links.messages: expected 4 rows of 4 numbers, or none, got 1 rows"),
        (["links", "latency_spread_s"], [[-1.0] * 4] * 4, "measured.links.latency_spread_s[0][0]: expected"),
        (["links", "latency"], [], "latency"),
    ],
)
def test_refused(content: dict[str, Any], path: list[Any], value: Any, message: str) -> None:
    place = content["measured"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputError, match=re.escape(message)):
        Cluster.from_json(json.dumps(content))


@pytest.mark.parametrize(("spread_s", "unsteady"), [(0.1, False), (0.5, True)])
def test_times_of_a_busy_machine_are_named(
    content: dict[str, Any], spread_s: float, unsteady: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A forward and a backward take 0.7 s."""
    content["measured"]["nodes"][1]["backward_spread_s"] = spread_s
    show_cluster(Cluster.from_json(json.dumps(content)), Console())
    out = capsys.readouterr().out
    assert ("measure again" in out) == unsteady
    assert f"{spread_s / 0.7:.1%}" in out
