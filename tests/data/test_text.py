"""Texts: the one that ships, one's own, and what cannot be used."""

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from skippipe.data.config import DataConfig
from skippipe.data.text import load_training, load_validation, vocabulary
from skippipe.errors import InputError

Write = Callable[[str, Any], Path]


def tokenizer() -> Tokenizer:
    return Tokenizer.from_str((resources.files("skippipe.data") / "tokenizer.json").read_text(encoding="utf-8"))


def test_the_text_that_ships() -> None:
    folder = Path(str(resources.files("skippipe.data") / "text"))
    files = {part: sorted((folder / part).glob("*.txt")) for part in ("training", "validation")}
    assert sum(file.stat().st_size for part in files.values() for file in part) < 1_000_000
    assert not {file.name for file in files["training"]} & {file.name for file in files["validation"]}
    training, validation = load_training(DataConfig()), load_validation(DataConfig())
    assert training.tokens.size > 200_000
    assert len(validation) == 128
    assert vocabulary(DataConfig()) == 1024
    assert 0 <= training.tokens.min() <= training.tokens.max() < 1024
    first = files["validation"][0].read_text(encoding="utf-8")
    assert first.startswith(tokenizer().decode(validation.tokens[0].tolist()))


def test_nothing_is_written_beside_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = Path.home() / ".cache" / "huggingface" / "datasets"
    before = sorted(home.rglob("*")) if home.exists() else []
    load_validation(DataConfig())
    assert list(tmp_path.iterdir()) == []
    assert (sorted(home.rglob("*")) if home.exists() else []) == before


@pytest.mark.parametrize("name", ["mine.txt", "mine.jsonl", "mine.json"])
def test_ones_own_files(name: str, write: Write) -> None:
    text = "Peace is the work of many hands.\nSo is war.\n" * 20
    content = text if name.endswith("txt") else json.dumps({"body": text}) + "\n"
    path = write(name, content)
    blocks = load_training(DataConfig(training=[str(path)], field="body", sequence=16))
    expected = [*tokenizer().encode(text).ids, 0]
    assert blocks.tokens.reshape(-1).tolist() == expected[: blocks.tokens.size]
    assert blocks.tokens.size > len(expected) - 17


def test_patterns_name_files_in_order(write: Write, tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        write(name, f"{name} says so. " * 10)
    blocks = load_training(DataConfig(training=[str(tmp_path / "*.txt")], sequence=8))
    assert tokenizer().decode(blocks.tokens[0].tolist()).startswith("a.txt says")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"training": ["missing.txt"]}, r"data.training\[0\] is missing.txt: there is no such file"),
    "folder": ({"training": ["folder"]}, r"data.training\[0\] is folder: folder is no file"),
    "pattern": ({"training": ["a.txt", "none/*.txt"]}, r"data.training\[1\] is none/\*.txt: there is no such file"),
    "ending": ({"training": ["a.csv"]}, r"a.csv ends in none of .txt, .json, .jsonl"),
    "none": ({"training": []}, "data.training is empty"),
    "empty": ({"training": ["empty.txt"]}, "data.training: empty.txt .* no text|data.training: .*empty"),
    "short": ({"training": ["a.txt"]}, r"data.training holds \d+ tokens, at least 129 \(data.sequence \+ 1\)"),
    "broken": ({"training": ["broken.jsonl"]}, "data.training: .*broken.jsonl"),
    "field": ({"training": ["good.jsonl"], "field": "body"}, r"good.jsonl has no field 'body' \(data.field\)"),
    "binary": ({"training": ["binary.txt"]}, "data.training: .*binary.txt"),
    "tokenizer": ({"tokenizer": "missing.json"}, "data.tokenizer is missing.json: there is no such file"),
    "no tokenizer": ({"tokenizer": "good.jsonl"}, "data.tokenizer is good.jsonl, a tokenizer.json is expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, content in {
        "a.txt": b"A short text.",
        "a.csv": b"a,b",
        "empty.txt": b"",
        "broken.jsonl": b'{"text": "a"}\n{"text": ',
        "good.jsonl": b'{"text": "a"}\n',
        "binary.txt": bytes(range(128, 256)) * 10,
    }.items():
        (tmp_path / name).write_bytes(content)
    settings, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        load_training(DataConfig(**settings))
