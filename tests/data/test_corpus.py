"""Opening a prepared corpus."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skippipe.data.config import DataConfig
from skippipe.data.corpus import hashes_of, open_corpus
from skippipe.data.prepare import prepare
from skippipe.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("Peace is the work of many hands.\n" * 20)
    (tmp_path / "b.txt").write_text("So is war.")
    prepare(DataConfig(training=[str(tmp_path / "a.txt")], validation=[str(tmp_path / "b.txt")]), tmp_path / "out")
    return tmp_path / "out"


def test_blocks_are_memory_mapped(folder: Path) -> None:
    corpus = open_corpus(folder)
    stream = np.fromfile(folder / "training.tokens", dtype="<u2")
    for sequence in (1, 7, 50):
        blocks = corpus.training(sequence)
        assert blocks.tokens.tolist() == stream[: blocks.tokens.size].reshape(-1, sequence + 1).tolist()
        assert stream.size - blocks.tokens.size < sequence + 1
        base: Any = blocks.tokens
        while not isinstance(base, np.memmap):
            base = base.base
            assert base is not None
    assert len(corpus.validation(1, 2)) == 2
    assert stream[-1] == corpus.end_of_text
    assert json.loads(corpus.tokenizer_json)["model"]["type"] == "BPE"


def test_hash_covers_everything_read(folder: Path) -> None:
    before = open_corpus(folder).sha256
    content = json.loads((folder / "corpus.json").read_text())
    for change in ("training", "validation"):
        changed = json.loads(json.dumps(content))
        changed[change]["sha256"] = "0" * 64
        (folder / "corpus.json").write_text(json.dumps(changed))
        assert open_corpus(folder).sha256 != before
    content["training"]["files"][0]["name"] = "elsewhere.txt"
    (folder / "corpus.json").write_text(json.dumps(content))
    assert open_corpus(folder).sha256 == before


def test_a_corpus_shorter_than_a_block(folder: Path) -> None:
    corpus = open_corpus(folder)
    tokens = corpus.splits["validation"].tokens
    assert len(corpus.validation(tokens - 1, 9)) == 1
    with pytest.raises(
        InputError,
        match=rf"data.validation: expected at least {tokens + 1} tokens \(data.sequence \+ 1\), got {tokens}",
    ):
        corpus.validation(tokens, 9)
    with pytest.raises(InputError, match=r"data.training: expected at least 5001 tokens .*, got \d+"):
        corpus.training(5000)


def _set(*keys: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "corpus.json").read_text())
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        if value is None:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        (folder / "corpus.json").write_text(json.dumps(content))

    return change


def _append(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(b"\0")

    return change


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "unfinished": (
        lambda folder: (folder / "corpus.json").unlink(),
        "expected a folder completed by `skippipe data prepare`, got one without",
    ),
    "version": (
        _set("format", value="skippipe.data/9"),
        r"corpus.json: format: expected skippipe.data/2, got skippipe.data/9",
    ),
    "no format": (_set("format", value=None), r"corpus.json: format: expected skippipe.data/2, got null"),
    "no tokenizer": (_set("tokenizer", value=None), "not written by .*: 'tokenizer' is missing"),
    "tokens": (_set("training", "tokens", value="many"), "tokens: expected an integer of at least 0, got 'many'"),
    "dtype": (_set("dtype", value="int8"), "dtype: expected one of uint16, uint32, got int8"),
    "fewer tokens": (
        _set("training", "tokens", value=3),
        r"training.tokens: expected 6 bytes \(corpus.json\), got \d+",
    ),
    "longer file": (_append("validation.tokens"), r"validation.tokens: expected \d+ bytes \(corpus.json\), got \d+"),
    "no file": (lambda folder: (folder / "training.tokens").unlink(), "training.tokens: cannot be read: No such file"),
    "no tokenizer.json": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "no JSON": (lambda folder: (folder / "corpus.json").write_text("{"), "corpus.json:1:2: invalid JSON"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, folder: Path) -> None:
    change, message = REFUSED[case]
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        open_corpus(folder)
    assert str(caught.value.file).startswith(str(folder))


def test_a_changed_tokenizer(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    merges = content["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tokenizer.json: changed since it was prepared"):
        open_corpus(folder)


def spoil(path: Path, offset: int) -> bytes:
    """Change one byte of a file; returns the old content."""
    content = path.read_bytes()
    path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
    return content


@pytest.mark.parametrize("split", ["training", "validation"])
def test_any_changed_token_is_detected(split: str, folder: Path) -> None:
    """A file of one chunk is always verified completely."""
    corpus, path = open_corpus(folder), folder / f"{split}.tokens"
    corpus.verify(whole=False)
    for offset in (0, path.stat().st_size // 2, path.stat().st_size - 1):
        before = spoil(path, offset)
        for whole in (True, False):
            with pytest.raises(InputError, match=rf"{split}.tokens: changed since it was prepared"):
                open_corpus(folder).verify(whole=whole)
        path.write_bytes(before)
    corpus.verify(whole=True)


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skippipe.data.corpus.CHUNK_BYTES", 10)
    monkeypatch.setattr("skippipe.data.corpus.SAMPLED_CHUNKS", 4)
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("Peace is the work of many hands.\n" * (40 if name == "a" else 1))
    config = DataConfig(training=[str(tmp_path / "a.txt")], validation=[str(tmp_path / "b.txt")])
    prepare(config, tmp_path / "out")
    corpus, path = open_corpus(tmp_path / "out"), tmp_path / "out" / "training.tokens"
    chunks = len(corpus.splits["training"].chunks)
    assert chunks == -(-path.stat().st_size // 10) > 30
    found = {True: 0, False: 0}
    for offset in range(0, path.stat().st_size, 10):
        before = spoil(path, offset)
        for whole in found:
            said = refusal(lambda whole=whole: corpus.verify(whole=whole))  # type: ignore[misc]
            found[whole] += bool(said)
            last = min(offset + 9, path.stat().st_size - 1)
            assert f"(bytes {offset:,} to {last:,})" in said or 0 < offset < (chunks - 1) * 10
        path.write_bytes(before)
    assert found[True] == chunks
    assert 2 <= found[False] < chunks / 2


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except InputError as error:
        return str(error)
    return ""


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "corpus.json").read_text())
    change(content)
    (folder / "corpus.json").write_text(json.dumps(content))


def test_tokens_outside_the_vocabulary(folder: Path) -> None:
    """Even with correct hashes, as of a corpus written by another program."""
    tokens = np.fromfile(folder / "validation.tokens", dtype="<u2")
    tokens[1] = 1024
    tokens.tofile(folder / "validation.tokens")
    sha256, chunks = hashes_of(folder / "validation.tokens")
    rewrite(folder, lambda content: content["validation"].update(sha256=sha256, chunks=chunks))
    with pytest.raises(InputError, match=r"validation.tokens: expected tokens below 1024, got 1024; prepare it again"):
        open_corpus(folder).verify(whole=False)
    rewrite(folder, lambda content: content["training"].update(chunks=[]))
    with pytest.raises(InputError, match=r"corpus.json: training.chunks: expected 1 hashes, got 0"):
        open_corpus(folder).verify(whole=False)


def test_file_hash_mismatch(folder: Path) -> None:
    """The data position depends on it."""
    rewrite(folder, lambda content: content["training"].update(sha256="0" * 64))
    with pytest.raises(InputError, match=r"training.tokens: .* \(sha256 mismatch\)"):
        open_corpus(folder).verify(whole=False)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="none: expected a folder written by `skippipe data prepare`, got no such folder"
    ):
        open_corpus(tmp_path / "none")
