"""What tests of several files share."""

import dataclasses
import gc
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
from composing import remember_compositions
from effort import THOROUGH
from hypothesis import settings
from warm import Fresh, start_warm

from skippipe.cli import main
from skippipe.console import streams
from skippipe.errors import InputError

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "tests" / "reference" / "published"
"""Published instances."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command line did."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]
LONGEST = (
    "train/test_recovery.py", "train/test_torchrun.py", "train/test_closed_loop.py", "train/test_node.py",
    "train/test_resume.py", "train/test_kill.py", "train/test_phases.py", "test_planner.py", "train/test_joining.py",
    "model/test_compiled.py", "train/test_measure.py", "train/test_resume_processes.py", "study/test_study_command.py",
    "model/test_folder.py", "train/test_precision.py",
)  # fmt: skip
"""Files that take half a minute or more, longest first."""
settings.register_profile("long", max_examples=350_000)
settings.register_profile(THOROUGH)
gc.disable()  # until all tests are collected: what is imported stays, and looking through it takes seconds
OF_HYDRA = ("Only one of --run, --multirun, ", "Additional config directory ")
"""Beginnings of errors of Hydra's, which names no key."""


def pytest_configure(config: pytest.Config) -> None:
    """Whatever tests, torch or multiprocessing leave in the temporary folder ends with the session.

    Only pytest's own folders stay, for a look at what failed. Processes of xdist share the folder of their parent.
    """
    if hasattr(config, "workerinput"):
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="skippipe-tests-")
    Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-200)  # the last one
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: else one process still runs one of them when all others are done."""
    rank = {ROOT / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish() -> None:
    """From here on garbage is collected, but not looked for in what was imported."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def warm() -> None:
    """Programs of this project need not import torch each time."""
    start_warm()


@pytest.fixture(scope="session", autouse=True)
def composed_once() -> Iterator[None]:
    """Of the same files, settings are composed once; programs started anew do as always."""
    with pytest.MonkeyPatch.context() as patch:
        remember_compositions(patch)
        yield


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that this test starts are started anew."""
    monkeypatch.setattr(subprocess, "Popen", Fresh)


@pytest.fixture(scope="session", autouse=True)
def own_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Generate the key that signs checkpoints for the tests, outside of the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `skippipe ARGUMENTS` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: object) -> Result:
        status = main([str(argument) for argument in arguments])
        return Result(status, *capfd.readouterr())

    return call


@pytest.fixture
def refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command line that has to be refused: status 2, one message, no file left; return the message.

    The error says in fields what it is about.
    """
    errors: list[Exception] = []

    def report_error(command: str, error: Exception, label: str | None = None) -> None:
        errors.append(error)
        streams.report_error(command, error, label)

    def call(*arguments: object) -> str:
        before = sorted(tmp_path.iterdir())
        errors.clear()
        with monkeypatch.context() as patch:
            patch.setattr("skippipe.application.run.report_error", report_error)
            result = run(*arguments)
        for error in errors:
            assert isinstance(error, InputError)
            known = error.key or error.file or error.expected or getattr(error, "rule", None)
            assert known or str(error).startswith(OF_HYDRA), repr(error)
            assert str(InputError(**json.loads(json.dumps(error.fields())))) == str(error)
        assert result.status == 2, result
        assert result.out == ""
        assert "Traceback" not in result.err
        assert "HYDRA" not in result.err
        assert result.err.count("skippipe ") >= 1
        assert sorted(tmp_path.iterdir()) == before
        return result.err

    return call


@pytest.fixture
def small_cluster() -> dict[str, Any]:
    """A cluster of four equal nodes, as a file has it; link matrices of any shape can be put in."""
    node = {"forward_s": 0.04, "backward_s": 0.08, "loss_s": 0.01, "memory": 4}
    return {
        "format": "skippipe.cluster/1",
        "nodes": [{"name": f"n{i}", **node} for i in range(4)],
        "latency_s": [[0.001 * (i != j) for j in range(4)] for i in range(4)],
        "bandwidth": [[1e9] * 4 for _ in range(4)],
        "overhead_s": 0.0,
        "activation_bytes": 1e6,
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    """Write a value as JSON, or a text as it is, into the test's folder."""

    def call(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return call
