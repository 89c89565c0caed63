"""`skippipe data prepare` and `skippipe data fetch`: output, files and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skippipe.data.corpus import open_corpus

Run = Callable[..., Any]
Refused = Callable[..., str]


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    for name in ("a", "b", "v"):
        (tmp_path / f"{name}.txt").write_text(f"This is {name}.\nIt is short.\n" * 50)
    return ["data.training=[a.txt,b.txt]", "data.validation=[v.txt]"]


def test_prepare(texts: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")  # so that it is put back
    result = run("data", "prepare", *texts, "data.vocabulary=270", "output=out", "workers=1")
    assert (result.status, result.err) == (0, "")
    corpus = open_corpus(tmp_path / "out")
    training, validation, held_out, speed, following = result.out.splitlines()
    assert training.startswith(f"training: {corpus.splits['training'].tokens:,} tokens, 2 documents, ")
    assert validation.startswith(f"validation: {corpus.splits['validation'].tokens:,} tokens, 1 documents, ")
    assert held_out == "validation files: v.txt"
    assert speed.startswith("tokenised at ")
    assert following == f"next: skippipe train data.prepared=out model.vocab_size={corpus.vocabulary}"
    again = run("data", "prepare", *texts, "data.vocabulary=270", "output=out")
    assert again.status == 0
    assert again.out.splitlines()[0] == "out is already complete; nothing to do"
    other = run("data", "prepare", *texts, "data.vocabulary=280", "output=out")
    assert other.status == 2
    assert "out: prepared from other input: data.vocabulary was 270, is now 280" in other.err


def test_training_on_a_prepared_corpus(texts: list[str], run: Run, tmp_path: Path) -> None:
    assert run("data", "prepare", *texts, "output=out").status == 0
    tokens = open_corpus(tmp_path / "out").splits["training"].tokens
    dry = [
        "train",
        "--dry-run",
        "data.prepared=out",
        "data.sequence=16",
        "data.validation_blocks=8",
        "planner.work_limit=50",
    ]
    result = run(*dry)
    assert result.status == 0, result.err
    assert f"{tokens // 17 * 17:,}" in result.out
    assert "expected data.training or data.prepared, got both" in run(*dry, "data.training=[a.txt]").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["output=o", "data.training=[missing.txt]"], "data.training[0]: no such file: missing.txt"),
        (["output=o", "data.tokenizer=missing.json"], "data.tokenizer: no such file: missing.json"),
        (["output=o", "data.vocabulary=9"], "data.vocabulary: expected an integer of at least 257, got 9"),
        (["output=o", "data.format=csv"], "data.format: expected one of text, json, parquet, got csv"),
        (["output=o", "data.prepared=p"], "data.prepared: expected null, got p, which is already prepared"),
        (["output=o", "workers=0"], "workers: expected an integer of at least 1"),
        (["output=/proc/none/o"], "/proc/none/o: cannot be written"),
        (["output=o", "data=nothing"], "data: expected one of debian_docs, fiction, linux_source, "),
        (
            ["output=o", "data=sotu"],
            "; fetch it with `skippipe data fetch corpus=sotu folder=corpora`",
        ),
        ([], "output: expected output=..., got nothing"),
    ],
)
def test_prepare_refuses(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused("data", "prepare", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["corpus=tiny"],
            "corpus: expected one of sotu, fiction, debian_docs, rfc, linux_source, python_code, got tiny",
        ),
        ([], "corpus: expected corpus=..., got nothing"),
        (["corpus=python_code", "folder=/proc/none"], "cannot be written"),
    ],
)
def test_fetch_refuses(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused("data", "fetch", *arguments)


def test_fetch_of_an_existing_corpus(run: Run, tmp_path: Path) -> None:
    (tmp_path / "texts" / "sotu").mkdir(parents=True)
    result = run("data", "fetch", "corpus=sotu", "folder=texts")
    assert result.status == 0
    assert result.out.splitlines() == [
        "texts/sotu exists already; remove it to fetch it again",
        "next: skippipe data prepare data=sotu data.corpora=texts output=sotu",
    ]


def test_an_unknown_command(run: Run) -> None:
    assert "unknown command 'data make'; choose one of " in run("data", "make").err
    for command in ("prepare", "fetch"):
        assert "Keys" in run("data", command, "--help").out
