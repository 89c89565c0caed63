"""From settings to the description of a run, and that nothing after it looks at settings again."""

import ast
import dataclasses
import functools
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from train.jobs import TINY_MODEL, make_job

import skippipe
from skippipe.application import compose
from skippipe.config import PhaseConfig, PhasesConfig, ScheduleConfig
from skippipe.planning import make_plan, planning_job
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec

PACKAGE = Path(skippipe.__file__).parent


def facts(spec: RunSpec) -> list[object]:
    """All that a description says, plans and clusters as text."""
    layout = spec.layout
    plan = None if layout.plan is None else layout.plan.to_json()
    rest = [getattr(spec, item.name) for item in dataclasses.fields(spec) if item.name != "layout"]
    return [layout.cluster.to_json(), layout.allocation, plan, layout.origin, *rest]


def test_settings_become_parts() -> None:
    spec = resolve(
        make_job(
            phases=PhasesConfig([PhaseConfig(0.5), PhaseConfig(skip_ratio=0.0)]), train__layers=[2, 1, 1],
            train__dtype="bfloat16", train__clip_norm=None, runtime__group=8, checkpoint__keep=7, data__sequence=16,
        )
    )  # fmt: skip
    assert [(phase.after, phase.schedule.skip_ratio) for phase in spec.phases] == [(0, 1 / 3), (2, 0.0)]
    assert (spec.model.layers, spec.precision.dtype, spec.optimizer.clip_norm) == ((2, 1, 1), "bfloat16", None)
    assert (spec.device.group, spec.checkpoints.keep, spec.data.sequence) == (8, 7, 16)
    assert spec.layout.used == ["local-0", "local-1", "local-2", "local-3"]
    assert "phases" in spec.settings_yaml
    assert spec.shared_settings["train.layers"] == "[2, 1, 1]"


def test_a_description_does_not_change() -> None:
    job = make_job(schedule=ScheduleConfig(microbatches_per_source=[3, 2]))
    spec = resolve(job)
    before = facts(spec)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.seed = 5  # type: ignore[misc]
    job.model["hidden_size"] = 8
    job.train.iterations = 99
    job.schedule.microbatches_per_source[0] = 9
    assert facts(spec) == before
    assert spec.model.settings["hidden_size"] == TINY_MODEL["hidden_size"]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("cluster", ["local4", "geo20", "synthetic"])
def test_workers_get_what_was_resolved(cluster: str, given: bool, tmp_path: Path) -> None:
    """To the last bit of every number: a hash over cluster and plan decides whether a run keeps its plan."""
    job = compose("train", [f"cluster={cluster}", "planner.work_limit=20"])
    if given:
        path = tmp_path / "plan.json"
        question = planning_job(job.cluster, job.allocate, job.schedule)
        path.write_text(make_plan(question, "full", job.planner).to_json())
        job.plan = str(path)
    spec = resolve(job)
    assert facts(pickle.loads(pickle.dumps(spec))) == facts(spec)


def module_name(path: Path) -> str:
    return ".".join([PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


MODULES = frozenset(module_name(path) for path in PACKAGE.rglob("*.py"))


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Modules of this package that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{item.name}" for item in node.names)}
        elif isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
    return MODULES & found


def test_only_the_first_step_sees_settings() -> None:
    readers = {
        path.relative_to(PACKAGE / "train").as_posix()
        for path in (PACKAGE / "train").rglob("*.py")
        if "skippipe.train.config" in imports_of(path)
    }
    assert readers == {"launch/launch.py", "measuring/config.py", "resolve/layout.py", "resolve/resolve.py"}


def test_data_flows_in_one_direction() -> None:
    """A step imports itself and earlier steps, or what all of them report to; and no two modules import each other."""
    allowed = {
        "observe": set(),
        "resolve": set(),
        "connect": {"resolve"},
        "loop": {"connect", "observe", "resolve"},
        "prepare": {"connect", "loop", "observe", "resolve"},
        "launch": {"connect", "loop", "observe", "prepare", "resolve"},
    }
    for step, others in allowed.items():
        for path in (PACKAGE / "train" / step).glob("*.py"):
            used = {name.split(".")[2] for name in imports_of(path) if name.startswith("skippipe.train.")}
            assert used & allowed.keys() <= others | {step}, path
    graph = {module_name(path): imports_of(path) - {module_name(path)} for path in PACKAGE.rglob("*.py")}
    while leaves := {name for name, used in graph.items() if not used & graph.keys()}:
        graph = {name: used for name, used in graph.items() if name not in leaves}
    assert not {name for name in graph if name.startswith(("skippipe.train.", "skippipe.model."))}, graph


def test_nothing_of_it_imports_torch() -> None:
    code = "import sys, skippipe.train.launch.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
