"""The rig that executes plans with stages that sleep: ranks where nodes are absent, and a part of Figure 3 measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Run

import skippipe
from skippipe.bench.emulation import MESSAGE_SPEC, norm_s, rank_jobs, ranks_of
from skippipe.bench.figure3.networks import SIZES, Setting, cluster_of
from skippipe.ranks import NO_RANK


def test_nodes_that_serve_no_stage_have_no_rank() -> None:
    cluster = cluster_of(Setting("geo20", "500m", 4096, all_reduce=True, sizes=SIZES[4]), None)
    stages = [[12, 1, 2, 3], [4, 5], [9, 7], [8, 11]]
    absent = [0, 6, 10, 13, 14, 15]
    problem = skippipe.Problem(cluster, stages, 2, skip_ratio=0.25, absent_nodes=absent)
    plan = skippipe.plan(problem, work_limit=1000)
    rank_of = ranks_of(plan)
    assert [node for node, rank in enumerate(rank_of) if rank == NO_RANK] == absent
    assert [rank for rank in rank_of if rank != NO_RANK] == list(range(10))
    jobs = rank_jobs(plan, 0.5)
    assert [job.program.rank for job in jobs] == list(range(10))
    node_of = {rank: node for node, rank in enumerate(rank_of) if rank != NO_RANK}
    transfer_s = cluster.transfer_matrix()
    for rank, job in enumerate(jobs):
        (stage,) = job.stages
        assert node_of[rank] in stages[stage]
        assert job.stages[stage].forward_s == pytest.approx(0.5 * cluster.forward_s[node_of[rank]])
        for other in range(10):
            seconds = job.uplink.transfer_s(other, MESSAGE_SPEC.payload_bytes)
            assert seconds == pytest.approx(0.5 * transfer_s[node_of[rank], node_of[other]], rel=1e-6)


def test_an_exchange_of_the_norm_leaves_absent_nodes_out() -> None:
    cluster = skippipe.Cluster(
        list("abc"), [1.0] * 3, [1.0] * 3, [1.0] * 3, [1] * 3, transfer_s=np.array([[0, 9, 2], [9, 0, 9], [3, 9, 0]])
    )
    assert norm_s(cluster, 2) == pytest.approx(9 + 9)
    assert norm_s(cluster, 2, [1]) == pytest.approx(3 + 2)


def test_a_part_of_figure_3_is_executed_once(run: Run, tmp_path: Path) -> None:
    command = (
        "bench", "figure3", "networks=[one_region]", "models=[500m]", "tokens=[4096]", "strategies=[]",
        "work_limit=2000", "searches=1", "companion.kinds=[]", "measure.iterations=1", "measure.iteration_s=1",
    )  # fmt: skip
    assert run(*command).status == 0
    rows = {
        (row["strategy"], row["allocation"]): row
        for row in json.loads((tmp_path / "figure3" / "rows.json").read_text())["rows"]
    }
    for strategy in ("full", "full-routed"):
        row = rows[strategy, "own"]
        # Sleeping and waiting never end early, so that only delays are possible, but for the norm's exchange.
        assert row["measured_s"] > row["iteration_s"]
        assert row["predicted_s"] > row["iteration_s"]
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
        assert rows[strategy, "same"]["measured_s"] is None
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "figure3" / "measured").iterdir()}
    assert len(kept) == len({rows[s, "own"]["iteration_s"] for s in ("full", "full-routed")})
    assert run(*command).status == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "figure3" / "measured").iterdir()} == kept
