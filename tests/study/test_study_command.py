"""`skippipe study` from end to end: real trainings of a tiny model, one of them interrupted and resumed."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from train.jobs import make_job

from skippipe.data.prepare import corpus_folder

pytest.importorskip("torch", reason="needs torch (the extra `train`)")

BASE = """\
# @package _global_
defaults:
  - override /model: llama_tiny
  - override /runtime: local
  - _self_
model:
  {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 2}
schedule: {microbatches_per_source: 2}
planner: {work_limit: 200}
data: {sequence: 32, validation_blocks: 16}
runtime: {compile: false, autocast: null}
train: {iterations: 20, microbatch_size: 2, validate_every: 10, validate_training: true}
"""
ARM = "# @package _global_\ndefaults:\n  - tiny\n  - _self_\n\nschedule: {{skip_ratio: {}}}\n"
ITERATIONS = 20
TOKENS = ITERATIONS * 4 * 2 * 32


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    """The bundled text, tokenised once."""
    with corpus_folder(make_job().data) as path:
        yield path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of settings with two experiments."""
    folder = tmp_path / "own settings" / "experiment"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(BASE)
    (folder / "whole.yaml").write_text(ARM.format(0.0))
    (folder / "part.yaml").write_text(ARM.format(1 / 3))
    return folder.parent


class Study:
    """A study's command line and its output."""

    def __init__(self, run: Run, folder: Path, own: Path, *arguments: str) -> None:
        self.run, self.folder = run, folder
        self.arguments = ["study", "--config-dir", own, "records=kept/mine.json", "baseline=whole", *arguments]

    def __call__(self, *arguments: str) -> str:
        result = self.run(*self.arguments, *arguments)
        assert result.status == 0, result
        return result.out

    def entry(self, experiment: str) -> dict[str, Any]:
        entries = json.loads((self.folder / "kept" / "mine.json").read_text())["entries"]
        (entry,) = [entry for entry in entries if entry["experiment"] == experiment]
        return dict(entry)

    def events(self, experiment: str) -> list[dict[str, Any]]:
        path = self.folder / "studies" / experiment / "seed0" / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def when(holds: Callable[[], bool], number: signal.Signals) -> threading.Thread:
    """Send this process a signal as soon as something holds."""

    def watch() -> None:
        deadline = time.monotonic() + 120
        while not holds() and time.monotonic() < deadline:
            time.sleep(0.1)
        if holds():
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_stopped_before_anything_was_trained(run: Run, tmp_path: Path, own: Path, prepared: Path) -> None:
    study = Study(run, tmp_path, own, "arms=[{experiment: whole}]", f"prepared={prepared}", "devices=[cpu]")
    begun = when(lambda: any((tmp_path / "studies").rglob("*.log")), signal.SIGUSR1)
    result = run(*study.arguments)
    begun.join()
    assert result.status == 128 + signal.SIGUSR1, result
    assert "cpu: whole, seed 0: train stopped" in result.out
    assert study.entry("whole")["tokens_done"] == 0


def test_a_study(run: Run, tmp_path: Path, own: Path, prepared: Path) -> None:
    arms = "arms=[{experiment: whole},{experiment: part}]"
    study = Study(run, tmp_path, own, arms, f"prepared={prepared}", "omit=[]")
    assert study("--dry-run", "devices=[cpu]").startswith("cpu: train whole, seed 0\nthen: train part, seed 0\n")
    assert [*tmp_path.iterdir()] == [own]

    trained = when(lambda: any(e.get("iteration", 0) >= 2 for e in study.events("whole")), signal.SIGTERM)
    out = study("devices=[cpu]")
    trained.join()
    assert "cpu: whole, seed 0: train stopped" in out
    stopped = study.entry("whole")
    assert 0 < stopped["tokens_done"] < stopped["tokens"] == TOKENS
    assert not stopped["finished"]
    assert study.events("whole")[-1]["outcome"] == "stopped"
    assert study.entry("part")["tokens_done"] == 0

    out = study("devices=[cpu,cpu]")
    assert "cpu: whole, seed 0: train done" in out
    assert "cpu: part, seed 0: train done" in out
    events = study.events("whole")
    assert [e["iteration"] for e in events if e["event"] == "iteration"] == [*range(1, ITERATIONS + 1)]
    assert [e["iteration"] for e in events if e["event"] == "resumed"] == [
        stopped["tokens_done"] // (TOKENS // ITERATIONS)
    ]
    for experiment in ("whole", "part"):
        entry, validations = study.entry(experiment), study.events(experiment)
        assert (entry["tokens_done"], entry["finished"], entry["note"]) == (TOKENS, True, None)
        losses = {e["iteration"]: round(e["loss"], 5) for e in validations if e["event"] == "validation"}
        assert [(tokens // (TOKENS // ITERATIONS), loss) for tokens, loss, _ in entry["curve"]] == sorted(
            losses.items()
        )
    page = (tmp_path / "kept" / "mine.md").read_text()
    assert f"| part | 0 | {TOKENS / 1e6:.3g} |" in page
    assert "## With layers skipped" not in page

    again = study("omit=[none,'stages:1']", "arms=[{experiment: part}]", "devices=[cpu]")
    assert again.splitlines()[0] == "cpu: part, seed 0: evaluate"
    rows = {row["word"]: row["perplexity"]["value"] for row in study.entry("part")["evaluation"]}
    assert [*rows] == ["none", "stages:1"]
    assert rows["stages:1"] != rows["none"]
    page = (tmp_path / "kept" / "mine.md").read_text()
    assert "| stages:1 | " in page
    assert "| whole | 0 |" in page, "records of other machines stay"
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "mine.json", "mine.md", "mine_curves.png", "mine_omitted.png",
    }  # fmt: skip

    before = (tmp_path / "kept" / "mine.json").read_text()
    study("minutes=0", "folder=elsewhere")
    assert (tmp_path / "kept" / "mine.json").read_text() == before, "a machine without the runs keeps the records"
    for folder, message in (
        ("studies", "studies/whole/seed0: holds a run with other settings than whole, seed 0"),
        ("elsewhere", "whole, seed 0 is recorded with other settings"),
    ):
        result = run(*study.arguments, "minutes=0", f"folder={folder}", 'overrides=["train.iterations=21"]')
        assert result.status == 2
        assert message in result.err


def test_failure_of_an_arm_is_recorded(run: Run, tmp_path: Path, own: Path, prepared: Path) -> None:
    (own / "experiment" / "wrong.yaml").write_text(ARM.format(0.0) + "runtime: {processes: 9}\n")
    study = Study(run, tmp_path, own, "arms=[{experiment: wrong}]", f"prepared={prepared}", "omit=[]")
    out = study("devices=[cpu]")
    assert "cpu: wrong, seed 0: train failed" in out
    location = "own settings/experiment/wrong.yaml:7"
    note = f"train: skippipe train: {location}: runtime.processes: expected at most the number of nodes, 4, got 9"
    assert study.entry("wrong")["note"] == note
    assert f"- wrong, seed 0 failed: {note}\n" in (tmp_path / "kept/mine.md").read_text()


def test_refusals(refused: Callable[..., str], tmp_path: Path) -> None:
    few = "arms=[{experiment: llama30m_0}]"
    assert "arms[0], mars: experiment: expected one of " in refused("study", "arms=[{experiment: mars}]")
    assert "study-text: expected a folder written by `skippipe data prepare`" in refused(
        "study", few, "devices=[cpu]", "records=a.json"
    )
    assert "devices[0]: expected auto, cpu, cuda or cuda:NUMBER, got tpu" in refused(
        "study", few, "devices=[tpu]", "records=a.json"
    )
    assert "devices: expected at least one device, got []" in refused("study", few, "devices=[]", "records=a.json")
    assert "minutes: expected a finite number of at least 0, got -1.0" in refused("study", "minutes=-1")
    (tmp_path / "a.json").write_text("[]")
    assert "a.json: expected a JSON object, got a JSON array" in refused("study", few, "minutes=0", "records=a.json")
