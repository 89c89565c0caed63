"""The studies in `benchmarks`: what they change of an instance, and how they compare."""

import dataclasses
import json

import pytest
from conftest import PUBLISHED
from needed import skip_without
from scripts import load_script

from skippipe import Cluster
from skippipe.application import compose
from skippipe.cluster import load_cluster
from skippipe.config import PlannerConfig, ScheduleConfig
from skippipe.planning import PlanningJob, make_plan
from skippipe.presets import preset_spec

skip_without("matplotlib", "the dependency group bench")
WORK = PlannerConfig(work_limit=5_000)


@pytest.mark.parametrize("name", ["geo20", "five_clusters", "single_cluster"])
def test_samples_scale_what_a_microbatch_takes(name: str) -> None:
    tc2 = load_script("tc2")
    config = compose("bench planner", []).instances[name]
    assert tc2.scaled_preset(config, tc2.PRESET_SAMPLES) == config
    small, large = (preset_spec(scaled).cluster(scaled) for scaled in (config, tc2.scaled_preset(config, 8)))
    assert large.forward_s == pytest.approx(4 * small.forward_s)
    assert large.backward_s == pytest.approx(4 * small.backward_s)
    assert large.loss_s == pytest.approx(4 * small.loss_s)
    message = small.activation_bytes
    assert large.transfer_matrix() == pytest.approx(small.transfer_matrix(4 * message))


def test_published_instance_scales_by_the_table_of_its_links() -> None:
    tc2 = load_script("tc2")
    original = load_cluster(str(PUBLISHED / "published20.cluster.json"))
    same, large = tc2.published(tc2.PRESET_SAMPLES), tc2.published(8)
    assert same.transfer_matrix() == pytest.approx(original.transfer_matrix())
    assert same.forward_s == pytest.approx(original.forward_s)
    # Latency and overhead stay, 0.35 s and more of each transfer.
    growth = large.transfer_matrix() - 4 * original.transfer_matrix()
    off = ~(growth == 0)
    assert off.sum() == 20 * 19
    assert (growth[off] < -3 * 0.35).all()
    assert (growth[off] > -3 * 0.7).all()


def test_what_a_planner_sees_of_unequal_nodes() -> None:
    study = load_script("heterogeneity")
    settings = study.cluster_settings("slow", 0)
    cluster = json.loads(preset_spec(settings).cluster(settings).to_json())
    times = [node["forward_s"] for node in cluster["nodes"]]
    memories = [node["memory"] for node in cluster["nodes"]]
    assert 2 < max(times) / min(times) <= 4
    assert {min(memories), max(memories)} == {1, 4}
    assert study.seen(cluster, speed=True, memory="true") == cluster
    equal = study.seen(cluster, speed=False, memory="least")
    assert {node["memory"] for node in equal["nodes"]} == {1}
    (forward_s,) = {node["forward_s"] for node in equal["nodes"]}
    assert len(times) / forward_s == pytest.approx(sum(1 / time for time in times))
    assert [node["memory"] for node in cluster["nodes"]] == memories


def test_a_plan_is_executed_on_the_cluster_as_it_is() -> None:
    study = load_script("heterogeneity")
    problem = load_script("synthetic").draw(study.cluster_settings("fast", 1), 6, 24, ScheduleConfig())
    cluster = json.loads(problem.cluster.to_json())
    plan = make_plan(PlanningJob(problem), "skippipe", WORK)
    assert study.executed(plan, problem.cluster)["plan"] == pytest.approx(plan.predicted.iteration_s)
    slower = study.seen(cluster, speed=True, memory="true")
    for node in slower["nodes"]:
        node["forward_s"] *= 2
    moved = study.executed(plan, Cluster.from_json(json.dumps(slower)))["plan"]
    assert moved is not None
    assert moved > plan.predicted.iteration_s
    for node in slower["nodes"]:
        node["memory"] = 1
    assert study.executed(plan, Cluster.from_json(json.dumps(slower)))["plan"] is None


def test_synthetic_instances_have_what_was_asked_for() -> None:
    synthetic = load_script("synthetic")
    config = dataclasses.replace(synthetic.preset(), nodes=23, seed=5)
    problem = synthetic.draw(config, 5, 11, ScheduleConfig())
    assert sorted(len(stage) for stage in problem.stages) == [4, 4, 5, 5, 5]
    assert sorted(node for stage in problem.stages for node in stage) == list(range(23))
    assert len(make_plan(PlanningJob(problem), "skippipe", WORK).microbatches) == 11
