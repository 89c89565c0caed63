"""Sweeps: one folder per job, failures of single jobs, and another launcher."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.types import RunMode

from skippipe.plan_file import load_plan

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


@pytest.mark.parametrize("in_file", [False, True])
def test_the_mode_may_be_set_as_hydra_has_it(in_file: bool, run: Run, tmp_path: Path) -> None:
    files = tmp_path / "files"
    (files / "mode").mkdir(parents=True)
    (files / "mode" / "swept.yaml").write_text("# @package _global_\nhydra:\n  mode: MULTIRUN\n")
    mode = [f"--config-dir={files}", "+mode=swept"] if in_file else ["hydra.mode=MULTIRUN"]
    result = run("plan", *mode, *QUICK, "schedule.skip_ratio=0,0.5", "output=plan.json")
    assert result.status == 0, result.err
    assert len(list(sweep_folder(tmp_path).glob("*/plan.json"))) == 2


def test_a_command_and_each_job_of_a_sweep_are_composed_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[RunMode] = []
    compose = ConfigLoaderImpl.load_configuration

    def counted(
        loader: ConfigLoaderImpl, config_name: str | None, overrides: list[str], run_mode: RunMode, **named: Any
    ) -> Any:
        composed.append(run_mode)
        return compose(loader, config_name, overrides, run_mode, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    assert run("plan", *QUICK).status == 0
    assert composed == [RunMode.RUN]
    composed.clear()
    assert run("plan", "-m", *QUICK, "schedule.skip_ratio=0,0.25,0.5").status == 0
    assert composed == [RunMode.MULTIRUN, *[RunMode.RUN] * 3]


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


SHARING = [
    (["plan", "output={}/plan.json"], "output"),
    (["plan", "output=../plan.json"], "output"),
    (["plan", "output=plan.json", "hydra.sweep.subdir=same"], "output"),
    (["plan", "output=plan.json", "hydra.sweep.dir=fixed", "hydra.sweep.subdir=."], "output"),
    (["train", "folder={}/run"], "folder"),
    (["train", "hydra.sweep.subdir=same"], "folder"),
]


@pytest.mark.parametrize(("arguments", "key"), SHARING, ids=lambda x: x if isinstance(x, str) else x[1])
def test_jobs_that_would_share_a_path_are_refused(arguments: list[str], key: str, run: Run, tmp_path: Path) -> None:
    """Before the first of them runs, and before there is a folder for it."""
    command, *settings = (argument.format(tmp_path) for argument in arguments)
    result = run(command, "-m", "cluster=local4", "schedule.skip_ratio=0,0.5", *settings)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith(
        f"skippipe {command}: {key}: expected a path of its own for each job of the sweep, got /"
    )
    assert "for jobs 0 and 1" in result.err
    assert result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["output", "picture", "map", "curve", "json"])
def test_reports_that_would_share_a_path_are_refused(key: str, run: Run, tmp_path: Path) -> None:
    result = run("report", "-m", "plan=a.json,b.json", f"{key}={tmp_path}/one")
    assert result.status == 2
    assert result.err.startswith(f"skippipe report: {key}: expected a path of its own")


def test_jobs_may_name_their_own_paths(run: Run, tmp_path: Path) -> None:
    """In one folder, or wherever: as long as the paths differ."""
    one = run("plan", "-m", *QUICK, "schedule.skip_ratio=0,0.5", f"output={tmp_path}/k${{schedule.skip_ratio}}.json")
    assert one.status == 0, one.err
    other = run(
        "plan", "-m", *QUICK, "schedule.skip_ratio=0,0.5", "hydra.sweep.dir=fixed", "hydra.sweep.subdir=same",
        "output=n${hydra:job.num}.json",
    )  # fmt: skip
    assert other.status == 0, other.err
    for names in (("k0.0.json", "k0.5.json"), ("fixed/same/n0.json", "fixed/same/n1.json")):
        assert [load_plan(str(tmp_path / name)).skip_ratio for name in names] == [0.0, 0.5]
