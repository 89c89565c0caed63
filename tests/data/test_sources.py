"""Which files a text is made of: patterns, formats, the share that is validated on, and what cannot be used."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skippipe.data.config import DataConfig
from skippipe.data.corpus import Split
from skippipe.data.prepare import check_input, prepare
from skippipe.data.sources import Source, find_files, share_by_name
from skippipe.errors import InputError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with files of many kinds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for name, content in {
        "a.txt": b"A short text.",
        "b.txt": b"Another.",
        "a.csv": b"a,b",
        "empty.txt": b"",
        "folder/deep/c.txt": b"Deep.",
        "broken.jsonl": b'{"text": "a"}\n{"text": ',
        "good.jsonl": b'{"text": "a"}\n',
        "numbers.jsonl": b'{"text": 1}\n',
        "binary.txt": bytes(range(128, 256)) * 10,
        "packed.txt.gz": b"no gzip",
        "broken.parquet": b"PAR1",
        "archive.parquet.gz": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def names(config: DataConfig, split: Split = "training") -> list[str]:
    return [source.name for source in find_files(config)[split]]


def test_patterns_name_files_in_order_each_once(files: Path) -> None:
    config = DataConfig(training=["b.txt", "[ab].txt", "**/*.txt"], validation=["good.jsonl"])
    assert names(config) == ["b.txt", "a.txt", "binary.txt", "empty.txt", "folder/deep/c.txt"]


def test_what_is_validated_on_is_never_trained_on(files: Path) -> None:
    (files / "link.txt").symlink_to(files / "b.txt")
    config = DataConfig(training=["*.txt"], validation=[str(files / "b.txt")])
    assert names(config) == ["a.txt", "binary.txt", "empty.txt"]
    assert names(config, "validation") == [str(files / "b.txt")]
    with pytest.raises(InputError, match=r"data.training names no file that is not one of data.validation"):
        find_files(DataConfig(training=["b.txt", "link.txt"], validation=["b.txt"]))


@settings(derandomize=True, database=None, deadline=None)
@given(st.sets(st.integers(0, 10_000), min_size=150, max_size=300), st.integers(1, 149))
def test_more_files_move_none(numbers: set[int], kept: int) -> None:
    sources = [Source(f"in/{number}.txt", "text") for number in sorted(numbers)]
    training, validation = share_by_name(sources)
    assert sorted(training + validation, key=sources.index) == sources
    assert 0 < len(validation) < len(sources) / 5
    moved = [Source(source.name.replace("in/", "elsewhere/"), "text") for source in sources[kept:] + validation]
    _, again = share_by_name([*moved, *sources[:1]])
    expected = {Path(source.name).name for source in validation}
    assert {Path(source.name).name for source in again} - {Path(sources[0].name).name} <= expected
    assert expected <= {Path(source.name).name for source in again}


def test_a_share_needs_files(files: Path) -> None:
    for training in (["a.txt"], ["a.txt", "b.txt"]):
        with pytest.raises(
            InputError, match=rf"none of the {len(training)} is: data.validation=\[FILE,...\] is expected"
        ):
            find_files(DataConfig(training=training))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"training": ["missing.txt"]}, r"data.training\[0\] is missing.txt: there is no such file$"),
    "fetch": (
        {"training": ["c/*"], "fetch": "do it"},
        r"data.training\[0\] is c/\*: there is no such file; `do it` brings",
    ),
    "folder": ({"training": ["folder"]}, r"data.training\[0\] is folder: folder is no file"),
    "pattern": ({"training": ["a.txt", "none/*.txt"]}, r"data.training\[1\] is none/\*.txt: there is no such file"),
    "validation": ({"validation": ["none"]}, r"data.validation\[0\] is none: there is no such file"),
    "ending": ({"training": ["a.csv"]}, r"a.csv ends in none of .txt, .json, .jsonl, .parquet, .*data.format says"),
    "packed parquet": ({"training": ["archive.parquet.gz"]}, r"archive.parquet.gz ends in none of"),
    "none": ({"training": []}, "data.training is empty"),
    "tokenizer": ({"tokenizer": "missing.json"}, "data.tokenizer is missing.json: there is no such file"),
    "two tokenizers": ({"tokenizer": "a.json", "vocabulary": 300}, "data.tokenizer and data.vocabulary are both set"),
    "prepared": ({"prepared": "folder"}, "folder: holds no corpus.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_once(case: str, files: Path) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        check_input(DataConfig(**{"validation": ["b.txt"], **settings} if case != "prepared" else settings))


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"training": ["empty.txt"]}, "data.training: empty.txt and 0 more hold no text"),
    "broken": (
        {"training": ["good.jsonl", "broken.jsonl"]},
        "data.training: broken.jsonl: cannot be read: line 2: Expecting value",
    ),
    "field": (
        {"training": ["good.jsonl"], "field": "body"},
        r"data.training: good.jsonl: has no field 'body' \(data.field\), it has \['text'\]",
    ),
    "numbers": (
        {"training": ["numbers.jsonl"]},
        r"numbers.jsonl: line 1: field 'text' \(data.field\): expected a string, got a number",
    ),
    "binary": (
        {"training": ["a.txt", "binary.txt", "empty.txt"]},
        "data.training: binary.txt: cannot be read: .*utf-8",
    ),
    "no gzip": ({"training": ["packed.txt.gz"], "format": "text"}, "data.training: packed.txt.gz: cannot be read"),
    "parquet": ({"training": ["broken.parquet"]}, "data.training: .*broken.parquet"),
    "not text": ({"training": ["binary.txt"], "format": "json"}, "data.training: binary.txt: cannot be read"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable(case: str, files: Path) -> None:
    settings, message = UNREADABLE[case]
    if settings.get("format") == "json":
        (files / "b.txt").write_text('{"text": "b"}\n')
    with pytest.raises(InputError, match=message):
        prepare(DataConfig(**settings, validation=["b.txt"]), files / "out")
    assert not (files / "out" / "corpus.json").exists()
