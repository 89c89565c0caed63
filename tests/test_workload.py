"""What the times of a cluster hold for; the work of plans: throughput, layer executions, stages of another length."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from skippipe import Problem
from skippipe.cluster import Cluster
from skippipe.config import PlannerConfig
from skippipe.errors import InputError
from skippipe.plan_file import Plan, load_plan
from skippipe.planning import PlanningJob, make_plan
from skippipe.report.plan_metrics import assumed_layers
from skippipe.workload import (
    Throughput,
    Workload,
    partition_mismatch,
    skipped_executions,
    source_mismatch,
    throughput,
    workload_of,
)

Refused = Callable[..., str]
Write = Callable[[str, Any], Path]
FULL = {
    "config_sha256": "ab", "hidden": 64, "layers": 6, "microbatch_size": 4, "sequence": 32, "wire_dtype": "float32",
}  # fmt: skip
WORK = "planner.work_limit=200000"
STAGES = [[0, 1], [2], [3]]


def with_workload(cluster: dict[str, Any], **workload: Any) -> dict[str, Any]:
    return {**cluster, "workload": workload}


@pytest.fixture
def plan_of(small_cluster: dict[str, Any]) -> Callable[..., Plan]:
    """Plan for the small cluster, three stages on four nodes, with this workload."""

    def call(**workload: Any) -> Plan:
        cluster = Cluster.from_json(json.dumps(with_workload(small_cluster, **workload)))
        problem = Problem(cluster, STAGES, [3, 3], skip_ratio=1 / 3)
        return make_plan(PlanningJob(problem), "skippipe", PlannerConfig(work_limit=300))

    return call


def edited(plan: Plan, **changes: Any) -> Plan:
    return Plan.from_json(json.dumps(json.loads(plan.to_json()) | changes))


def test_it_comes_back_as_it_was(small_cluster: dict[str, Any]) -> None:
    stated = {**FULL, "device": "cpu", "node_layers": [2, 2, None, 1], "sources": [0, 1]}
    cluster = Cluster.from_json(json.dumps(with_workload(small_cluster, **stated)))
    assert json.loads(cluster.to_json())["workload"] == stated
    workload = workload_of(cluster)
    assert workload.node_layers == (2, 2, None, 1)
    assert json.loads(workload.to_json()) == stated
    assert workload.microbatch_tokens == 128
    silent = Cluster.from_json(json.dumps(small_cluster))
    assert workload_of(silent) == Workload()
    assert "workload" not in json.loads(silent.to_json())


@pytest.mark.parametrize(
    ("workload", "parts"),
    [
        ({"hidden": 0}, ["workload.hidden: expected an integer of at least 1, got 0"]),
        ({"sequence": -1}, ["workload.sequence"]),
        ({"layers": 2.5}, ["workload.layers", "expected a non-negative integer"]),
        ({"hidden_size": 64}, ["workload", "hidden_size"]),
        ({"node_layers": [2, 2, 2]}, ["workload.node_layers: expected", "each of the 4 nodes", "got a list of 3"]),
        ({"node_layers": [2, 2, 0, 2]}, ["workload.node_layers[2]: expected an integer of at least 1, or null, got 0"]),
        ({"sources": [4]}, ["workload.sources: expected numbers in 0..3, got 4"]),
        ({"wire_dtype": 3}, ["workload.wire_dtype"]),
        ([1], ["workload: invalid type: list, expected an object"]),
    ],
)
def test_refused(workload: Any, parts: list[str], small_cluster: dict[str, Any], plan_of: Callable[..., Plan]) -> None:
    """In a cluster, and in the cluster of a plan."""
    with pytest.raises(InputError) as of_cluster:
        Cluster.from_json(json.dumps({**small_cluster, "workload": workload}))
    with pytest.raises(InputError) as of_plan:
        edited(plan_of(), cluster={**small_cluster, "workload": workload})
    for part in parts:
        assert part in str(of_cluster.value)
        assert part in str(of_plan.value)
    assert "cluster.workload" in str(of_plan.value)


def test_refused_with_the_name_of_the_file(refused: Refused, write: Write, small_cluster: dict[str, Any]) -> None:
    write("c.json", with_workload(small_cluster, hidden=0))
    assert "c.json: workload.hidden: expected an integer of at least 1, got 0" in refused("plan", "cluster.file=c.json")


def test_a_plan_is_for_the_model_of_its_times(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(**FULL)
    assert plan.model is not None
    assert json.loads(plan.model) == FULL
    assert throughput(plan).tokens_per_s == pytest.approx(6 * 128 / plan.predicted.iteration_s)
    partly = plan_of(**{key: value for key, value in FULL.items() if key != "config_sha256"})
    assert partly.model is None
    assert throughput(partly) == throughput(plan)


def test_throughput_is_of_what_is_known(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(microbatch_size=4)
    rate = 6 / plan.predicted.iteration_s
    assert throughput(plan).microbatches_per_s == pytest.approx(rate)
    assert throughput(plan).tokens_per_s is None
    assert throughput(plan, 2.0) == Throughput(3.0, None)
    assert throughput(plan, 0.0) == Throughput()


def test_layer_executions(plan_of: Callable[..., Plan]) -> None:
    """By hand: six microbatches, each on stage 0, three on each of the other two."""
    plan = plan_of()
    visits = [sum(stage in m.stages for m in plan.microbatches) for stage in range(3)]
    assert visits == [6, 3, 3]
    assert skipped_executions(plan) is None
    assert skipped_executions(edited(plan, layers=[2, 2, 2])) == pytest.approx(1 / 3)
    assert skipped_executions(edited(plan, layers=[1, 10, 1])) == pytest.approx(1 - (6 + 30 + 3) / 72)
    assert skipped_executions(edited(plan, layers=[10, 1, 1])) == pytest.approx(1 - 66 / 72)


def test_absent_stages_count_in_neither(run: Run, write: Write, tmp_path: Path, small_cluster: dict[str, Any]) -> None:
    write("c.json", with_workload(small_cluster, layers=7))
    write("a.json", {"stages": [[0, 1], [], [2], [3]], "absent_stages": [1], "layers": [1, 5, 2, 3]})
    arguments = (
        "plan",
        "cluster.file=c.json",
        "allocate.stages=a.json",
        "schedule.microbatches_per_source=3",
        "planner.work_limit=300",
        "output=p.json",
    )
    result = run(*arguments, "schedule.skip_ratio=0")
    assert result.status == 0, result.err
    plan = load_plan(str(tmp_path / "p.json"))
    assert skipped_executions(plan) == pytest.approx(0.0)
    assert assumed_layers(plan) == [1, 5, 2, 3]
    assert assumed_layers(edited(plan, layers=[])) == [3, 0, 2, 2]


def test_stages_of_another_length(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(node_layers=[2, 2, 2, 2], layers=6)
    assert partition_mismatch(plan, [2, 2, 2]) is None
    assert partition_mismatch(plan, None) is None
    assert partition_mismatch(plan, [3, 3, 2]) == "stages 0-1 have 3 decoder layers, the node times hold for 2"
    mismatch = partition_mismatch(plan, [1, 2, 3])
    assert mismatch == (
        "stage 0 has 1 decoder layer, the node times hold for 2; "
        "stage 2 has 3 decoder layers, the node times hold for 2"
    )
    unknown = plan_of(node_layers=[None] * 4)
    assert partition_mismatch(unknown, [1, 2, 3]) is None


def test_source_mismatch(plan_of: Callable[..., Plan]) -> None:
    assert source_mismatch(plan_of()) is None
    assert source_mismatch(plan_of(sources=[0, 1])) is None
    assert source_mismatch(plan_of(sources=[0, 2])) == (
        "times of n1 are without the embedding of stage 0; times of n2 include the embedding of stage 0"
    )


def test_a_plan_for_another_number_of_stages_says_so(run: Run) -> None:
    def shown(*arguments: str) -> str:
        result = run("plan", "planner.work_limit=300", *arguments)
        assert result.status == 0, result.err
        return str(result.out)

    assert "another cut" not in shown("cluster=geo20")
    said = "real ones will differ: stages 0-7 have 3 decoder layers, the node times hold for 4."
    assert said in shown("cluster=geo20", "schedule.stages=8")
    assert "another cut" not in shown("cluster=synthetic", "schedule.stages=3"), "of the whole model nothing is known"
    assert "stages 0-1 have 3 decoder layers, the node times hold for 2" in shown("cluster=local4", "schedule.stages=2")


def test_chosen_layers_have_their_times(run: Run, tmp_path: Path) -> None:
    """Times of a plan with layers=auto hold for the layers that it gives each stage."""
    unequal = ("cluster=synthetic", "cluster.nodes=10", "cluster.speed_spread=4", "cluster.memory_spread=4")
    asked = ("schedule.stages=3", "schedule.microbatches_per_source=4", "allocate.layers=auto", WORK)
    result = run("plan", *unequal, *asked, "output=p.json")
    assert result.status == 0, result.err
    plan = load_plan(str(tmp_path / "p.json"))
    assert sum(plan.layers) == 12
    assert len(set(plan.layers)) > 1
    held = workload_of(plan.cluster).node_layers
    for stage, nodes in enumerate(plan.stages):
        assert {held[node] for node in nodes} == {plan.layers[stage]}
    share = skipped_executions(plan)
    assert share is not None
    assert abs(share - 1 / 3) > 0.01
    assert f"skip ratio 0.3333, layer executions skipped {share:.1%}" in result.out
    assert "another cut" not in result.out
    stated = run("plan", "cluster=local4", "allocate.layers=auto", "planner.work_limit=300", "output=p.json")
    assert stated.status == 0, stated.err
    assert sum(load_plan(str(tmp_path / "p.json")).layers) == 6, "local4 states a model of six"


def test_throughput_stands_beside_times(run: Run, tmp_path: Path) -> None:
    small = ("cluster=local4", "planner.work_limit=500", "schedule.microbatches_per_source=3")
    result = run("plan", *small, "compare=[full,random-skip]", "output=p.json")
    assert result.status == 0, result.err
    for row in re.findall(r"^(?:full|full-routed|random-skip|skippipe) +.*", result.out, re.MULTILINE):
        iteration, *rates = re.findall(r"([\d.,]+) s\b|([\d.,]+)(?= {2,}|$)", row)
        assert iteration[0]
        found = [float(rate.replace(",", "")) for _, rate in rates if rate]
        assert found[:2] == pytest.approx([6 / float(iteration[0]), 6 * 1024 / float(iteration[0])], rel=2e-3)
    time = load_plan(str(tmp_path / "p.json")).predicted.iteration_s
    swept = run("plan", "-m", *small, "planner.seed=0")
    assert swept.status == 0, swept.err
    rate = f"iteration {time:.4f} s, {6 / time:.4g} microbatches/s, {6 * 1024 / time:,.0f} tokens/s"
    assert rate in swept.out
    simulated = run("simulate", "plan=p.json")
    assert f"{6 * 1024 / time:,.0f}" in simulated.out
