"""Sweeps: one folder per job, failures of single jobs, and another launcher."""

from pathlib import Path

import pytest
from conftest import Run

from skippipe.plan import load_plan

QUICK = ("cluster=local4", "planner.time_limit_s=0.1")


def sweep_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "multirun").glob("*/*")
    return folder


def test_each_job_has_a_folder(run: Run, tmp_path: Path) -> None:
    result = run("plan", "-m", *QUICK, "schedule.skip_ratio=0,0.25,0.5", "output=plan.json")
    assert result.status == 0, result.err
    assert [path.name for path in tmp_path.iterdir()] == ["multirun"]
    ratios = [load_plan(str(sweep_folder(tmp_path) / str(n) / "plan.json")).skip_ratio for n in range(3)]
    assert ratios == [0.0, 0.25, 0.5]
    lines = result.out.splitlines()
    assert [line.split()[:2] for line in lines] == [["job", str(n)] for n in range(3)]
    assert all("iteration" in line for line in lines)


def test_a_job_that_fails_does_not_stop_the_others(run: Run, tmp_path: Path) -> None:
    result = run("plan", "-m", *QUICK, "schedule.skip_ratio=0,0.9,0.5", "output=plan.json")
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert "skippipe plan: job 1 (" in result.err
    assert "skip_ratio" in result.err
    names = sorted(str(path.relative_to(sweep_folder(tmp_path))) for path in sweep_folder(tmp_path).glob("*/*"))
    assert names == ["0/plan.json", "2/plan.json"]


def test_unknown_keys_stop_a_sweep_before_it_starts(run: Run) -> None:
    result = run("plan", "-m", *QUICK, "schedule.nothing=1,2")
    assert result.status == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert "schedule.nothing" in result.err


@pytest.mark.filterwarnings("default")
def test_joblib_launcher(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    result = run(
        "plan", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *QUICK, "schedule.skip_ratio=0,0.9,0.5",
        "output=plan.json",
    )  # fmt: skip
    assert result.status == 2
    assert "Traceback" not in result.err
    assert "skippipe plan: job 1 (" in result.err
    ratios = [load_plan(str(sweep_folder(tmp_path) / n / "plan.json")).skip_ratio for n in ("0", "2")]
    assert ratios == [0.0, 0.5]
