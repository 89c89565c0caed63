"""`skippipe evaluate` on the checkpoint of a run: results, resuming, comparison, refusals."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from train.alone import of_kind, train_alone
from train.jobs import make_job

from skippipe.data.prepare import corpus_folder
from skippipe.evaluate.evaluator import Evaluator

WORDS = "omit=[random:0.25,random:0.5,last:1,lost:local-2,stages:1+2,swaps:1]"


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    with corpus_folder(make_job().data) as path:
        yield path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> tuple[Path, float]:
    """A run's folder, and the validation loss at its end; stages of 2, 1 and 1 layers, sequences of 32 tokens."""
    folder = tmp_path_factory.mktemp("run")
    events = train_alone(make_job(folder=str(folder), train__learning_rate=0.02, data__prepared=str(prepared)), folder)
    return folder, of_kind(events, "validation")[-1]["loss"]


@pytest.fixture
def given(trained: tuple[Path, float], prepared: Path) -> list[str]:
    return [f"checkpoint={trained[0]}", f"data.prepared={prepared}", "data.validation_blocks=16", "device=cpu"]


def table(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "table.json").read_text())
    return content


def by_word(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["word"]: row for row in table(folder)["rows"]}


def perplexities(folder: Path) -> dict[str, float]:
    return {omission: row["perplexity"]["value"] for omission, row in by_word(folder).items()}


def test_a_checkpoint(given: list[str], trained: tuple[Path, float], run: Run, tmp_path: Path) -> None:
    result = run("evaluate", *given, WORDS, "output=out")
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[-1] == "table and plot are in out"
    out = tmp_path / "out"
    rows = by_word(out)
    assert list(rows) == ["none", *WORDS.removeprefix("omit=[").removesuffix("]").split(",")]
    assert np.log(rows["none"]["perplexity"]["value"]) == pytest.approx(trained[1], rel=1e-6), "as the training says"
    assert [row["layers"] for row in rows["random:0.25"]["each_draw"]] == [[0, 1, 3], [0, 1, 2]], "stage 0 stays"
    assert rows["lost:local-2"]["each_draw"][0]["layers"] == [0, 1, 3]
    assert rows["swaps:1"]["each_draw"][0]["layers"] == [0, 1, 3, 2]
    assert rows["stages:1+2"]["perplexity"] == rows["random:0.5"]["perplexity"]
    assert (rows["random:0.5"]["flops_saved"], rows["random:0.5"]["layers_left_out"]) == (0.5, 2)
    for row in rows.values():
        assert row["all_draws"]
        assert row["perplexity"]["low"] < row["perplexity"]["value"] < row["perplexity"]["high"]
        assert row["time_ratio"] > 0
    mean = np.mean([np.log(row["perplexity"]) for row in rows["random:0.25"]["each_draw"]])
    assert rows["random:0.25"]["perplexity"]["value"] == pytest.approx(np.exp(mean))
    increase = rows["last:1"]["perplexity"]["value"] / rows["none"]["perplexity"]["value"] - 1
    assert rows["last:1"]["rise"]["value"] == pytest.approx(increase)
    settings = table(out)["settings"]
    assert (settings["sequence"], settings["sequences"]) == (32, 16), "as long as it was trained with"
    assert (settings["autocast"], settings["device"]) == (None, "cpu")
    for line in result.out.splitlines()[2:-1]:
        assert line.split()[0] in rows
    assert "| random:0.25 | 1 of 4 | all 2 | " in (out / "table.md").read_text()
    assert (out / "perplexity.png").read_bytes().startswith(b"\x89PNG")


def test_non_finite_losses(given: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = Evaluator.losses

    def overflowing(self: Evaluator, path: Any) -> Any:
        found = losses(self, path)
        if len(path) < 4:
            found[[1, 3]] = float("inf")
        return found

    monkeypatch.setattr(Evaluator, "losses", overflowing)
    result = run("evaluate", *given, "omit=[last:1]", "output=out")
    assert result.status == 1
    message = "last:1: non-finite loss on 2 of 16 sequences with layers [0, 1, 2]; "
    assert f"skippipe evaluate: {message}" in result.err
    assert "Traceback" not in result.err
    assert len((tmp_path / "out/results.jsonl").read_text().splitlines()) == 1, "what is finite is kept"


def test_output_behind_a_link(given: list[str], run: Run, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("nobody writes here")
    for name in ("results.jsonl", "table.json"):
        folder = tmp_path / name.partition(".")[0]
        assert run("evaluate", *given, f"output={folder.name}").status == 0
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "canary")
        result = run("evaluate", *given, f"output={folder.name}")
        assert result.status == 2
        assert f"{folder.name}/{name}: expected a regular file, got a symbolic link" in result.err
    assert (tmp_path / "canary").read_text() == "nobody writes here"


def test_resumes_and_measures_nothing_twice(
    given: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("evaluate", *given, WORDS, "output=whole").status == 0
    measured, losses = [], Evaluator.losses
    calls = itertools.count()

    def stopped_at_the_third(self: Evaluator, path: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        measured.append(tuple(path))
        return losses(self, path)

    monkeypatch.setattr(Evaluator, "losses", stopped_at_the_third)
    assert run("evaluate", *given, WORDS, "output=cut").status == 130
    assert len((tmp_path / "cut/results.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "cut/table.json").exists()
    assert run("evaluate", *given, WORDS, "output=cut").status == 0
    assert len(measured) == len(set(measured)) == len((tmp_path / "cut/results.jsonl").read_text().splitlines())
    assert perplexities(tmp_path / "cut") == perplexities(tmp_path / "whole")

    before = (tmp_path / "cut/table.json").read_bytes()
    known = len(measured)
    assert run("evaluate", *given, WORDS, "output=cut").status == 0
    assert len(measured) == known
    assert (tmp_path / "cut/table.json").read_bytes() == before
    assert run("evaluate", *given, "omit=[last:1,every:4,layers:0]", "output=cut").status == 0
    assert measured[known:] == [(1, 2, 3)], "other words, of which one needs something new"

    refusal = run("evaluate", *given, "data.sequence=16", "output=cut")
    assert refusal.status == 2
    assert "settings.json: sequence: expected 16, got 32" in refusal.err


def test_transformers_folder_and_comparison(given: list[str], run: Run, tmp_path: Path) -> None:
    checkpoint = given[0]
    assert run("export", checkpoint, "output=model").status == 0
    omissions = ["omit=[random:0.5,stages:1]", "unit=stages"]
    assert run("evaluate", *given, *omissions, "output=ev/a").status == 0
    of_folder = ["model=model", *given[1:], "layers=[2,1,1]", "data.sequence=32"]
    assert run("evaluate", *of_folder, *omissions, "output=ev/b").status == 0
    assert perplexities(tmp_path / "ev/a") == perplexities(tmp_path / "ev/b")
    rounded = run("evaluate", *of_folder, *omissions, "autocast=bfloat16", "output=ev/b")
    assert "autocast: expected bfloat16, got null" in rounded.err

    together = run("evaluate", "compare=[ev/a,ev/b]", "output=both")
    assert (together.status, together.err) == (0, "")
    lines = [line.split()[:2] for line in together.out.splitlines()[2:-1]]
    assert lines == [["none", "a"], ["none", "b"], ["random:0.5", "a"], ["random:0.5", "b"], ["stages:1", "a"],
                     ["stages:1", "b"]]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["perplexity.png", "table.md"]
    assert "- a: ev/a\n- b: ev/b\n" in (tmp_path / "both/table.md").read_text()


def test_refusals(given: list[str], refused: Callable[..., str], run: Run, tmp_path: Path) -> None:
    checkpoint, text, *rest = given
    assert "output: expected output=..., got nothing" in refused("evaluate", *given)
    assert "expected checkpoint or model, got neither" in refused("evaluate", text, "output=out")
    assert "expected checkpoint or model, got both" in refused("evaluate", *given, "model=x", "output=out")
    assert "model: expected a folder with config.json and safetensors files, got nowhere" in refused(
        "evaluate", "model=nowhere", text, "output=out"
    )
    assert "omit: expected none, random" in refused("evaluate", *given, "omit=[half]", "output=out")
    assert "got stages:3" in refused("evaluate", *given, "omit=[stages:3]", "output=out")
    assert "device: expected auto, cpu, cuda or cuda:NUMBER, got tpu" in refused(
        "evaluate", checkpoint, text, "device=tpu", "output=out"
    )
    assert "layers: expected positive numbers" in refused("evaluate", *given, "layers=[1,1]", "output=out")
    assert "data.sequence: expected at most 64, the positions" in refused(
        "evaluate", *given, "data.sequence=65", "output=out"
    )
    assert "compare: expected at least two different folders, got ['x']" in refused(
        "evaluate", "compare=[x]", "output=out"
    )
    assert "x: expected the output of a finished `skippipe evaluate`, got no table.json" in refused(
        "evaluate", "compare=[x,y]", "output=out"
    )
    assert "expected compare or a model (checkpoint, model), got both" in refused(
        "evaluate", *given, "compare=[x,y]", "output=out"
    )
    assert "expected a model of at least two stages, got swap:0" in refused(
        "evaluate", *given, "layers=[4]", "omit=[swap:0]", "output=out"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("")
    assert "mine with file and no settings.json" in refused("evaluate", *given, "output=mine")
    assert "output: expected a folder, got the file" in refused("evaluate", *given, "output=mine/file")
    assert "mine/file/x cannot be written: Not a directory" in refused("evaluate", *given, "output=mine/file/x")

    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("Other words in another order. " * 400)
    other = ["data.training=[a.txt]", "data.validation=[b.txt]", "data.vocabulary=300"]
    assert "has its own tokenizer, got 300" in refused("evaluate", checkpoint, *other, *rest, "output=out")
    assert run("data", "prepare", *other, "output=text").status == 0
    assert "text: not the tokenizer of" in refused("evaluate", checkpoint, "data.prepared=text", *rest, "output=out")

    shutil.copytree(text.partition("=")[2], tmp_path / "spoiled")
    tokens = tmp_path / "spoiled/validation.tokens"
    tokens.write_bytes(b"\1" + tokens.read_bytes()[1:])
    spoiled = refused("evaluate", checkpoint, "data.prepared=spoiled", *rest, "output=out")
    assert "validation.tokens: changed since it was prepared (bytes 0 to" in spoiled


def test_incomparable_evaluations(given: list[str], refused: Callable[..., str], run: Run, tmp_path: Path) -> None:
    for name, sequence in (("a", 32), ("b", 16)):
        assert run("evaluate", *given, "omit=[]", f"data.sequence={sequence}", f"output={name}").status == 0
    assert "b: sequence: expected 32 as in a, got 16" in refused("evaluate", "compare=[a,b]", "output=both")
    assert run("evaluate", *given, "omit=[last:1]", "output=c").status == 0
    before = {path: path.read_bytes() for name in "ac" for path in (tmp_path / name).iterdir()}
    (tmp_path / "a file").write_text("")
    for output, message in (
        ("a", "output: expected a new or empty folder, or that of a comparison, got"),
        ("c", "output: expected a new or empty folder, or that of a comparison, got"),
        ("'a file'", "output: expected a folder, got the file"),
        ("'a file/x'", "a file/x cannot be written: Not a directory"),
    ):
        assert message in refused("evaluate", "compare=[a,c]", f"output={output}")
    assert {path: path.read_bytes() for path in before} == before, "no evaluation lost its own table"
    for _ in range(2):
        assert run("evaluate", "compare=[a,c]", "output=both").status == 0

    content = table(tmp_path / "b")
    spoiled: dict[str, Any]
    for spoiled in ({"rows": []}, {"rows": [5]}, {"settings": {}}, {"format": "other/1"}):
        (tmp_path / "b/table.json").write_text(json.dumps(content | spoiled))
        assert "b/table.json: " in refused("evaluate", "compare=[a,b]", "output=both")
