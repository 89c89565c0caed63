"""`skippipe bench`: figures, printed and written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PUBLISHED, Run

from skippipe.bench import small_folder


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


def test_bench_planner_reads_a_folder(run: Run, tmp_path: Path) -> None:
    for name in ("published20.json", "published20.cluster.json"):
        (tmp_path / name).symlink_to(PUBLISHED / name)
    result = run("bench", "planner", f"data={tmp_path}", "planner.time_limit_s=0.1", "strategies=[full,skippipe]")
    assert result.status == 0, result.err
    times = [line.split() for line in result.out.splitlines() if line.startswith("published20")]
    assert [row[1] for row in times] == ["full", "skippipe"]
    assert float(times[0][2]) == pytest.approx(80, abs=10)


def test_bench_allocator(run: Run, tmp_path: Path) -> None:
    result = run("bench", "allocator", "seconds=0.1", "output=figures.json")
    assert result.status == 0, result.err
    content = json.loads((tmp_path / "figures.json").read_text())
    assert content["bench"] == "allocator"
    rows = {row["instance"]: row for row in content["rows"]}
    assert list(rows) == ["geo20", "local4", "five_clusters", "single_cluster", "synthetic"]
    assert (rows["geo20"]["nodes"], rows["geo20"]["stages"]) == (20, 6)
    assert rows["local4"]["proved"]
    for row in rows.values():
        assert 0 < row["lower_bound_s"] <= row["score_s"] * (1 + 1e-9)
        assert row["score_s"] <= min(row["greedy_s"], row["random_s"]) * (1 + 1e-9)
        assert row["gap"] == pytest.approx(row["score_s"] / row["lower_bound_s"] - 1)
        assert row["best_s"] <= row["wall_s"]
    assert "five_clusters" in result.out


def test_bench_allocator_takes_the_sizes_of_a_folder(run: Run, few: Path, tmp_path: Path) -> None:
    result = run("bench", "allocator", f"data={few}", "seconds=0.05", "output=figures.json")
    assert result.status == 0, result.err
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"][5:]
    assert [(row["instance"], row["nodes"], row["stages"]) for row in rows] == [
        ("held-3s-06n-04m", 6, 3),
        ("held-4s-08n-06m-impossible", 8, 4),
    ]
    assert all(row["proved"] for row in rows)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A folder with two of the small instances, one of which has no plan."""
    folder = tmp_path / "few"
    folder.mkdir()
    for path in small_folder().glob("held-*"):
        if path.name.startswith(("held-3s-06n-04m.", "held-4s-08n-06m-impossible.")):
            shutil.copy(path, folder)
    return folder


def test_bench_planner_beside_what_is_known(run: Run, few: Path, tmp_path: Path) -> None:
    words = ("strategies=[skippipe]", "planner.work_limit=20000", "output=figures.json")
    result = run("bench", "planner", f"set={few}", *words)
    assert result.status == 0, result.err
    first, second = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert first["of_best_known"] >= 1 - 1e-9
    assert first["wall_s"] > 0
    assert first["work"] > 0
    assert (second["iteration_s"], second["of_best_known"]) == (None, None)
    assert ("impossible" in second["note"]) == second["proved"]
    assert "known optima found" in result.out


def test_bench_planner_refuses_what_contradicts_a_proof(run: Run, few: Path, tmp_path: Path) -> None:
    question = few / "held-3s-06n-04m.json"
    content = json.loads(question.read_text())
    content["proved"]["iteration_s"] += 1.0
    question.write_text(json.dumps(content))
    words = ("strategies=[skippipe]", "planner.work_limit=20000", "output=figures.json")
    result = run("bench", "planner", f"set={few}", *words)
    assert result.status == 1
    assert "below the proved" in result.err
    assert len(json.loads((tmp_path / "figures.json").read_text())["rows"]) == 2


def test_bench_planner_asks_a_checker(run: Run, few: Path, tmp_path: Path) -> None:
    checker = tmp_path / "checker.py"
    checker.write_text("import json, sys; json.load(open(sys.argv[1])); sys.exit(f'asked {sys.argv[2:]}')")
    words = ("strategies=[skippipe,full]", "planner.work_limit=20000", f"set={few}")
    result = run("bench", "planner", f"checker={checker}", *words)
    assert result.status == 1
    assert "held-3s-06n-04m, skippipe: asked ['--rules'" in result.err
    assert "held-3s-06n-04m, full: asked []" in result.err
    checker.write_text("")
    assert run("bench", "planner", f"checker={checker}", *words).status == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategies=[]"], "strategies: expected at least one strategy, got []"),
        (["set=nowhere"], "set: expected a folder with NAME.cluster.json and NAME.json, got nowhere"),
        (["set=."], "set: expected NAME.cluster.json and NAME.json, got . without instances"),
        (["data=nowhere"], "data: expected a folder with NAME.cluster.json and NAME.json, got nowhere"),
        (["checker=nowhere.py"], "checker: expected the file of a Python script, got nowhere.py"),
    ],
)
def test_bench_that_cannot_be_is_refused(refused: Callable[..., str], words: list[str], message: str) -> None:
    assert message in refused("bench", "planner", *words)
