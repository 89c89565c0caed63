"""Input files of a corpus: patterns, formats, validation split, refusals."""

import glob
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skippipe.application.arguments import with_names_quoted
from skippipe.cli import main
from skippipe.data.config import DataConfig
from skippipe.data.corpus import Split
from skippipe.data.inputs import InputFile, falls_to_validation, find_files, matching, split_by_name
from skippipe.data.prepare import check_input, corpus_folder, prepare
from skippipe.errors import InputError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of many kinds."""
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
    return [file.name for file in find_files(config)[split]]


def test_patterns_give_sorted_unique_files(files: Path) -> None:
    config = DataConfig(training=["b.txt", "[ab].txt", "**/*.txt"], validation=["good.jsonl"])
    assert names(config) == ["b.txt", "a.txt", "binary.txt", "empty.txt", "folder/deep/c.txt"]


def test_validation_files_are_never_trained_on(files: Path) -> None:
    (files / "link.txt").symlink_to(files / "b.txt")
    config = DataConfig(training=["*.txt"], validation=[str(files / "b.txt")])
    assert names(config) == ["a.txt", "binary.txt", "empty.txt"]
    assert names(config, "validation") == [str(files / "b.txt")]
    with pytest.raises(InputError, match=r"data.training: expected at least one file that is not in data.validation"):
        find_files(DataConfig(training=["b.txt", "link.txt"], validation=["b.txt"]))


def test_an_existing_path_is_that_file(files: Path) -> None:
    odd = ["[1].txt", "*.txt", "a?.txt", "a,b.txt", "{x}.txt", "a b$.txt", "**", "café.txt", "a\udcff.txt"]
    for name in odd:
        (files / name).write_text(name.encode(errors="backslashreplace").decode())
    (files / "folder" / "[1]").mkdir()
    (files / "folder" / "[1]" / "x.txt").touch()
    for name in odd:
        assert names(DataConfig(training=[name], validation=["b.txt"], format="text")) == [name]
    assert names(DataConfig(training=["folder/[1]/*.txt"], validation=["b.txt"])) == ["folder/[1]/x.txt"]
    assert names(DataConfig(training=["[a]?.txt"], validation=["b.txt"])) == ["a?.txt", "a\udcff.txt"]


def test_cyclic_links(files: Path) -> None:
    for folder in ("", "folder", "folder/deep"):
        for i in range(6):
            (files / folder / f"circle{i}").symlink_to(files / ("folder" if i % 2 else ""))
    (files / "loop").symlink_to("loop")
    (files / ".hidden").mkdir()
    (files / ".hidden" / "h.txt").touch()
    (files / "linked.txt").symlink_to("folder/deep/c.txt")
    for pattern in ("**/*.txt", "**", "**/deep/**/*.txt", f"{files}/**/c.txt", "circle0/**/*.txt"):
        found = {Path(name).resolve().relative_to(files).as_posix() for name in matching(pattern)}
        assert "folder/deep/c.txt" in found
        assert not any("hidden" in name for name in found)
        expected = {"a.txt", "b.txt", "binary.txt", "empty.txt", "folder/deep/c.txt"}
        if pattern in ("**/*.txt", "circle0/**/*.txt"):
            assert found == expected


@pytest.mark.parametrize(
    "pattern", ["**/*.txt", "**", "folder/**", "**/deep/*", "*/*/*.txt", "./**/[ab].txt", "**/**/c*"]
)
def test_patterns_match_like_glob(pattern: str, files: Path) -> None:
    there = sorted(name for name in set(glob.glob(pattern, recursive=True)) if Path(name).is_file())  # noqa: PTH207
    assert matching(pattern) == there != []


@settings(derandomize=True, database=None, deadline=None)
@given(st.sets(st.integers(0, 10_000), min_size=150, max_size=300), st.integers(1, 149))
def test_adding_files_moves_none(numbers: set[int], kept: int) -> None:
    numbers |= set(range(100))  # some of which fall to either split
    files = [InputFile(f"in/{number}.txt", "text") for number in sorted(numbers)]
    training, validation = split_by_name(files)
    assert sorted(training + validation, key=files.index) == files
    assert 0 < len(validation) < len(files) / 5
    moved = [InputFile(file.name.replace("in/", "elsewhere/"), "text") for file in files[kept:] + validation]
    _, again = split_by_name([*moved, *files[:1]])
    expected = {Path(file.name).name for file in validation}
    assert {Path(file.name).name for file in again} - {Path(files[0].name).name} <= expected
    assert expected <= {Path(file.name).name for file in again}


def test_default_split_needs_enough_files(files: Path) -> None:
    for training in (["a.txt"], ["a.txt", "b.txt"]):
        with pytest.raises(
            InputError, match=rf"data.validation: expected \[FILE,...\], got null; .* none of {len(training)}"
        ):
            find_files(DataConfig(training=training))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"training": ["missing.txt"]}, r"data.training\[0\]: no such file: missing.txt$"),
    "fetch": (
        {"training": ["c/*"], "fetch": "do it"},
        r"data.training\[0\]: no such file: c/\*; fetch it with `do it`",
    ),
    "folder": ({"training": ["folder"]}, r"data.training\[0\]: expected a file, got folder$"),
    "pattern": ({"training": ["a.txt", "none/*.txt"]}, r"data.training\[1\]: no such file: none/\*.txt"),
    "validation": ({"validation": ["none"]}, r"data.validation\[0\]: no such file: none"),
    "ending": (
        {"training": ["a.csv"]},
        "expected a suffix of .txt, .json, .jsonl, .parquet, .* or data.format, got a.csv",
    ),
    "packed parquet": ({"training": ["archive.parquet.gz"]}, "expected a suffix of .*, got archive.parquet.gz"),
    "none": ({"training": []}, r"data.training: expected at least one file, got \[\]"),
    "tokenizer": ({"tokenizer": "missing.json"}, "data.tokenizer: no such file: missing.json"),
    "two tokenizers": (
        {"tokenizer": "a.json", "vocabulary": 300},
        "expected data.tokenizer or data.vocabulary, got both",
    ),
    "prepared": ({"prepared": "folder"}, "folder: expected a folder completed by .*, got one without corpus.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_once(case: str, files: Path) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        check_input(DataConfig(**{"validation": ["b.txt"], **settings} if case != "prepared" else settings))
    assert caught.value.key or caught.value.file


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"training": ["empty.txt"]}, "data.training: empty.txt contains no text"),
    "broken": (
        {"training": ["good.jsonl", "broken.jsonl"]},
        "data.training: broken.jsonl:2:10: invalid JSON: Expecting value",
    ),
    "field": (
        {"training": ["good.jsonl"], "field": "body"},
        r"data.training: good.jsonl: data.field: expected one of \['text'\], got body",
    ),
    "numbers": (
        {"training": ["numbers.jsonl"]},
        "numbers.jsonl:1: text: expected a string, got a number; data.field",
    ),
    "binary": (
        {"training": ["a.txt", "binary.txt", "empty.txt"]},
        "data.training: binary.txt: expected UTF-8 text, got byte 0x80 at 0",
    ),
    "no gzip": ({"training": ["packed.txt.gz"], "format": "text"}, "data.training: packed.txt.gz: cannot be read"),
    "parquet": ({"training": ["broken.parquet"]}, "data.training: .*broken.parquet"),
    "not text": (
        {"training": ["binary.txt"], "format": "json"},
        "data.training: binary.txt:1: expected UTF-8 text, got byte 0x80",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable(case: str, files: Path) -> None:
    settings, message = UNREADABLE[case]
    if settings.get("format") == "json":
        (files / "b.txt").write_text('{"text": "b"}\n')
    with pytest.raises(InputError, match=message):
        prepare(DataConfig(**settings, validation=["b.txt"]), files / "out")
    assert not (files / "out" / "corpus.json").exists()


def test_names_that_the_output_cannot_encode(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that are not UTF-8, and non-ASCII letters: recorded unchanged, shown escaped."""
    odd = ["caf\xe9.txt", "a\udcff\udce9.txt"]
    for name in odd:
        (tmp_path / name).write_text("A text.\n" * 9)
    arguments = [f"data.training=[{odd[0]}]", f"data.validation=[{odd[1]}]", "output=out\udcfe"]
    assert run("data", "prepare", *arguments).status == 0
    recorded = json.loads((tmp_path / "out\udcfe" / "corpus.json").read_text())
    assert [recorded[split]["files"][0]["name"] for split in ("training", "validation")] == odd
    for encoding in ("ascii", "utf-8"):
        raw = {name: io.BytesIO() for name in ("stdout", "stderr")}
        with monkeypatch.context() as patch:
            streams = [io.TextIOWrapper(stream, encoding=encoding, errors="strict") for stream in raw.values()]
            for name, stream in zip(raw, streams, strict=True):
                patch.setattr(sys, name, stream)
            assert main(["data", "prepare", *arguments]) == 0
            assert main(["data", "prepare", "data.training=[none\udcff\xe9]", "output=o"]) == 2
            for stream in streams:
                stream.flush()
        shown = {name: stream.getvalue().decode(encoding) for name, stream in raw.items()}
        assert "validation files: a\\udcff\\udce9.txt\n" in shown["stdout"]
        assert "out\\udcfe is already complete" in shown["stdout"]
        letter = "\\xe9" if encoding == "ascii" else "\xe9"
        assert shown["stderr"] == (f"skippipe data prepare: data.training[0]: no such file: none\\udcff{letter}\n")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("data.training=[\xfc.txt,b.txt]", 'data.training=["\xfc.txt",b.txt]'),
        ("data.training=[ a \xfc, 'b,\xe9', \"\udcff\"]", 'data.training=[ "a \xfc", \'b,\xe9\', "\udcff"]'),
        ("x={a: \xe9}", 'x={a: "\xe9"}'),
        ("x=a/b.txt", "x=a/b.txt"),
        ("--config-dir=\xe9", "--config-dir=\xe9"),
    ],
)
def test_non_ascii_letters_are_quoted(argument: str, expected: str) -> None:
    assert with_names_quoted(argument) == expected


def test_an_unusual_validation_share_is_reported(run: Callable[..., Any], tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(100)]
    held_out = next(name for name in names if falls_to_validation(name))
    trained_on = next(name for name in names if not falls_to_validation(name))
    training = [f"data.training=[{held_out},{trained_on}]"]
    for name in (held_out, trained_on):
        (tmp_path / name).write_text("A text of some words.\n" * 300)
    half = (
        "warning: data.validation is null: by a hash of their names, 1 of 2 files are the validation split, 50.0% of "
        "all tokens (usually 5%); choose files with data.validation=[FILE,...]\n"
    )
    for _ in range(2):
        result = run("data", "prepare", *training, "output=out")
        assert (result.status, result.err) == (0, f"skippipe data prepare: {half}")
    (tmp_path / trained_on).write_text("A text of some words.\n" * 300 * 19)
    assert run("data", "prepare", *training, "output=usual").err == ""
    (tmp_path / held_out).write_text("A text.\n")
    assert "are the validation split, 0.0% of all tokens" in run("data", "prepare", *training, "output=little").err
    assert run("data", "prepare", *training, f"data.validation=[{held_out}]", "output=named").err == ""
    dry_run = ["train", "--dry-run", *training, "data.sequence=16", "planner.work_limit=50"]
    (tmp_path / held_out).write_text("A text of some words.\n" * 300 * 19)
    assert run(*dry_run).err == f"skippipe: {half}"
    warnings: list[str] = []
    with corpus_folder(DataConfig(training=[held_out, trained_on]), warn=warnings.append):
        pass
    assert len(warnings) == 1
    with (
        corpus_folder(DataConfig(prepared="little"), warn=warnings.append),
        corpus_folder(DataConfig(), warn=warnings.append),
    ):
        pass
    assert len(warnings) == 1


def test_names_with_control_characters_are_shown_escaped(run: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("a\x1b[31m.txt", "b\nc.txt"):
        (tmp_path / name).write_text("Some words.\n")
    result = run("data", "prepare", 'data.training=["a*.txt"]', 'data.validation=["b*.txt"]', "output=out")
    assert result.status == 0
    assert ", of a\\x1b[31m.txt\n" in result.out
    assert "validation files: b\\nc.txt\n" in result.out
