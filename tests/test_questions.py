"""The question and the answer as the extension has them: requests, reports, errors with fields, copies of plans."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skippipe import AllocationScope, Cluster, Constraints, Plan, Problem, simulate
from skippipe._scheduler import PlanRequest, allocate, first_allocation, plan
from skippipe.cluster import load_cluster
from skippipe.config import SyntheticConfig
from skippipe.errors import DeadlockError, ImpossibleError, InputError, in_file, in_group, unexpected
from skippipe.planning import with_origin
from skippipe.presets import synthetic_cluster

SIZES = [3, 3, 2]
WORK: dict[str, Any] = {"time_limit_s": None, "work_limit": 20_000}
MODEL: dict[str, Any] = {
    "config_sha256": "ab", "hidden": 8, "layers": 6, "microbatch_size": 2, "sequence": 16, "wire_dtype": "float32"
}  # fmt: skip


def cluster_of(nodes: int) -> Cluster:
    """Unequal nodes in two regions, which average gradients."""
    config = SyntheticConfig(nodes=nodes, regions=2, activation_bytes=1e6)
    config.node.forward_s, config.node.backward_s, config.node.loss_s, config.node.memory = 0.04, 0.08, 0.01, 4
    for link in (config.inside, config.farthest):
        link.latency_s, link.bandwidth = 1e-3, 1e9
    return synthetic_cluster(config).cluster(config, [1e6] * 3)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Eight nodes."""
    return cluster_of(8)


@pytest.fixture(scope="module")
def made(cluster: Cluster) -> Plan:
    """A plan whose allocation was searched from the surrogate's."""
    first = Problem(cluster, microbatches=[2, 3, 2], sizes=SIZES, skip_ratio=0.25)
    return plan(PlanRequest(first, scope=AllocationScope(unused=True), **WORK))


def test_the_surrogate_comes_first_with_its_part_of_the_work(cluster: Cluster) -> None:
    first = Problem(cluster, microbatches=[2, 3, 2], sizes=SIZES, skip_ratio=0.25)
    found = allocate(cluster, SIZES, time_limit_s=None, work_limit=4_000)
    request = PlanRequest(first, **WORK)
    problem, surrogate = first_allocation(request)
    assert surrogate == found
    assert problem == Problem(cluster, found.best.stages, [2, 3, 2], skip_ratio=0.25)
    answer = plan(request)
    assert (answer.stages, answer.solver.surrogate) == (found.best.stages, found)
    assert answer.solver.allocation is None
    assert first_allocation(PlanRequest(problem, **WORK)) == (problem, None)
    assert plan(PlanRequest(problem, **WORK)).tasks == answer.tasks


def test_microbatches_are_those_of_the_sources_in_their_order(cluster: Cluster) -> None:
    first = Problem(cluster, microbatches=[1, 2, 4], sizes=SIZES, skip_ratio=0.25, sources=[6, 0, 3], layers=[2, 2, 1])
    problem, _ = first_allocation(PlanRequest(first, **WORK))
    assert (problem.stages[0], problem.microbatches, problem.layers) == ([6, 0, 3], [1, 2, 4], [2, 2, 1])
    assert problem.cluster == first.cluster == cluster
    answer = plan(PlanRequest(first, "full-routed", scope=AllocationScope(sources=False), **WORK))
    assert answer.microbatches_per_source == {6: 1, 0: 2, 3: 4}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sizes": [3, 3, 3]}, "sizes"),
        ({"sources": [0, 1]}, "sources"),
        ({"microbatches": [1, 2]}, "microbatches"),
        ({"skip_ratio": 0.9}, "skip_ratio"),
        ({"max_replica_transfer_s": -1.0}, "max_replica_transfer_s"),
        ({"layers": [1, 2]}, "layers"),
        ({"sizes": [4, 4], "microbatches": [1] * 4}, "cluster.gradient_bytes"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_any_search(changes: dict[str, Any], key: str, cluster: Cluster) -> None:
    asked: dict[str, Any] = {"sizes": SIZES, "microbatches": [2, 3, 2], "skip_ratio": 0.25} | changes
    with pytest.raises(InputError) as caught:
        Problem(cluster, **asked)
    assert caught.value.key == key


def test_the_report_is_in_the_file(made: Plan) -> None:
    report = made.solver
    assert Plan.from_json(made.to_json()).solver == report
    content = json.loads(made.to_json())["solver"]
    assert report.allocation is not None
    assert report.surrogate is not None
    assert content["allocation"]["lower_bound_s"] == report.allocation.lower_bound_s
    assert content["surrogate"]["score_s"] == report.surrogate.best.score_s
    assert (content["seed"], content["threads"], content["work"]) == (report.seed, report.threads, report.work)
    assert content["events"] == [[e.elapsed_s, e.work, e.upper_s, e.lower_s or 0.0] for e in report.events]
    assert content["statistics"] == report.statistics
    assert not report.interrupted


def test_parts_of_a_report_that_are_of_another_form_are_absent(made: Plan) -> None:
    content = json.loads(made.to_json())
    content["solver"] = {"work": -1, "seed": "x", "allocation": 3, "surrogate": [], "mine": {"a": 1}, "wall_s": 2.5}
    read = Plan.from_json(json.dumps(content))
    report = read.solver
    assert (report.work, report.seed, report.allocation, report.surrogate, report.wall_s) == (
        None,
        None,
        None,
        None,
        2.5,
    )
    assert json.loads(read.to_json())["solver"] == {"mine": {"a": 1}, "wall_s": 2.5}


def test_errors_of_values_have_fields(cluster: Cluster) -> None:
    with pytest.raises(InputError) as caught:
        Problem(cluster, [[0, 1, 2], [3, 4, 5], [6, 7]], [1, 1, 1], skip_ratio=0.9)
    error = caught.value
    assert (error.key, error.found, error.file, error.position) == ("skip_ratio", "0.9", None, None)
    assert str(error) == f"skip_ratio: expected {error.expected}, got 0.9"
    assert str(in_file(error, "x\n.json")) == f"x\\n.json: {error}"
    assert str(in_group(error, "schedule")) == f"schedule.{error}"
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert vars(other) == vars(error)
        assert str(other) == str(error)
    ours = unexpected("a.b", [1] * 100, "a short list", "f.json")
    assert str(ours) == f"f.json: a.b: expected a short list, got {ours.found}"
    assert len(str(ours)) < 200


def test_errors_of_files_have_a_place(write: Callable[[str, Any], Path], small_cluster: dict[str, Any]) -> None:
    path = write("c.json", json.dumps(small_cluster).replace('"memory"', '\n "memori"', 1))
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    error = caught.value
    assert (error.file, error.key, error.position) == (str(path), "nodes[0].memori", (2, 9))
    assert str(error) == f"{path}:2:9: nodes[0].memori: unknown key; did you mean memory?"


def test_errors_of_the_search_have_fields(cluster: Cluster, made: Plan) -> None:
    stages = [[0, 1, 2], [3, 4, 5], [6, 7]]
    crowded = Problem(cluster, stages, [9, 9, 9], skip_ratio=0.0, constraints=Constraints(tc1="routes"))
    with pytest.raises(ImpossibleError) as impossible:
        plan(PlanRequest(crowded, **WORK))
    assert impossible.value.rule == "TC1"
    assert str(impossible.value).startswith("no plan exists: TC1 cannot hold: ")
    content = json.loads(made.to_json())
    content["tasks"].reverse()
    with pytest.raises(DeadlockError) as deadlock:
        simulate(Plan.from_json(json.dumps(content)))
    cycle = deadlock.value.cycle
    assert len(cycle) > 1
    assert str(deadlock.value) == f"deadlock: {' waits for '.join((*cycle, cycle[0]))}"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("stages[1][0]", "s.json: stages[1][0]: "),
        ("layers", "s.json: layers: "),
        ("cluster.nodes[3].memory", "c.json: cluster.nodes[3].memory: "),
        ("skip_ratio", "schedule.skip_ratio: "),
        ("sources", "allocate.sources: "),
        ("clusters", "clusters: "),
    ],
)
def test_keys_say_where_they_stand(key: str, said: str) -> None:
    assert str(with_origin(unexpected(key, 1, "x"), "c.json", "s.json")) == f"{said}expected x, got 1"


def test_copies_of_a_plan(made: Plan) -> None:
    cluster = made.cluster
    slower = cluster.with_times(2 * cluster.forward_s, cluster.backward_s, cluster.loss_s)
    assert np.array_equal(slower.forward_s, 2 * cluster.forward_s)
    assert np.array_equal(slower.transfer_matrix(), cluster.transfer_matrix())
    assert slower.with_times(cluster.forward_s, cluster.backward_s, cluster.loss_s) == cluster
    moved = made.with_cluster(slower)
    assert (moved.tasks, moved.cluster) == (made.tasks, slower)
    assert simulate(moved).predicted.iteration_s > made.predicted.iteration_s
    assert moved.with_cluster(cluster) == made
    with pytest.raises(InputError) as caught:
        made.with_cluster(cluster_of(7))
    assert (caught.value.key, caught.value.found) == ("cluster.nodes", "a list of 7")
    with pytest.raises(InputError):
        cluster.with_times(-cluster.forward_s, cluster.backward_s, cluster.loss_s)
    named = made.with_model(**MODEL)
    assert named.model is not None
    assert json.loads(named.model) == MODEL
    assert Plan.from_json(named.to_json()) == named
    bare = made.without_report()
    assert json.loads(bare.to_json()) == json.loads(made.to_json()) | {"solver": {}}


def test_the_question_of_a_plan_under_other_rules(made: Plan) -> None:
    problem = made.problem()
    assert (problem.stages, problem.absent_nodes, problem.absent_stages) == (made.stages, made.absent_nodes, [])
    rules = Constraints(max_swaps=0)
    full = problem.with_rules(rules, skip_ratio=0.0)
    answer = plan(PlanRequest(full, **WORK))
    assert (answer.stages, answer.skip_ratio, answer.constraints) == (made.stages, 0.0, rules)
    assert answer.microbatches_per_source == made.microbatches_per_source
    assert problem.with_rules(made.constraints, skip_ratio=made.skip_ratio) == problem
