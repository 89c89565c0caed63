"""`skippipe bench`: figures, printed and written."""

import json
from pathlib import Path

import pytest
from conftest import Run


def test_bench_simulator(run: Run, tmp_path: Path) -> None:
    result = run("bench", "simulator", "seconds=0.05", "output=figures.json")
    assert result.status == 0, result.err
    content = json.loads((tmp_path / "figures.json").read_text())
    assert content["bench"] == "simulator"
    assert {row["order"] for row in content["rows"]} <= {"plan", "dispatch"}
    assert {row["microbatches"] for row in content["rows"]} == {30}
    assert all(row["evaluations_per_s"] > 100 for row in content["rows"])
    assert {"date", "machine", "versions"} <= content.keys()
    assert "geo20" in result.out


def test_bench_planner(run: Run, tmp_path: Path) -> None:
    result = run("bench", "planner", "planner.time_limit_s=0.1", "strategies=[full,skippipe]", "output=figures.json")
    assert result.status == 0, result.err
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert [row["strategy"] for row in rows] == ["full", "skippipe"] * 5
    assert all(row["iteration_s"] >= row["lower_bound_s"] > 0 for row in rows)


def test_bench_planner_reads_a_folder(run: Run, shared_data: Path, tmp_path: Path) -> None:
    for name in ("published20.json", "published20.cluster.json"):
        (tmp_path / name).symlink_to(shared_data / name)
    result = run("bench", "planner", f"data={tmp_path}", "planner.time_limit_s=0.1", "strategies=[full,skippipe]")
    assert result.status == 0, result.err
    times = [line.split() for line in result.out.splitlines() if line.startswith("published20")]
    assert [row[1] for row in times] == ["full", "skippipe"]
    assert float(times[0][2]) == pytest.approx(80, abs=10)


def test_bench_with_nothing_to_measure_is_refused(run: Run) -> None:
    result = run("bench", "planner", "strategies=[]")
    assert result.status == 2
    assert "strategies is []" in result.err
