"""From a training to a folder for others and back: `skippipe export`, and `model=pretrained`."""

import json
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from model.folders import change_weights, read_full_model
from model.small import logits_of
from tokenizers import Tokenizer
from train.alone import EventDict, of_kind, train_alone
from train.jobs import make_job

from skippipe.checkpoint import open_checkpoint
from skippipe.data.corpus import Corpus
from skippipe.data.model_tokenizer import difference
from skippipe.data.prepare import corpus_folder
from skippipe.errors import InputError
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.settings import model_config
from skippipe.train.config import TrainJob

Trained = tuple[Path, list[EventDict]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run's folder with a checkpoint, and the events of the run."""
    folder = tmp_path_factory.mktemp("run")
    return folder, train_alone(make_job(folder=str(folder), train__learning_rate=0.02), folder)


def test_the_model_of_a_run_for_plain_transformers(trained: Trained, run: Run, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder, _ = trained
    result = run("export", f"checkpoint={folder}", "output=out")
    assert result.status == 0, result.err
    assert result.out.startswith("iteration 4: ")
    assert result.out.endswith("MB, written to out\n")
    checkpoint = open_checkpoint(folder)
    config = model_config(checkpoint.state.model)
    parts = [
        build_stage_module(config, stage=stage, layers=layers, first=stage == 0, seed=7)
        for stage, layers in enumerate(stage_layers([1, 3], config))
    ]
    for part in parts:
        checkpoint.load(part.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "Fellow-Citizens of the Senate and House of Representatives"
    given = tokenizer(text, return_tensors="pt")["input_ids"]
    assert checkpoint.tokenizer_json is not None
    assert given[0].tolist() == Tokenizer.from_str(checkpoint.tokenizer_json).encode(text).ids
    with torch.no_grad():
        assert torch.equal(read_full_model(tmp_path / "out")(given).logits, logits_of(parts, given))


def test_a_training_goes_on_from_what_was_exported(trained: Trained, run: Run, tmp_path: Path) -> None:
    folder, reported = trained
    for dtype in ("float32", "bfloat16"):
        assert run("export", f"checkpoint={folder}", f"output={dtype}", f"dtype={dtype}").status == 0
    before = [event["loss"] for event in of_kind(reported, "validation")]
    after = {}
    for dtype in ("float32", "bfloat16"):
        further = tmp_path / f"further-{dtype}"
        further.mkdir()
        job = make_job(model={"folder": str(tmp_path / dtype)}, folder=str(further), train__iterations=1)
        after[dtype] = of_kind(train_alone(job, further), "validation")[0]["loss"]
    assert after["float32"] == before[-1]
    assert after["bfloat16"] == pytest.approx(before[-1], abs=0.02)
    assert after["bfloat16"] != before[-1]
    assert before[0] - before[-1] > 0.1, "it has learned, so that lost weights would be detected"


def test_a_dry_run_knows_the_folder(trained: Trained, run: Run, tmp_path: Path) -> None:
    assert run("export", f"checkpoint={trained[0]}", "output=out").status == 0
    result = run("train", "--dry-run", "model=pretrained", "model.folder=out", "data.sequence=32")
    assert result.status == 0, result.err
    assert "llama" in result.out
    change_weights(tmp_path / "out", {"model.norm.weight": torch.full([32], torch.nan)})
    result = run("train", "--dry-run", "model=pretrained", "model.folder=out", "data.sequence=32")
    assert (result.status, result.out) == (2, "")
    message = "out/model.safetensors: model.norm.weight: expected finite numbers, got nan at 0 (32 of 32 values)\n"
    assert result.err == f"skippipe train: {message}"
    result = run("evaluate", "model_folder=out", "data.sequence=32", "output=evaluation", "dtype=float32")
    assert (result.status, result.err.endswith(message)) == (2, True)


@pytest.fixture
def with_own_tokenizer(trained: Trained, run: Run, tmp_path: Path) -> Path:
    """A model whose tokenizer has the entries of the bundled one, but two merges in reverse order."""
    assert run("export", f"checkpoint={trained[0]}", "output=own").status == 0
    content = json.loads((tmp_path / "own" / "tokenizer.json").read_text())
    content["model"]["merges"][:2] = reversed(content["model"]["merges"][:2])
    (tmp_path / "own" / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path / "own"


def on_the_way_out(model: Path, folder: Path, run: Run, **more: Any) -> Path:
    """Train a model that has a tokenizer of its own, without naming it, and export it."""
    folder.mkdir()
    settings = {"data__prepared": None} | more
    train_alone(make_job(model={"folder": str(model)}, folder=str(folder), train__iterations=1, **settings), folder)
    assert run("export", f"checkpoint={folder}", f"output={folder}/out").status == 0
    return folder / "out"


def test_the_tokenizer_of_a_model_goes_in_and_out(with_own_tokenizer: Path, run: Run, tmp_path: Path) -> None:
    out = on_the_way_out(with_own_tokenizer, tmp_path / "further", run)
    own, shipped = (
        (folder / "tokenizer.json").read_text() for folder in (with_own_tokenizer, tmp_path / "further/out")
    )
    assert difference(shipped, own) is None
    (tmp_path / "v.txt").write_text("What is evaluated on. " * 99)
    (tmp_path / "a.txt").write_text("A text.")
    text = ["data.training=[a.txt]", "data.validation=[v.txt]", "data.sequence=16", "device=cpu", "omit=[]"]
    for model in (f"model={out}", f"checkpoint={tmp_path}/further"):
        result = run("evaluate", model, *text, f"output={len(model)}")
        assert result.status == 0, result.err


def test_another_tokenizer_is_refused(
    with_own_tokenizer: Path, trained: Trained, refused: Callable[..., str], run: Run, tmp_path: Path
) -> None:
    """By merges alone: named, trained anew, or that of a prepared text; by training and evaluation alike."""
    shipped = str(resources.files("skippipe.data") / "tokenizer.json")
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("A text of some words.\n" * 200)
    texts = ["data.training=[a.txt]", "data.validation=[b.txt]"]
    assert run("data", "prepare", *texts, "output=prepared").status == 0
    train = ["train", "--dry-run", "model=pretrained", "model.folder=own", "data.sequence=32", "planner.work_limit=50"]
    model, checkpoint = ["evaluate", "model=own", "output=o"], ["evaluate", f"checkpoint={trained[0]}", "output=o"]
    prepared = [*train, "data.prepared=prepared"], [*model, "data.prepared=prepared"]
    for command in prepared:
        assert "prepared: not the tokenizer of" in (said := refused(*command))
        assert "own: merges differ; expected the model's own tokenizer" in said
    for command in ([*train, *texts], [*model, *texts]):
        assert "own: merges differ" in refused(*command, f"data.tokenizer={shipped}")
        assert "own has its own tokenizer, got 300" in refused(*command, "data.vocabulary=300")
    assert "merges differ" in refused(*checkpoint, *texts, "data.tokenizer=own")
    assert run(*train[:-1], *texts, "planner.work_limit=50", "data.tokenizer=own/tokenizer.json").status == 0
    (tmp_path / "own" / "tokenizer.json").unlink()
    for command in ([*train, *texts], [*model, *texts]):
        assert "which comes without one, got null" in refused(*command)
    assert run(*train, "data.prepared=prepared").status == 0


def test_a_run_whose_text_has_changed(trained: Trained, run: Run, tmp_path: Path) -> None:
    """What `corpus.json` says is held against the tokens, so the position of a checkpoint is one in the same text."""
    (tmp_path / "a.txt").write_text("A text of some words.\n" * 2000)
    (tmp_path / "b.txt").write_text("Another one of other words.\n" * 200)
    texts = ["data.training=[a.txt]", "data.validation=[b.txt]"]
    assert run("data", "prepare", *texts, "output=prepared").status == 0
    folder = tmp_path / "run"
    folder.mkdir()

    def job(iterations: int, prepared: str = "prepared") -> TrainJob:
        changes = {"folder": str(folder), "train__iterations": iterations}
        return make_job(data__prepared=str(tmp_path / prepared), **changes)

    train_alone(job(1), folder)
    tokens = tmp_path / "prepared" / "training.tokens"
    before = tokens.read_bytes()
    tokens.write_bytes(before[:500] + bytes([before[500] ^ 1]) + before[501:])
    with pytest.raises(InputError, match=r"training.tokens: changed since it was prepared"):
        train_alone(job(2), folder)
    dry_run = ["train", "--dry-run", "data.prepared=prepared", "data.sequence=32", "planner.work_limit=50"]
    assert "changed since it was prepared (bytes 0 to" in run(*dry_run).err
    assert "changed since it was prepared (bytes 0 to" in run("data", "prepare", *texts, "output=prepared").err
    tokens.write_bytes(before)
    (tmp_path / "a.txt").write_text("A text of some other words.\n" * 2000)
    assert run("data", "prepare", *texts, "output=other").status == 0
    with pytest.raises(InputError, match=r"iteration-000001: checkpoint of another text"):
        train_alone(job(2, "other"), folder)
    train_alone(job(2), folder)


def test_a_token_beyond_the_vocabulary_is_never_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no sample has met it."""
    with corpus_folder(make_job().data) as folder:
        shutil.copytree(folder, tmp_path / "text")
    path = tmp_path / "text" / "training.tokens"
    np.full(path.stat().st_size // 2, 1024, "<u2").tofile(path)
    monkeypatch.setattr(Corpus, "verify", lambda corpus, whole: None)
    job = make_job(data__prepared=str(tmp_path / "text"), folder=str(tmp_path))
    with pytest.raises(InputError, match=r"training.tokens: expected tokens below 1024, got 1024"):
        train_alone(job, tmp_path)


def test_what_is_refused(trained: Trained, refused: Callable[..., str], run: Run, tmp_path: Path) -> None:
    folder, _ = trained
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert "copy with files in it" in refused("export", f"checkpoint={folder}", "output=copy")
    assert "checkpoint: expected checkpoint=..., got nothing" in refused("export", "output=new")
    assert "no such folder: nowhere" in refused("export", "checkpoint=nowhere", "output=new")
    assert "dtype" in refused("export", f"checkpoint={folder}", "output=new", "dtype=int8")
    other = tmp_path / "other.key"
    other.write_text("0" * 64)
    other.chmod(0o600)
    assert "signature" in refused("export", f"checkpoint={folder}", "output=new", f"key={other}")
    older, newest = sorted(copy.rglob("*.safetensors"), key=str)
    newest.write_bytes(newest.read_bytes()[:-1])
    exported = run("export", "checkpoint=copy", "output=older")
    assert exported.status == 0
    assert "iteration 0: " in exported.out
    assert f"skippipe export: skipped: {newest.relative_to(tmp_path)}" in exported.err
    older.write_bytes(older.read_bytes()[:-1])
    assert newest.name in refused("export", "checkpoint=copy", "output=new")
    assert "model.folder: expected model.folder=..., got nothing" in refused("train", "--dry-run", "model=pretrained")
    assert "model.folder: expected a folder with config.json, got copy" in refused(
        "train", "--dry-run", "model=pretrained", "model.folder=copy"
    )
