"""The CP-SAT model of `benchmarks`, which proves optima for us, against exhaustive search."""

import json
from collections import Counter
from random import Random
from types import ModuleType
from typing import Any

import pytest
from effort import cases
from reference.instances import Json, random_cluster, random_rules, random_skip_ratio
from reference.optimum import optimum
from scripts import load_script

from skippipe import Cluster, Plan
from skippipe.allocation import Allocation
from skippipe.bench import Case, violations
from skippipe.config import ScheduleConfig
from skippipe.planning import state_problem


@pytest.fixture(scope="module")
def cp_sat() -> ModuleType:
    """The model as a module."""
    pytest.importorskip("ortools", reason="needs OR-Tools, which the dependency group bench brings")
    return load_script("cp_sat")


def tiny(rng: Random) -> Json:
    """An instance that exhaustive search can manage, with tasks that take time, as the model needs them."""
    while True:
        s_count = rng.randint(2, 4)
        cluster = random_cluster(rng, rng.randint(s_count, max(s_count, 4)), s_count)
        if min(node[key] for node in cluster["nodes"] for key in ("forward_s", "backward_s", "loss_s")) > 0:
            break
    n = len(cluster["nodes"])
    stages: list[list[int]] = [[] for _ in range(s_count)]
    for i, node in enumerate(rng.sample(range(n), n)):
        stages[i if i < s_count else rng.randrange(s_count)].append(node)
    rules = random_rules(rng) | {"tc2": True}
    if not rules["cc2"]:
        rules["max_stage_jump"] = None
    counts = [1] * len(stages[0])
    while sum(counts) < (3 if s_count == 2 else 2) and rng.random() < 0.8:
        counts[rng.randrange(len(counts))] += 1
    ratio = random_skip_ratio(rng, s_count)
    return {
        "cluster": cluster, "stages": stages, "absent_stages": [], "constraints": rules, "skip_ratio": ratio,
        "counts": counts,
    }  # fmt: skip


def case_of(instance: Json) -> Case:
    """The same question as the benchmarks put it."""
    cluster = Cluster.from_json(json.dumps(instance["cluster"]))
    allocation = Allocation(instance["stages"])
    asked: dict[str, Any] = instance["constraints"]
    schedule = ScheduleConfig(
        skip_ratio=instance["skip_ratio"], microbatches_per_source=instance["counts"], **asked
    )  # fmt: skip
    return Case("tiny", state_problem(cluster, allocation, schedule), schedule)


@pytest.mark.parametrize("block", range(2))
def test_model_finds_the_exact_optimum(cp_sat: ModuleType, block: int) -> None:
    results: Counter[str] = Counter()
    for seed in range(block * 30, block * 30 + cases(30, 15)):
        instance = tiny(Random(seed))
        case, best = case_of(instance), optimum(instance)
        answer = cp_sat.solve(case, seconds=60.0)
        results[answer.status] += 1
        if best is None:
            assert (answer.status, answer.plan) == ("INFEASIBLE", None), seed
            continue
        assert answer.status == "OPTIMAL", seed
        assert round(answer.iteration_s * 1e9) == best[0], seed
        assert round(answer.lower_bound_s * 1e9) == best[0], seed
        assert violations(Plan.from_json(json.dumps(answer.plan)), case, None) == [], seed
    assert results["OPTIMAL"] > cases(15, 7)
    assert set(results) <= {"OPTIMAL", "INFEASIBLE"}


def test_tasks_without_a_length_are_refused(cp_sat: ModuleType) -> None:
    instance = tiny(Random(1))
    instance["cluster"]["nodes"][0]["loss_s"] = 0.0
    with pytest.raises(ValueError, match="a task takes no time"):
        cp_sat.solve(case_of(instance), seconds=1.0)
