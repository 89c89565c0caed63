"""From a training to a folder for others and back: `skippipe export`, and `model=pretrained`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Run
from model.folders import change_weights, read_whole
from model.small import logits_of
from tokenizers import Tokenizer
from train.alone import of_kind, train_alone
from train.jobs import make_job

from skippipe.checkpoint import open_checkpoint
from skippipe.model.build import build_part, model_config, stage_layers
from skippipe.train.events import Event

Trained = tuple[Path, list[Event]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run's folder with a checkpoint, and what the run has told."""
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
        build_part(config, stage=stage, layers=layers, first=stage == 0, seed=7)
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
        assert torch.equal(read_whole(tmp_path / "out")(given).logits, logits_of(parts, given))


def test_a_training_goes_on_from_what_was_exported(trained: Trained, run: Run, tmp_path: Path) -> None:
    folder, told = trained
    for dtype in ("float32", "bfloat16"):
        assert run("export", f"checkpoint={folder}", f"output={dtype}", f"dtype={dtype}").status == 0
    before = [event["loss"] for event in of_kind(told, "validation")]
    after = {}
    for dtype in ("float32", "bfloat16"):
        further = tmp_path / f"further-{dtype}"
        further.mkdir()
        job = make_job(model={"folder": str(tmp_path / dtype)}, folder=str(further), train__iterations=1)
        after[dtype] = of_kind(train_alone(job, further), "validation")[0]["loss"]
    assert after["float32"] == before[-1]
    assert after["bfloat16"] == pytest.approx(before[-1], abs=0.02)
    assert after["bfloat16"] != before[-1]
    assert before[0] - before[-1] > 0.1, "it has learned, so that it is seen whether weights were taken over"


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


def test_what_is_refused(trained: Trained, refused: Callable[..., str], run: Run, tmp_path: Path) -> None:
    folder, _ = trained
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert "copy is a folder with files in it" in refused("export", f"checkpoint={folder}", "output=copy")
    assert "checkpoint is not set" in refused("export", "output=new")
    assert "nowhere: there is no such folder" in refused("export", "checkpoint=nowhere", "output=new")
    assert "dtype" in refused("export", f"checkpoint={folder}", "output=new", "dtype=int8")
    other = tmp_path / "other.key"
    other.write_text("0" * 64)
    other.chmod(0o600)
    assert "signature" in refused("export", f"checkpoint={folder}", "output=new", f"key={other}")
    older, newest = sorted(copy.rglob("*.safetensors"), key=str)
    newest.write_bytes(newest.read_bytes()[:-1])
    passed_over = run("export", "checkpoint=copy", "output=older")
    assert passed_over.status == 0
    assert "iteration 0: " in passed_over.out
    assert f"skippipe export: passed over: {newest.relative_to(tmp_path)}" in passed_over.err
    older.write_bytes(older.read_bytes()[:-1])
    assert newest.name in refused("export", "checkpoint=copy", "output=new")
    assert "model.folder is not set" in refused("train", "--dry-run", "model=pretrained")
    assert "model.folder is copy: there is no config.json" in refused(
        "train", "--dry-run", "model=pretrained", "model.folder=copy"
    )
