"""The public names of `skippipe`: examples, help, NumPy in and out, copies, and what importing them costs."""

import copy
import doctest
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skippipe
from skippipe.application import compose
from skippipe.cli import main
from skippipe.config import AllocateConfig, PlannerConfig, ScheduleConfig, SitesConfig
from skippipe.errors import InputError
from skippipe.planning import make_plan, planning_job, time_limit
from skippipe.presets import configured_cluster

NODES = 4


@pytest.fixture(scope="module")
def cluster() -> skippipe.Cluster:
    """Four nodes at two sites."""
    latency_s = np.full((NODES, NODES), 0.05)
    latency_s[:2, :2] = latency_s[2:, 2:] = 0.001
    return skippipe.Cluster(
        names=["a", "b", "c", "d"],
        forward_s=np.linspace(0.1, 0.16, NODES, dtype=np.float32),
        backward_s=np.full(NODES, 0.2),
        loss_s=[0.05] * NODES,
        memory=np.full(NODES, 3),
        latency_s=latency_s,
        bandwidth=np.full((NODES, NODES), 1e8),
        activation_bytes=1e6,
        gradient_bytes=np.full(3, 1e6),
    )


@pytest.fixture(scope="module")
def plan(cluster: skippipe.Cluster) -> skippipe.Plan:
    problem = skippipe.Problem(cluster, sizes=np.array([2, 1, 1]), microbatches=3)
    return skippipe.plan(problem, work_limit=5_000)


def test_the_example_of_the_package() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(skippipe)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("name", ["Cluster", "Problem", "allocate", "plan", "preset_cluster", "simulate"])
def test_examples_of_the_help(name: str) -> None:
    examples = doctest.DocTestFinder(recurse=False).find(getattr(skippipe, name), name, module=False, globs={})
    assert [example.name for example in examples if example.examples] == [name]
    assert all(doctest.DocTestRunner().run(example).failed == 0 for example in examples)


@pytest.mark.parametrize("name", skippipe.__all__)
def test_public_names_are_public(name: str) -> None:
    public = getattr(skippipe, name)
    assert not public.__module__.rpartition(".")[2].startswith("_")
    assert pickle.loads(pickle.dumps(public)) is public
    assert len(public.__doc__) > 20
    for member, value in inspect.getmembers(
        public, lambda value: inspect.isroutine(value) or inspect.isdatadescriptor(value)
    ):
        if not member.startswith("_"):
            assert value.__doc__, f"{name}.{member}"


def test_every_argument_is_described() -> None:
    functions = (
        skippipe.plan, skippipe.simulate, skippipe.allocate, skippipe.preset_cluster, skippipe.explain,
        skippipe.upgrades, skippipe.score_allocation,
    )  # fmt: skip
    for function in functions:
        for argument in inspect.signature(function).parameters:
            assert f"        {argument}: " in (function.__doc__ or ""), argument
    for kind in (skippipe.Cluster, skippipe.Problem):
        for argument in inspect.signature(kind).parameters:
            assert f"    {argument}: " in (kind.__doc__ or ""), argument


def test_importing_loads_nothing_heavy() -> None:
    heavy = ("numpy", "torch", "transformers", "matplotlib", "hydra", "omegaconf", "rich", "yaml")
    code = f"import sys, skippipe; sys.exit(str([name for name in {heavy} if name in sys.modules] or ''))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == "\n"


def test_planning_needs_neither_torch_nor_settings() -> None:
    code = """\
import sys
import skippipe
cluster = skippipe.Cluster(["a", "b"], [1, 1], [1, 1], [1, 1], [2, 2], transfer_s=[[0, 1], [1, 0]])
skippipe.simulate(skippipe.plan(skippipe.Problem(cluster, [[0], [1]], 2, skip_ratio=0), work_limit=100))
skippipe.allocate(cluster, [1, 1], work_limit=100)
sys.exit(str([name for name in ("torch", "hydra", "omegaconf") if name in sys.modules] or ""))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == "\n"


def test_defaults_are_those_of_the_command(cluster: skippipe.Cluster) -> None:
    def defaults(function: Any) -> dict[str, Any]:
        return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}

    planner, schedule = PlannerConfig(), ScheduleConfig()
    asked = defaults(skippipe.plan)
    for name in ("method", "suboptimality", "time_limit_s", "work_limit", "threads", "seed"):
        assert asked[name] == getattr(planner, name)
    assert asked["strategy"] == schedule.strategy
    problem = skippipe.Problem(cluster, sizes=[2, 1, 1])
    assert problem.microbatches == [schedule.microbatches_per_source] * 2
    assert problem.skip_ratio == schedule.skip_ratio
    rules = skippipe.Constraints()
    for name in ("cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump", "profile", "classes"):
        assert getattr(rules, name) == getattr(schedule, name)


def test_the_same_question_has_the_same_plan_as_on_the_command_line() -> None:
    """Allocation included: what the search may change of it is the same."""
    config = SitesConfig(stage_sizes=[2, 1, 1], sites=2, nodes_per_site=2, activation_bytes=1e6)
    config.node.forward_s, config.node.backward_s, config.node.loss_s, config.node.memory = 0.1, 0.2, 0.05, 4
    config.inside.latency_s, config.inside.bandwidth = 1e-3, 1e9
    config.between.latency_s, config.between.bandwidth = 0.05, 1e8
    planner = PlannerConfig(work_limit=5_000)
    job = planning_job(config, AllocateConfig(), ScheduleConfig())
    assert time_limit(planner, job.scope) is None
    expected = make_plan(job, "skippipe", planner)
    problem = skippipe.Problem(job.first.cluster, sizes=[2, 1, 1])
    assert problem == job.first
    answer = skippipe.plan(problem, work_limit=5_000)
    assert answer.stages == expected.stages
    assert answer.tasks == expected.tasks


@pytest.mark.parametrize("name", ["five_clusters", "geo20", "local4", "single_cluster", "synthetic"])
def test_presets_are_those_of_the_command(name: str) -> None:
    config = compose("plan", [f"cluster={name}"]).cluster
    stages = len(config.stage_sizes or [])
    assert skippipe.preset_cluster(name) == configured_cluster(config, stages)
    changed = compose("plan", [f"cluster={name}", "cluster.node.memory=7", "cluster.overhead_s=0.5"]).cluster
    assert skippipe.preset_cluster(name, stages=2, node={"memory": 7}, overhead_s=0.5) == configured_cluster(changed, 2)


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("mars", {}, "name"),
        ("synthetic", {"nodes": 0}, "nodes"),
        ("synthetic", {"nodes": "many"}, "nodes"),
        ("geo20", {"sites": 2}, "sites"),
        ("geo20", {"node": {"speed": 2}}, "node.speed"),
    ],
)
def test_presets_refuse(name: str, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        skippipe.preset_cluster(name, **settings)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")


def test_explanations_and_upgrades(plan: skippipe.Plan) -> None:
    explanation = skippipe.explain(plan)
    assert explanation.critical[-1].end_s == plan.predicted.iteration_s
    best, *_ = skippipe.upgrades(explanation)
    faster = skippipe.simulate(plan.with_cluster(best.apply(plan.cluster)))
    assert faster.predicted.iteration_s == best.iteration_s < plan.predicted.iteration_s
    found = skippipe.allocate(plan.cluster, [2, 1, 1], work_limit=1_000)
    assert skippipe.score_allocation(plan.cluster, found.best.stages) == found.best


def test_tasks_as_arrays(plan: skippipe.Plan) -> None:
    columns = plan.task_arrays()
    assert {name: column.dtype.kind for name, column in columns.items()} == {
        "node": "i", "stage": "i", "microbatch": "i", "kind": "U", "hop": "i", "start_s": "f", "end_s": "f"
    }  # fmt: skip
    names = ("node", "microbatch", "kind", "hop", "start_s", "end_s")
    rows = list(zip(*(columns[name].tolist() for name in names), strict=True))
    assert rows == [tuple(getattr(task, name) for name in names) for task in plan.tasks]
    routes = {microbatch.id: microbatch for microbatch in plan.microbatches}
    for stage, task in zip(columns["stage"].tolist(), plan.tasks, strict=True):
        assert stage == routes[task.microbatch].stages[task.hop]


def test_copies(cluster: skippipe.Cluster, plan: skippipe.Plan) -> None:
    rules = skippipe.Constraints(cc3=False, tc1="routes", waves=2, max_stage_jump=3)
    open_problem = skippipe.Problem(
        cluster, microbatches=[1, 2], sizes=[2, 1, 1], sources=[3, 0], max_replica_transfer_s=1.0, constraints=rules,
        skip_ratio=0.25, layers=[2, 1, 1],
    )  # fmt: skip
    given = skippipe.Problem(
        cluster, [[0, 1], [2], []], [1, 2], skip_ratio=0.25, absent_stages=[2], absent_nodes=[3], layers=[1, 1, 1]
    )
    scope = skippipe.AllocationScope(layers=6, sources=False, max_replica_transfer_s=0.5, unused=True)
    for value in (cluster, plan, open_problem, given, plan.problem(), rules, scope):
        for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert other == value
            assert repr(other) == repr(value)
    assert repr(given) == "Problem(4 nodes, stages=[[0, 1], [2], []], microbatches=[1, 2], skip_ratio=0.25)"
    assert eval(repr(scope), vars(skippipe)) == scope
    assert eval(repr(rules), vars(skippipe)) == rules


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"stages": None}, "stages"),
        ({"sizes": [2, 1, 1]}, "sizes"),
        ({"sources": [0, 1]}, "sources"),
        ({"max_replica_transfer_s": 1.0}, "max_replica_transfer_s"),
        ({"stages": None, "sizes": [2, 1, 1], "absent_nodes": [3]}, "absent_nodes"),
        ({"stages": None, "sizes": [2, 1, 1], "absent_stages": [2]}, "absent_stages"),
        ({"microbatches": -1}, "microbatches"),
        ({"microbatches": [1]}, "microbatches"),
    ],
)
def test_questions_that_contradict_themselves(changes: dict[str, Any], key: str, cluster: skippipe.Cluster) -> None:
    asked: dict[str, Any] = {"stages": [[0, 1], [2], [3]], "microbatches": 2} | changes
    with pytest.raises(InputError) as caught:
        skippipe.Problem(cluster, **asked)
    assert caught.value.key == key


def test_a_problem_without_allocation(cluster: skippipe.Cluster) -> None:
    problem = skippipe.Problem(cluster, sizes=[2, 1, 1], sources=[1, 3])
    assert (problem.stages, problem.sizes, problem.sources, problem.absent_nodes) == ([], [2, 1, 1], [1, 3], [])
    with pytest.raises(InputError, match="stages: expected the nodes of each stage, got none"):
        problem.lower_bound_s()
    other = problem.with_rules(skippipe.Constraints(cc2=False), skip_ratio=0.5)
    assert (other.sizes, other.sources, other.skip_ratio, other.constraints.cc2) == ([2, 1, 1], [1, 3], 0.5, False)
    assert sorted(skippipe.plan(problem, work_limit=1_000).stages[0]) == [1, 3]


def test_files(cluster: skippipe.Cluster, plan: skippipe.Plan, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(cluster.to_json())
    assert skippipe.load_cluster(tmp_path / "mine.json") == cluster
    skippipe.save_plan(plan, str(tmp_path / "plan.json"))
    assert skippipe.load_plan(tmp_path / "plan.json") == plan
    assert main(["simulate", f"plan={tmp_path / 'plan.json'}"]) == 0


def test_plots(plan: skippipe.Plan) -> None:
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    axes = plan.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{stage}: {plan.cluster.names[node]}" for stage, nodes in enumerate(plan.stages) for node in nodes
    ]
    figure, (left, right) = plt.subplots(1, 2)
    assert plan.plot(right) is right
    assert len(right.collections) == len(axes.collections) > len(left.collections) == 0
    plt.close(axes.figure)
    plt.close(figure)


def test_plots_without_matplotlib(plan: skippipe.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skippipe.packages.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"Plan.plot: requires matplotlib .*; pip install 'skippipe\[plot\]'"):
        plan.plot()
