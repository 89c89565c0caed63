"""The node allocator: its surrogate against the definition, its allocations against looking at all of them."""

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import PUBLISHED
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.allocator import Stages, Surrogate
from reference.instances import random_cluster

from skippipe import Cluster, Scored, score_allocation
from skippipe._scheduler import allocate
from skippipe.allocation import read_allocation
from skippipe.cluster import load_cluster
from skippipe.errors import ImpossibleError, InputError, NoPlanError

SCORES = {"published20": (21.590300540879163, 18.992), "fresh20": (37.97009970224297, 35.295)}
"""What the reference's allocation scores, and what is known to be reachable with stages of the same sizes."""
SEEDS = st.integers(0, 2**32 - 1)


def draw_sizes(rng: Random, nodes: int, stages: int) -> list[int]:
    """Sizes of stages, any that add up to the nodes."""
    cuts = sorted(rng.sample(range(1, nodes), stages - 1))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, nodes], strict=True)]


def draw_cluster(rng: Random, nodes: int, stages: int) -> Cluster:
    """A cluster with links of any kind, many of them equal in some draws."""
    return Cluster.from_json(json.dumps(random_cluster(rng, nodes, stages)))


def surrogate(cluster: Cluster) -> Surrogate:
    """What the surrogate is by its definition."""
    return Surrogate(cluster.transfer_matrix(), cluster.forward_s)


def cut(order: list[int], sizes: list[int]) -> Stages:
    """Deal nodes to stages as they come."""
    left = iter(order)
    return [sorted(next(left) for _ in range(size)) for size in sizes]


def sets(stages: Stages) -> frozenset[frozenset[int]]:
    """The stages whatever their order."""
    return frozenset(map(frozenset, stages))


def agrees(reference: Surrogate, found: Scored, sizes: list[int]) -> None:
    """Everything that an allocation says of itself is so."""
    stages = found.stages
    parts = reference.score(stages)
    assert found.replica_s == pytest.approx(parts.replica_s)
    assert found.tour_s == pytest.approx(parts.tour_s)
    assert found.compute_s == pytest.approx(parts.compute_s)
    assert found.score_s == pytest.approx(parts.score_s)
    # Stages are numbered along the tour, in the direction whose second stage has the lower first node.
    assert reference.length([frozenset(stage) for stage in stages]) == pytest.approx(parts.tour_s)
    if len(stages) > 1:
        assert min(stages[1]) <= min(stages[-1])
    assert len(stages[0]) == sizes[0]
    assert sorted(map(len, stages)) == sorted(sizes)
    assert sorted(node for stage in stages for node in stage) == list(range(len(reference.forward)))


# -------------------------------------------------------------------------------------- the score


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_score_is_that_of_the_definition(seed: int) -> None:
    rng = Random(seed)
    nodes = rng.randint(1, 12)
    sizes = draw_sizes(rng, nodes, rng.randint(1, min(nodes, 6)))
    cluster = draw_cluster(rng, nodes, len(sizes))
    stages = cut(rng.sample(range(nodes), nodes), sizes)
    scored = score_allocation(cluster, stages)
    agrees(surrogate(cluster), scored, sizes)
    assert sets(scored.stages) == sets(stages)
    assert scored.stages[0] == stages[0]


@pytest.mark.parametrize("name", SCORES)
def test_published_scores(name: str) -> None:
    cluster = load_cluster(str(PUBLISHED / f"{name}.cluster.json"))
    stages = read_allocation(str(PUBLISHED / f"{name}.json")).stages
    scored = score_allocation(cluster, stages)
    assert scored.score_s == pytest.approx(SCORES[name][0], rel=1e-9)
    agrees(surrogate(cluster), scored, [5, 3, 3, 3, 3, 3])


# ------------------------------------------------------------------------- the best of all, when small


@pytest.mark.parametrize("block", range(4))
def test_small_clusters_get_the_best_of_all_partitions(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        rng = Random(seed)
        nodes = rng.randint(3, 9)
        sizes = draw_sizes(rng, nodes, rng.randint(1, 3))
        cluster = draw_cluster(rng, nodes, len(sizes))
        reference = surrogate(cluster)
        sources = sorted(rng.sample(range(nodes), sizes[0])) if rng.random() < 0.3 else None
        best = reference.best(sizes, sources)
        assert best is not None
        found = allocate(cluster, sizes, sources=sources)
        agrees(reference, found.best, sizes)
        assert found.best.score_s == pytest.approx(best[0].score_s), seed
        assert found.lower_bound_s <= best[0].score_s * (1 + 1e-9), seed
        assert found.optimal, seed
        if sources is not None:
            assert sorted(found.best.stages[0]) == sources
        if found.runner_up is not None:
            agrees(reference, found.runner_up, sizes)
            assert found.runner_up.score_s >= found.best.score_s
            assert sets(found.runner_up.stages) != sets(found.best.stages)


@pytest.mark.parametrize("block", range(2))
def test_limit_on_transfers_inside_a_stage(block: int) -> None:
    outcomes = set()
    for seed in range(block * 30, block * 30 + 30):
        rng = Random(seed)
        nodes = rng.randint(4, 8)
        sizes = draw_sizes(rng, nodes, rng.randint(2, 3))
        cluster = draw_cluster(rng, nodes, len(sizes))
        reference = surrogate(cluster)
        sources = sorted(rng.sample(range(nodes), sizes[0])) if rng.random() < 0.3 else None
        # A value that a transfer has is a limit that this transfer keeps.
        times = np.unique(cluster.transfer_matrix())
        limit = float(rng.choice(times[: max(2, len(times) * 2 // 3)].tolist()))
        best = reference.best(sizes, sources, limit)
        outcomes.add(best is None)
        if best is None:
            with pytest.raises(ImpossibleError):
                allocate(cluster, sizes, sources=sources, max_replica_transfer_s=limit)
            continue
        found = allocate(cluster, sizes, sources=sources, max_replica_transfer_s=limit)
        agrees(reference, found.best, sizes)
        assert found.best.replica_s <= limit
        assert found.best.score_s == pytest.approx(best[0].score_s), seed
        assert found.lower_bound_s <= best[0].score_s * (1 + 1e-9), seed
        assert found.runner_up is None or found.runner_up.replica_s <= limit
    assert outcomes == {True, False}


def test_bounds_hold_when_the_search_has_just_begun() -> None:
    for seed in range(60):
        rng = Random(seed)
        nodes = rng.randint(4, 9)
        sizes = draw_sizes(rng, nodes, rng.randint(2, 4))
        cluster = draw_cluster(rng, nodes, len(sizes))
        best = surrogate(cluster).best(sizes)
        assert best is not None
        found = allocate(cluster, sizes, time_limit_s=None, work_limit=1)
        assert found.lower_bound_s <= best[0].score_s * (1 + 1e-9), seed
        assert found.best.score_s >= best[0].score_s * (1 - 1e-9), seed
        if found.optimal:
            assert found.best.score_s == pytest.approx(best[0].score_s), seed


def test_one_node_for_each_stage_is_a_travelling_salesman() -> None:
    for seed in range(10):
        rng = Random(seed)
        cluster = draw_cluster(rng, 7, 7)
        found = allocate(cluster, [1] * 7)
        agrees(surrogate(cluster), found.best, [1] * 7)
        assert found.runner_up is None
        assert found.optimal


# ------------------------------------------------------------------------------------------- larger


ENOUGH = 200_000
"""Work with which the best known allocation of 20 nodes is found."""


@pytest.mark.parametrize("name", SCORES)
def test_published_clusters_get_the_best_known_allocation(name: str) -> None:
    cluster = load_cluster(str(PUBLISHED / f"{name}.cluster.json"))
    sizes = [5, 3, 3, 3, 3, 3]
    found = allocate(cluster, sizes, time_limit_s=None, work_limit=ENOUGH)
    agrees(surrogate(cluster), found.best, sizes)
    assert found.best.score_s <= SCORES[name][1]
    assert found.lower_bound_s <= SCORES[name][1]


def test_groups_of_near_nodes_become_pipelines() -> None:
    """Four sites of six nodes, six stages of four: each stage gets one node of each site."""
    near, far = 0.25, 1.0
    order = Random(1).sample(range(24), 24)
    site = {node: index % 4 for index, node in enumerate(order)}
    transfer = [[0.0 if i == j else near if site[i] == site[j] else far for j in range(24)] for i in range(24)]
    cluster = Cluster(
        [f"n{i}" for i in range(24)], [0.5] * 24, [0.5] * 24, [0.0] * 24, [1] * 24, transfer_s=transfer
    )  # fmt: skip
    found = allocate(cluster, [4] * 6, time_limit_s=None, work_limit=ENOUGH)
    # Sites cannot be stages, so some stage has nodes of two; and each of six steps is a round trip at least.
    assert found.best.score_s == pytest.approx(far + 6 * 2 * near + 6 * 2 * 0.5)
    assert {tuple(sorted(site[node] for node in stage)) for stage in found.best.stages} == {(0, 1, 2, 3)}
    assert found.lower_bound_s <= found.best.score_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_threads_change_nothing(seed: int) -> None:
    rng = Random(seed)
    nodes = rng.randint(14, 30)
    sizes = draw_sizes(rng, nodes, rng.randint(4, 6))
    cluster = draw_cluster(rng, nodes, len(sizes))
    options: dict[str, Any] = {"time_limit_s": None, "work_limit": 20_000, "seed": seed}
    first, *others = (allocate(cluster, sizes, threads=threads, **options) for threads in (1, 2, 4))
    for other in others:
        assert other.best.stages == first.best.stages
        assert other.lower_bound_s == first.lower_bound_s
        assert other.runner_up is None or first.runner_up is None or other.runner_up.stages == first.runner_up.stages


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_larger_clusters_get_allowed_allocations(seed: int) -> None:
    rng = Random(seed)
    nodes = rng.randint(10, 24)
    sizes = draw_sizes(rng, nodes, rng.randint(2, 6))
    cluster = draw_cluster(rng, nodes, len(sizes))
    reference = surrogate(cluster)
    sources = sorted(rng.sample(range(nodes), sizes[0])) if rng.random() < 0.5 else None
    limit = float(np.quantile(cluster.transfer_matrix(), rng.uniform(0.5, 1.0)))
    options: dict[str, Any] = {"sources": sources, "max_replica_transfer_s": limit}
    try:
        found = allocate(cluster, sizes, time_limit_s=None, work_limit=3_000, **options)
    except ImpossibleError:
        drawn = (cut(rng.sample(range(nodes), nodes), sizes) for _ in range(300))
        free = (stages for stages in drawn if sources is None or stages[0] == sources)
        assert all(reference.score(stages).replica_s > limit for stages in free)
        return
    except NoPlanError:
        return
    assert found.lower_bound_s <= found.best.score_s * (1 + 1e-9)
    assert found.best.replica_s <= limit
    if max(sizes) <= cases(12, 9):  # the reference takes twice as long and more for each further node
        agrees(reference, found.best, sizes)
    if sources is not None:
        assert sorted(found.best.stages[0]) == sources


# ------------------------------------------------------------------------------------ unusable input


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ([2, 1], {}),
        ([2, 2, 0], {}),
        ([], {}),
        ([2, 2], {"sources": [0]}),
        ([2, 2], {"sources": [0, 0]}),
        ([2, 2], {"sources": [0, 4]}),
        ([2, 2], {"max_replica_transfer_s": -1.0}),
        ([2, 2], {"max_replica_transfer_s": float("nan")}),
        ([2, 2], {"threads": 0}),
        ([2, 2], {"time_limit_s": -1.0}),
    ],
)
def test_what_cannot_be_is_refused(small_cluster: dict[str, Any], sizes: list[int], options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        allocate(Cluster.from_json(json.dumps(small_cluster)), sizes, **options)


@pytest.mark.parametrize("stages", [[[0, 1], [1, 2, 3]], [[0, 1, 2, 3], []], [[0, 1], [2, 9]]])
def test_no_partition_has_no_score(small_cluster: dict[str, Any], stages: Stages) -> None:
    with pytest.raises(InputError):
        score_allocation(Cluster.from_json(json.dumps(small_cluster)), stages)


def test_a_node_of_no_stage_does_not_count(small_cluster: dict[str, Any]) -> None:
    scored = score_allocation(Cluster.from_json(json.dumps(small_cluster)), [[0, 1], [2]])
    assert scored.stages == [[0, 1], [2]]
    fewer = small_cluster | {"nodes": [*small_cluster["nodes"][:3], small_cluster["nodes"][3] | {"forward_s": 99.0}]}
    assert score_allocation(Cluster.from_json(json.dumps(fewer)), [[0, 1], [2]]) == scored


def test_progress_ends_at_the_result(small_cluster: dict[str, Any]) -> None:
    reported: list[tuple[float, float, float, int]] = []
    cluster = Cluster.from_json(json.dumps(small_cluster))
    found = allocate(cluster, [2, 2], progress=lambda *state: reported.append(state))
    assert reported[-1][1] == pytest.approx(found.best.score_s)
    assert reported[-1][2] == pytest.approx(found.lower_bound_s)
    with pytest.raises(ZeroDivisionError):
        allocate(cluster, [2, 2], progress=lambda *_: 1 // 0)
