"""Plans that choose their allocation themselves, against planning every allocation there is."""

import contextlib
import itertools
import json
import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from effort import cases
from reference.allocator import Stages
from reference.independent import verdict
from reference.instances import Json, random_cluster

from skippipe import AllocationReport, AllocationScope, Cluster, Constraints, Plan, Problem
from skippipe._scheduler import PlanRequest, allocate, plan
from skippipe.errors import ImpossibleError, NoPlanError

WORK = 20_000
"""Enough to prove the optimum of one allocation of the instances here."""
LIMITS: dict[str, Any] = {"time_limit_s": None, "work_limit": 400_000}
"""Enough to find the best allocation."""


def ways_to_allocate(nodes: list[int], sizes: list[int]) -> Iterator[Stages]:
    """Every choice of nodes for stages of these sizes, in this order."""
    if not sizes:
        yield []
        return
    for chosen in itertools.combinations(nodes, sizes[0]):
        left = [node for node in nodes if node not in chosen]
        for rest in ways_to_allocate(left, sizes[1:]):
            yield [list(chosen), *rest]


def problem_of(cluster: Cluster, stages: Stages, each: int, ratio: float, rules: Json, layers: Any = ()) -> Problem:
    """The question for one allocation, with so many microbatches for each source."""
    counts = [each] * len(stages[0])
    return Problem(cluster, stages, counts, skip_ratio=ratio, constraints=Constraints(**rules), layers=layers)


def tiny(rng: Random, most_nodes: int = 6) -> tuple[Json, list[int], int, float, Json]:
    """A cluster of at most so many nodes, sizes of its stages, microbatches of each source, a skip ratio and rules."""
    stages = rng.randint(2, 3)
    nodes = rng.randint(stages + 1, most_nodes)
    cuts = sorted(rng.sample(range(1, nodes), stages - 1))
    sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, nodes], strict=True)]
    rules = {"tc1": rng.choice(["held", "held", "routes"]), "waves": rng.choice([1, 1, 2]), "max_swaps": 1}
    each = rng.randint(1, 2 if sizes[0] < 3 else 1)
    return random_cluster(rng, nodes, stages), sizes, each, rng.choice([0.0, 1 / 3, 0.5]), rules


def one_by_one(
    cluster: Cluster, sizes: list[int], each: int, ratio: float, rules: Json, limit: float | None = None
) -> list[tuple[float, float]]:
    """Iteration and lower bound of every allocation that has plans and keeps the limit; mostly they are the same."""
    found = []
    transfer = cluster.transfer_matrix()
    for stages in ways_to_allocate(list(range(len(cluster))), sizes):
        if limit is not None and any(transfer[i, j] > limit for stage in stages for i in stage for j in stage):
            continue
        with contextlib.suppress(ImpossibleError):
            best = plan(
                PlanRequest(problem_of(cluster, stages, each, ratio, rules), time_limit_s=None, work_limit=WORK)
            )
            found.append((best.predicted.iteration_s, best.predicted.lower_bound_s))
    return found


def allocation_report(found: Plan) -> AllocationReport:
    """What a plan reports of its allocation."""
    report = found.solver.allocation
    assert report is not None
    return report


@pytest.mark.parametrize("seed", range(cases(60, 30)))
def test_tiny_clusters_get_the_best_of_all_allocations(seed: int) -> None:
    rng = Random(seed)
    content, sizes, each, ratio, rules = tiny(rng)
    cluster = Cluster.from_json(json.dumps(content))
    limit = None
    if rng.random() < 0.4:
        limit = allocate(cluster, sizes).best.replica_s * rng.choice([1.0, 1.3])
    known = one_by_one(cluster, sizes, each, ratio, rules, limit)
    start = in_order(allocate(cluster, sizes, max_replica_transfer_s=limit).best.stages, sizes)
    problem = problem_of(cluster, start, each, ratio, rules)
    scope = AllocationScope(max_replica_transfer_s=limit)
    if not known:
        with pytest.raises((NoPlanError, ImpossibleError)):
            plan(PlanRequest(problem, scope=scope, **LIMITS))
        return
    shortest, bound = (min(values) for values in zip(*known, strict=True))
    found = plan(PlanRequest(problem, scope=scope, **LIMITS))
    assert found.check() == []
    assert verdict(found.to_json()) == []
    assert [len(stage) for stage in found.stages] == sizes
    assert sum(found.microbatches_per_source.values()) == each * sizes[0]
    assert found.predicted.iteration_s <= shortest * (1 + 1e-8)
    if not cluster.gradient_bytes or max(sizes) < 3:  # else the order of a ring matters too
        assert found.predicted.iteration_s >= bound * (1 - 1e-8)
    assert allocation_report(found).lower_bound_s <= shortest * (1 + 1e-8)
    goes_forward(found)


def goes_forward(found: Plan) -> None:
    """Time and work of the search only grow, plans and bounds only get better, and the last event is the end."""
    events = found.solver.events
    for before, after in itertools.pairwise(events):
        assert after.elapsed_s >= before.elapsed_s, (before, after)
        assert after.work >= before.work, (before, after)
        if before.upper_s is not None:
            assert after.upper_s is not None, (before, after)
            assert after.upper_s <= before.upper_s * (1 + 1e-12), (before, after)
        assert (after.lower_s or 0.0) >= (before.lower_s or 0.0) * (1 - 1e-12), (before, after)
    assert events[-1].upper_s == pytest.approx(found.predicted.iteration_s, rel=1e-12)
    assert events[-1].work == found.solver.work


def in_order(stages: Stages, sizes: list[int]) -> Stages:
    """The same stages, with those after stage 0 in the order of the given sizes."""
    rest = list(stages[1:])
    ordered = [stages[0]]
    for size in sizes[1:]:
        index = next(i for i, stage in enumerate(rest) if len(stage) == size)
        ordered.append(rest.pop(index))
    return ordered


def without_some(sizes: list[int]) -> Iterator[list[int]]:
    """Sizes of the stages where nodes may serve none: those of stage 0 stay, the others have one at least."""
    for rest in itertools.product(*(range(1, size + 1) for size in sizes[1:])):
        yield [sizes[0], *rest]


@pytest.mark.parametrize("seed", range(cases(24, 12)))
def test_nodes_may_be_left_out(seed: int) -> None:
    """The plan is the best of all allocations with and without nodes, and the bound holds for all of them."""
    rng = Random(1000 + seed)
    content, sizes, each, ratio, rules = tiny(rng, most_nodes=5)  # of six there are hundreds of allocations
    if "transfer_s" not in content:
        content["gradient_bytes"] = [rng.choice([0.0, 500.0, 5e3]) for _ in sizes]
    cluster = Cluster.from_json(json.dumps(content))
    known = []
    for fewer in without_some(sizes):
        for stages in ways_to_allocate(list(range(len(cluster))), fewer):
            absent = sorted(set(range(len(cluster))) - {node for stage in stages for node in stage})
            with contextlib.suppress(ImpossibleError):
                asked = Problem(
                    cluster, stages, [each] * sizes[0], skip_ratio=ratio, constraints=Constraints(**rules),
                    absent_nodes=absent,
                )  # fmt: skip
                known.append(plan(PlanRequest(asked, time_limit_s=None, work_limit=WORK)).predicted.iteration_s)
    start = in_order(allocate(cluster, sizes).best.stages, sizes)
    problem = problem_of(cluster, start, each, ratio, rules)
    if not known:
        with pytest.raises((NoPlanError, ImpossibleError)):
            plan(PlanRequest(problem, scope=AllocationScope(unused=True), **LIMITS))
        return
    found = plan(PlanRequest(problem, scope=AllocationScope(unused=True), **LIMITS))
    assert found.check() == []
    assert verdict(found.to_json()) == []
    assert len(found.stages[0]) == sizes[0]
    assert all(0 < len(stage) <= size for stage, size in zip(found.stages, sizes, strict=True))
    assert found.predicted.iteration_s <= min(known) * (1 + 1e-8)
    assert allocation_report(found).lower_bound_s <= min(known) * (1 + 1e-8)
    if cluster.gradient_bytes:
        assert [row.node for row in allocation_report(found).left_out] == found.absent_nodes
        assert all(row.iteration_s >= found.predicted.iteration_s - 1e-8 for row in allocation_report(found).left_out)
    else:
        assert found.absent_nodes == []
    goes_forward(found)


# ---------------------------------------------------------------------------- layers chosen too


def scaled(content: Json, stages: Stages, layers: list[int]) -> Json | None:
    """The cluster with what its nodes need for these layers; it holds for an equal share. None: no memory for them."""
    equal = sum(layers) / len(layers)
    nodes = [dict(node) for node in content["nodes"]]
    for members, count in zip(stages, layers, strict=True):
        for node in members:
            for key in ("forward_s", "backward_s"):
                nodes[node][key] *= count / equal
            nodes[node]["memory"] = math.floor(nodes[node]["memory"] * equal / count + 1e-9)
            if not nodes[node]["memory"]:
                return None
    changed = content | {"nodes": nodes}
    if content.get("gradient_bytes"):
        sizes = zip(content["gradient_bytes"], layers, strict=True)
        changed["gradient_bytes"] = [size * count / equal for size, count in sizes]
    return changed


def shares(total: int, parts: int, least: int) -> Iterator[list[int]]:
    """Every partition of a total."""
    if parts == 1:
        if total >= least:
            yield [total]
        return
    for first in range(least, total + 1):
        for rest in shares(total - first, parts - 1, least):
            yield [first, *rest]


def fits(found: Plan, content: Json, layers: int) -> None:
    """A plan's cluster is the given one with times, memory and gradients of the plan's layers."""
    assert sum(found.layers) == layers
    assert min(found.layers) >= 1
    own, expected = json.loads(found.cluster.to_json()), scaled(content, found.stages, found.layers)
    assert expected is not None
    for node, other in zip(own["nodes"], expected["nodes"], strict=True):
        assert node.pop("name") == other.pop("name")
        assert node == pytest.approx(other, rel=1e-9)
    assert own.get("gradient_bytes", []) == pytest.approx(expected.get("gradient_bytes", []))
    assert (found.cluster.transfer_matrix() == Cluster.from_json(json.dumps(content)).transfer_matrix()).all()


@pytest.mark.parametrize("seed", range(cases(12, 5)))
def test_layers_and_shares_of_the_sources_are_chosen(seed: int) -> None:
    rng = Random(seed)
    content = random_cluster(rng, 4, 2)
    cluster = Cluster.from_json(json.dumps(content))
    total, layers, ratio = 3, 4, rng.choice([0.0, 0.25, 0.5])
    start = allocate(cluster, [2, 2]).best.stages
    problem = Problem(cluster, start, [2, 1], skip_ratio=ratio, layers=[2, 2])
    # With layers free the search is no exhaustive one: now and then a seed ends elsewhere.
    scope = AllocationScope(layers=layers)
    plans = [plan(PlanRequest(problem, scope=scope, time_limit_s=None, work_limit=2_000_000, seed=i)) for i in range(3)]
    found = min(plans, key=lambda made: made.predicted.iteration_s)
    assert found.check() == []
    assert verdict(found.to_json()) == []
    assert sum(found.microbatches_per_source.values()) == total
    fits(found, content, layers)
    known = []
    for stages in ways_to_allocate(list(range(4)), [2, 2]):
        for count in shares(layers, 2, 1):
            changed = scaled(content, stages, count)
            if changed is None:
                continue
            other = Cluster.from_json(json.dumps(changed))
            for counts in shares(total, len(stages[0]), 0):
                with contextlib.suppress(ImpossibleError):
                    asked = Problem(other, stages, counts, skip_ratio=ratio)
                    best = plan(PlanRequest(asked, time_limit_s=None, work_limit=WORK))
                    known.append((best.predicted.iteration_s, best.predicted.lower_bound_s))
    shortest, bound = (min(values) for values in zip(*known, strict=True))
    assert found.predicted.iteration_s <= shortest * (1 + 1e-8)
    assert found.predicted.iteration_s >= bound * (1 - 1e-8)
    assert allocation_report(found).lower_bound_s <= shortest * (1 + 1e-8)


def test_more_work_is_never_for_the_worse() -> None:
    """What is planned one by one in the end replaces the plan only where it is better, and no bound is above a plan."""
    rng = Random(1023)
    content, sizes, each, ratio, rules = tiny(rng)
    content["gradient_bytes"] = [0.0, 5e3, 5e3]
    cluster = Cluster.from_json(json.dumps(content))
    start = in_order(allocate(cluster, sizes).best.stages, sizes)
    problem = problem_of(cluster, start, each, ratio, rules)
    plans = [
        plan(PlanRequest(problem, scope=AllocationScope(), time_limit_s=None, work_limit=work))
        for work in (300_000, 600_000, 1_000_000, 1_500_000)
    ]
    times = [made.predicted.iteration_s for made in plans]
    assert times == sorted(times, reverse=True)
    assert all(allocation_report(made).lower_bound_s <= min(times) for made in plans)
