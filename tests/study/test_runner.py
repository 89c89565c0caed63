"""Real processes that do nothing useful."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skippipe.study.arms import StudyStep
from skippipe.study.runner import Runner, RunnerCallbacks, StepResult, last_line

LONG = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


class Bench:
    """A runner of scripts that records its callbacks."""

    def __init__(self, folder: Path, scripts: list[str], devices: list[str]) -> None:
        self.folder, self.devices = folder, devices
        self.scripts: dict[int, str] = dict(enumerate(scripts))
        self.left = [step(number) for number in self.scripts]
        self.events: list[tuple[str, int, str]] = []
        self.ended: list[StepResult] = []

    def run(self, *, stop: Callable[[], bool] = lambda: False, seconds: float | None = 60, grace_s: float = 60) -> None:
        callbacks = RunnerCallbacks(self.started, self.end, lambda: None)
        Runner(self.devices, self.choose, self.line, self.log, callbacks).run(seconds, grace_s, stop)

    def choose(self) -> StudyStep | None:
        return self.left.pop(0) if self.left else None

    def line(self, step: StudyStep, device: str) -> list[str]:
        return [sys.executable, "-c", self.scripts[number_of(step)], device]

    def log(self, step: StudyStep) -> Path:
        return self.folder / f"{number_of(step)}" / "log"

    def started(self, step: StudyStep, device: str) -> None:
        self.events.append(("started", number_of(step), device))

    def end(self, ended: StepResult) -> None:
        self.ended.append(ended)
        self.events.append((ended.how, number_of(ended.step), ended.device))

    def saying(self, number: int, text: str) -> bool:
        """Whether a script has said something."""
        log = self.folder / f"{number}" / "log"
        return log.exists() and text in log.read_text()


def step(number: int) -> StudyStep:
    arm: Any = SimpleNamespace(number=number)
    return StudyStep(arm, "train")


def number_of(step: StudyStep) -> int:
    arm: Any = step.arm
    return int(arm.number)


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    return lambda scripts, devices: Bench(tmp_path, scripts, devices)


def test_the_next_step_starts_on_a_free_device(bench: Callable[..., Bench]) -> None:
    quick = "import sys; print('on', sys.argv[1])"
    at_work = bench([LONG, quick, "raise SystemExit('no\\n  memory ')", quick], ["a", "b"])
    at_work.run(stop=lambda: len(at_work.ended) == 3)
    assert at_work.events == [
        ("started", 0, "a"), ("started", 1, "b"), ("done", 1, "b"), ("started", 2, "b"), ("failed", 2, "b"),
        ("started", 3, "b"), ("done", 3, "b"), ("stopped", 0, "a"),
    ]  # fmt: skip
    assert at_work.ended[1].message == "memory"
    assert at_work.saying(3, "on b")


def test_a_device_listed_twice(bench: Callable[..., Bench]) -> None:
    at_work = bench(["", ""], ["a", "a", "a"])
    at_work.run(seconds=None)
    assert at_work.events[:2] == [("started", 0, "a"), ("started", 1, "a")]
    assert sorted(at_work.events[2:]) == [("done", 0, "a"), ("done", 1, "a")]


def test_time_limit_stops_all(bench: Callable[..., Bench]) -> None:
    heeding = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved')))\ntime.sleep(600)"
    )
    at_work = bench([heeding, LONG, LONG], ["a", "b"])
    at_work.run(seconds=2)
    assert {how for how, _, _ in at_work.events} == {"started", "stopped"}
    assert len(at_work.ended) == 2
    assert len(at_work.left) == 1


def test_unresponsive_processes_are_killed_with_their_children(bench: Callable[..., Bench]) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {DEAF!r}])"
    parent = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {child}"
    at_work = bench([parent], ["a"])
    at_work.run(stop=lambda: at_work.saying(0, "deaf"), grace_s=0.5)
    assert at_work.events == [("started", 0, "a"), ("killed", 0, "a")]


def test_an_exception_leaves_no_process(bench: Callable[..., Bench]) -> None:
    at_work = bench([LONG, ""], ["a", "b"])

    def fail() -> bool:
        if at_work.ended:
            raise KeyError("ours")
        return False

    with pytest.raises(KeyError, match="ours"):
        at_work.run(stop=fail)
    assert at_work.events[-1] == ("stopped", 0, "a")


def test_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000 + b"\nfirst\n  the \xff reason  \n\n \n")
    assert last_line(log) == "the � reason"
    log.write_bytes(b"")
    assert last_line(log) == ""
