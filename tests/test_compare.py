"""`compare=`: every strategy on its own best allocation, or all on one; and how allocations are found for baselines."""

import itertools
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import ROOT, Run
from effort import cases
from reference.allocator import Stages
from reference.independent import verdict
from reference.instances import random_cluster
from test_joint import goes_forward, in_order, problem_of, ways_to_allocate

from skippipe import AllocationScope, Cluster, Plan, Problem
from skippipe._scheduler import PlanRequest, allocate, plan
from skippipe.application import compose
from skippipe.config import PlannerConfig, ScheduleConfig
from skippipe.plan_file import load_plan
from skippipe.planning import RANDOM_SEEDS, PlanningJob, evaluate_strategy, make_plan, on_allocation_of, planning_job

BASELINES = ("full", "full-routed", "random-skip", "skippipe-no-tc2")
EACH = 200_000
"""Work that the search for an allocation gives the plan of each one, where its limit is generous."""
GENEROUS: dict[str, Any] = {"time_limit_s": None, "work_limit": 30_000_000}
WORK = "planner.work_limit=40000"
TWO_SITES = f"cluster.file={ROOT / 'benchmarks' / 'two_sites.cluster.json'}"

Planned = Callable[..., Plan]


@pytest.fixture
def planned(run: Run, tmp_path: Path) -> Planned:
    """Plan with the arguments of a command line."""

    def call(*arguments: str) -> Plan:
        result = run("plan", *arguments, "output=plan.json")
        assert result.status == 0, result.err
        return load_plan(str(tmp_path / "plan.json"))

    return call


def iteration_s(found: Plan) -> float:
    return found.predicted.iteration_s


def tiny(seed: int) -> tuple[Cluster, list[int], Callable[[Stages], Problem]]:
    """A cluster of five nodes, sizes of its stages, and the question for an allocation."""
    rng = Random(seed)
    sizes = rng.choice([[2, 2, 1], [1, 2, 2], [2, 1, 1, 1], [2, 3], [3, 2]])
    cluster = Cluster.from_json(json.dumps(random_cluster(rng, 5, len(sizes))))
    each, ratio = rng.randint(1, 2), rng.choice([1 / 3, 0.5, 0.25])
    rules = {"tc1": "held", "waves": 1, "max_swaps": 1}
    return cluster, sizes, lambda stages: problem_of(cluster, stages, each, ratio, rules)


def rings(stages: Stages) -> list[Stages]:
    """The same stages with the nodes of each in every order of a ring."""
    orders = [[[nodes[0], *rest] for rest in itertools.permutations(nodes[1:])] for nodes in stages]
    return [list(chosen) for chosen in itertools.product(*orders)]


@pytest.mark.parametrize("strategy", ["full", "skippipe-no-tc2"])
@pytest.mark.parametrize("seed", range(cases(5, 3)))
def test_the_best_of_all_allocations_is_found(strategy: str, seed: int) -> None:
    """Every allocation there is, planned by the strategy itself with as much work, is no better."""
    cluster, sizes, question = tiny(seed)
    start = in_order(allocate(cluster, sizes).best.stages, sizes)
    found = plan(PlanRequest(question(start), strategy, scope=AllocationScope(), **GENEROUS))
    assert found.check() == []
    assert verdict(found.to_json()) == []
    assert [len(stage) for stage in found.stages] == sizes
    goes_forward(found)
    times = {}
    for stages in ways_to_allocate(list(range(5)), sizes):
        for ring in rings(stages) if cluster.gradient_bytes else [stages]:
            made = plan(PlanRequest(question(ring), strategy, time_limit_s=None, work_limit=EACH))
            times[str(ring)] = iteration_s(made)
    if strategy == "full":  # nodes that are just like each other may make other routes by travel time
        assert iteration_s(found) >= min(times.values()) * (1 - 1e-9)
    assert iteration_s(found) <= min(times.values()) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(8, 10))
def test_no_baseline_is_worse_than_on_the_allocation_of_skippipe(seed: int) -> None:
    cluster, sizes, question = tiny(seed)
    problem = question(in_order(allocate(cluster, sizes).best.stages, sizes))
    for unused in (False, True):
        scope = AllocationScope(unused=unused)
        one = plan(PlanRequest(problem, "skippipe", scope=scope, time_limit_s=None, work_limit=400_000)).problem()
        for strategy in ("full", "full-routed", "skippipe-no-tc2"):
            same = plan(PlanRequest(one, strategy, time_limit_s=None, work_limit=EACH))
            own = plan(PlanRequest(problem, strategy, scope=scope, **GENEROUS))
            assert iteration_s(own) <= iteration_s(same) * (1 + 1e-9), (strategy, unused)
            assert len(own.stages[0]) == len(same.stages[0])
            assert len(own.microbatches) == len(same.microbatches)


@pytest.mark.parametrize("strategy", BASELINES)
def test_an_own_allocation_whatever_the_threads(strategy: str, planned: Planned) -> None:
    arguments = (f"schedule.strategy={strategy}", "planner.work_limit=150000", "cluster=five_clusters")
    one, three = planned(*arguments), planned(*arguments, "planner.threads=3")
    assert one.stages == three.stages
    assert one.tasks == three.tasks
    assert verdict(one.to_json()) == []
    assert one.solver.allocation == three.solver.allocation
    assert one.solver.surrogate == three.solver.surrogate
    goes_forward(one)


@pytest.mark.parametrize("strategy", ["full", "full-routed", "skippipe-no-tc2"])
def test_a_strategy_alone_gives_what_it_gives_in_a_comparison(strategy: str, planned: Planned, run: Run) -> None:
    alone = planned(f"schedule.strategy={strategy}", WORK)
    result = run("plan", WORK, f"compare=[{strategy}]")
    assert re.search(rf"^{strategy} +{iteration_s(alone):.3f} s ", result.out, re.MULTILINE)
    assert (
        "Comparison: each strategy on its own best allocation, searched with the same budget (40,000 units of work)."
        in result.out
    )


def test_all_on_one_allocation(run: Run, tmp_path: Path) -> None:
    result = run("plan", WORK, "compare=[full]", "compare_allocation=same", "output=plan.json")
    assert result.status == 0, result.err
    full = make_plan(
        PlanningJob(load_plan(str(tmp_path / "plan.json")).problem()), "full", PlannerConfig(work_limit=40000)
    )
    assert re.search(rf"^full +{iteration_s(full):.3f} s ", result.out, re.MULTILINE)
    assert "Comparison: all strategies on the allocation found for skippipe." in result.out


def test_the_others_skip_although_the_plan_does_not(run: Run, tmp_path: Path) -> None:
    """On the allocation of `full`, whose plan has skip ratio 0."""
    result = run(
        "plan", WORK, "cluster=local4", "schedule.strategy=full", "compare=[skippipe]", "compare_allocation=same",
        "output=plan.json",
    )  # fmt: skip
    assert result.status == 0, result.err
    problem = on_allocation_of(load_plan(str(tmp_path / "plan.json")), ScheduleConfig())
    skipping = make_plan(PlanningJob(problem), "skippipe", PlannerConfig(work_limit=40000))
    assert skipping.skip_ratio > 0
    assert re.search(rf"^skippipe +{iteration_s(skipping):.3f} s ", result.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["allocate.objective=surrogate"], "all strategies on the surrogate's allocation"),
        (["allocate.stages=given.json"], "all strategies on the given allocation"),
    ],
)
def test_an_allocation_that_is_given_is_that_of_all(
    arguments: list[str], kind: str, run: Run, write: Callable[[str, Any], Path]
) -> None:
    write("given.json", {"stages": [[3, 1], [0], [2]]})
    outputs = []
    for which in ("own", "same"):
        result = run("plan", WORK, "cluster=local4", "compare=[full]", f"compare_allocation={which}", *arguments)
        assert result.status == 0, result.err
        assert f"Comparison: {kind}." in result.out
        outputs.append(re.findall(r"^full.*$", result.out, re.MULTILINE))
    assert outputs[0] == outputs[1]


def test_a_sweep_says_which_comparison_it_is(run: Run) -> None:
    sweep = ("plan", "-m", "cluster=local4", "schedule.skip_ratio=0,0.25", "planner.work_limit=5000", "compare=[full]")
    for which, kind in (("own", "each strategy on its own best allocation"), ("same", "all strategies on")):
        result = run(*sweep, f"compare_allocation={which}")
        assert result.status == 0, result.err
        lines = [line for line in result.out.splitlines() if "saved" in line]
        assert len(lines) == 2
        assert all(kind in line and "vs. full-routed" in line for line in lines)


def test_unknown_comparison_is_refused(refused: Callable[..., str]) -> None:
    assert "compare_allocation: expected one of own, same, got best" in refused("plan", "compare_allocation=best")


def test_skipping_is_not_credited_with_an_allocation() -> None:
    """Six machines in two sites: full pipelines take less on their own allocation than on skippipe's."""
    job = compose("plan", [TWO_SITES, "schedule.stages=4", "schedule.skip_ratio=0.25", "planner.work_limit=300000"])
    question = planning_job(job.cluster, job.allocate, job.schedule)
    made = make_plan(question, "skippipe", job.planner)
    one = PlanningJob(on_allocation_of(made, job.schedule))
    for strategy in ("full", "full-routed"):
        own = make_plan(question, strategy, job.planner)
        same = make_plan(one, strategy, job.planner)
        assert iteration_s(own) < iteration_s(same)


def test_straight_pipelines_weigh_the_all_reduce() -> None:
    """The surrogate does not: its allocation has replicas at both sites in more stages than the best one has."""
    job = compose("plan", [TWO_SITES, "schedule.stages=4", "planner.work_limit=300000"])
    question = planning_job(job.cluster, job.allocate, job.schedule)
    own = make_plan(question, "full", job.planner)
    surrogate = make_plan(PlanningJob(question.first), "full", job.planner)
    assert iteration_s(own) < iteration_s(surrogate)
    assert max(own.predicted.allreduce_s) <= max(surrogate.predicted.allreduce_s)


def test_random_routes_are_judged_by_others_than_those_reported() -> None:
    job = compose("plan", ["cluster=synthetic", "cluster.nodes=12", "planner.work_limit=200000"])
    question = planning_job(job.cluster, job.allocate, job.schedule)
    reached = evaluate_strategy(question, "random-skip", job.planner)
    found = make_plan(question, "random-skip", job.planner).problem()
    fresh = [iteration_s(plan(PlanRequest(found, "random-skip", seed=seed))) for seed in range(RANDOM_SEEDS)]
    assert reached.iteration_s == statistics.median(fresh)


def test_layers_are_chosen_for_baselines_too(planned: Planned) -> None:
    unequal = ("cluster=synthetic", "cluster.nodes=10", "cluster.speed_spread=4", "cluster.memory_spread=4")
    arguments = (*unequal, "schedule.stages=3", "allocate.decoder_layers=24", "planner.work_limit=400000")
    microbatches = set()
    for strategy in ("full", "skippipe-no-tc2", "full-routed"):
        equal = planned(*arguments, f"schedule.strategy={strategy}")
        auto = planned(*arguments, f"schedule.strategy={strategy}", "allocate.layers=auto")
        assert verdict(auto.to_json()) == []
        assert sum(auto.layers) == 24
        if strategy != "skippipe-no-tc2":  # routes by travel time are not chosen by the iteration
            assert iteration_s(auto) < iteration_s(equal)
        microbatches |= {len(equal.microbatches), len(auto.microbatches)}
    assert len(microbatches) == 1


@pytest.mark.parametrize("strategy", ["full", "full-routed", "skippipe-no-tc2"])
def test_an_interrupt_keeps_the_best_so_far(strategy: str) -> None:
    job = compose("plan", [])
    question = planning_job(job.cluster, job.allocate, job.schedule)

    def stop(_elapsed: float, incumbent_s: float, _bound: float, _work: int) -> None:
        if math.isfinite(incumbent_s):
            raise KeyboardInterrupt

    found = plan(PlanRequest(question.first, strategy, time_limit_s=60, scope=AllocationScope()), progress=stop)
    assert found.solver.interrupted
    assert found.check() == []
