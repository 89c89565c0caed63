"""What `benchmarks` holds the allocator against: models and tools that must answer the same question."""

import itertools
import json
from random import Random
from types import ModuleType

import numpy as np
import pytest
from reference.allocator import Surrogate
from reference.instances import random_cluster
from scripts import load_script

from skippipe import Cluster
from skippipe.bench import random_stages
from skippipe.presets import preset_spec


@pytest.fixture(scope="module")
def partitioners() -> ModuleType:
    """METIS and KaHyPar, which themselves are imported only where they are used."""
    return load_script("partitioners")


def test_exact_model_finds_the_best_partition() -> None:
    pytest.importorskip("ortools", reason="needs OR-Tools, which the dependency group bench brings")
    model = load_script("allocate_cp_sat")
    merged = 0
    for seed in range(40):
        rng = Random(seed)
        nodes = rng.randint(3, 8)
        cuts = sorted(rng.sample(range(1, nodes), rng.randint(1, 3) - 1))
        sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, nodes], strict=True)]
        content = random_cluster(rng, nodes, len(sizes))
        if rng.random() < 0.5:  # equal nodes, which are one class in each region
            for node in content["nodes"]:
                node["forward_s"] = 1.0
        cluster = Cluster.from_json(json.dumps(content))
        merged += len(model.classes_of(cluster).members) < nodes
        reference = Surrogate(cluster.transfer_matrix(), cluster.forward_s)
        best = reference.best(sizes)
        assert best is not None
        offered: list[list[list[int]]] = []
        bound_s, proved = model.solve(cluster, sizes, 60.0, 1, offered.append)
        assert proved, seed
        assert sorted(map(len, offered[-1])) == sorted(sizes)
        assert reference.score(offered[-1]).score_s == pytest.approx(best[0].score_s, abs=1e-4), seed
        assert best[0].score_s - 1e-4 <= bound_s <= best[0].score_s, seed
    assert merged > 3


def test_random_allocations_have_the_sizes_and_differ() -> None:
    drawn = list(itertools.islice(random_stages(9, [4, 3, 2], 1), 50))
    assert all([len(stage) for stage in stages] == [4, 3, 2] for stages in drawn)
    assert all(sorted(itertools.chain(*stages)) == list(range(9)) for stages in drawn)
    assert len({str(stages) for stages in drawn}) > 40
    assert drawn == list(itertools.islice(random_stages(9, [4, 3, 2], 1), 50))


def test_blocks_are_mended_at_least_loss(partitioners: ModuleType) -> None:
    weight = np.array([[0, 9, 9, 1], [9, 0, 9, 2], [9, 9, 0, 3], [1, 2, 3, 0]])
    graph = partitioners.Graph(weight)
    assert partitioners.mended([0, 0, 1, 1], [2, 2], graph) == [[0, 1], [2, 3]]
    assert partitioners.mended([0, 0, 0, 0], [3, 1], graph) == [[0, 1, 2], [3]]
    rng = Random(0)
    for _ in range(50):
        slower = np.random.default_rng(rng.randrange(2**32)).random((10, 10))
        slower = np.maximum(slower, slower.T)
        near = partitioners.draw_graph(slower, rng, 30)
        assert (near.weight == near.weight.T).all()
        assert not near.weight.diagonal().any()
        assert near.weight.any()
        kept, left = slower[near.weight > 0], slower[(near.weight == 0) & ~np.eye(10, dtype=bool)]
        assert not left.size or kept.max() < left.min() or kept.min() > left.max()
        stages = partitioners.mended([rng.randrange(3) for _ in range(10)], [5, 3, 2], near)
        assert [len(stage) for stage in stages] == [5, 3, 2]
        assert sorted(itertools.chain(*stages)) == list(range(10))


@pytest.mark.parametrize(("tool", "module"), [("metis", "pymetis"), ("kahypar", "kahypar")])
def test_graph_partitioners_cut_apart_what_is_far(partitioners: ModuleType, tool: str, module: str) -> None:
    pytest.importorskip(module, reason=f"needs {module}, which no dependency group brings")
    site = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    slower = np.where(site[:, None] == site[None, :], 0.1, 1.0)
    made = list(itertools.islice(getattr(partitioners, f"{tool}_partitions")(slower, [4, 3, 3], 0), 5))
    assert all([len(stage) for stage in stages] == [4, 3, 3] for stages in made)
    assert any({frozenset(stage) for stage in stages} == {frozenset(np.flatnonzero(site == i)) for i in range(3)}
               for stages in made)  # fmt: skip


def test_unequal_nodes_are_planned_within_every_scope() -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, which the dependency group bench brings")
    study = load_script("unequal")
    config = study.cluster_settings("fast", 3)
    cluster = preset_spec(config).cluster(config)
    assert 2 < max(cluster.forward_s) / min(cluster.forward_s) <= 4
    assert {min(cluster.memory), max(cluster.memory)} == {2, 6}
    rows = study.measure("fast", 3, 0.2)
    assert [row["free"] for row in rows] == list(study.SCOPES)
    for row in rows:
        assert (sum(row["sizes"]), sum(row["layers"]), sum(row["microbatches"])) == (24, 24, 24)
        assert row["sizes"] == [4] * 6
        assert "layers" in row["free"] or row["layers"] == [4] * 6
    shown = study.table(rows + [row | {"links": "slow"} for row in rows])
    assert shown.count("| fast |") == len(study.SCOPES) + 1
