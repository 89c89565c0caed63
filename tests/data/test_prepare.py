"""Preparation gives the tokens of an independent implementation, also after any interruption."""

import dataclasses
import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data.texts import reference, shipped_tokenizer, write_documents
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from skippipe.data import prepare as preparing
from skippipe.data.config import DataConfig
from skippipe.data.corpus import open_corpus
from skippipe.data.prepare import PreparationProgress, Report, corpus_folder, prepare
from skippipe.data.progress import StorageError
from skippipe.errors import InputError

HELD_OUT = "What is held out.\n" * 20
TEXTS = st.lists(
    st.sampled_from(["\n", " ", "a", "The end.\n", "is it so?\n", "é…😀\n", "x" * 300, "12\r\n", "\n\n", "#\t"]),
    max_size=40,
).map("".join)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, batches and save intervals so small that even short texts have many."""
    for name, value in (("CHUNK_CHARACTERS", 50), ("BATCH_CHARACTERS", 100), ("SAVE_S", 0.0)):
        monkeypatch.setattr(preparing, name, value)


def tokens_of(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "training.tokens").read_bytes(), (folder / "validation.tokens").read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(
    derandomize=True, database=None, deadline=None, max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(documents=st.lists(TEXTS, min_size=1, max_size=5))
def test_equals_an_independent_reading(
    documents: list[str], small_steps: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    for i, text in enumerate(documents):
        write_documents(folder / f"{i}.txt", [text])
    write_documents(folder / "held-out.txt", [HELD_OUT])
    read = [(folder / f"{i}.txt").read_text(encoding="utf-8") for i in range(len(documents))]
    config = DataConfig(training=[str(folder / "*.txt")], validation=[str(folder / "held-out.txt")])
    if not any(documents):
        with pytest.raises(InputError, match=r"data.training: .*0.txt (contains|and \d more contain) no text"):
            prepare(config, folder / "out")
        return
    corpus = prepare(config, folder / "out")
    assert tokens_of(folder / "out") == (reference(read), reference([HELD_OUT]))
    part = corpus.splits["training"]
    assert part.documents == sum(map(bool, documents))
    assert part.bytes == len("".join(read).encode())
    assert [file["documents"] for file in part.files] == [int(bool(text)) for text in documents]
    assert sorted(contents(folder / "out")) == ["corpus.json", "tokenizer.json", "training.tokens", "validation.tokens"]


@pytest.mark.parametrize(
    "name", ["a.txt", "a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.xz", "a.parquet"]
)
def test_formats(name: str, small_steps: None, tmp_path: Path) -> None:
    text = "Peace is the work of many hands.\nSo is war.\n" * 20
    documents = [text] if ".txt" in name else [text, "", *(f"Number {i}.\n" * i for i in range(10))]
    write_documents(tmp_path / name, documents, "body")
    write_documents(tmp_path / "b.txt", [HELD_OUT])
    config = DataConfig(training=[str(tmp_path / name)], validation=[str(tmp_path / "b.txt")], field="body")
    prepare(config, tmp_path / "out")
    assert tokens_of(tmp_path / "out") == (reference(documents), reference([HELD_OUT]))


def test_mixed_formats_keep_the_order_of_the_files(tmp_path: Path) -> None:
    names = ["a.jsonl", "b.txt", "c[1].txt", "d.parquet", "e.txt", "f.jsonl"]
    for name in names:
        write_documents(tmp_path / name, [f"This is {name}."])
    config = DataConfig(training=[str(tmp_path / name).replace("[", "[[]") for name in names], validation=None)
    config.validation = [str(tmp_path / "e.txt")]
    prepare(config, tmp_path / "out")
    trained = reference([f"This is {name}." for name in names if name != "e.txt"])
    assert tokens_of(tmp_path / "out") == (trained, reference(["This is e.txt."]))


def test_format_setting(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("Read me.")
    (tmp_path / "NEWS").write_text("News.")
    prepare(
        DataConfig(training=[str(tmp_path / "README")], validation=[str(tmp_path / "NEWS")], format="text"),
        tmp_path / "out",
    )
    assert tokens_of(tmp_path / "out") == (reference(["Read me."]), reference(["News."]))


def test_large_files_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skippipe.data.text_files.READ_SIZE", 10)
    texts = ["A line that is longer than that.\n" * 50, "", "short", "Another.\n\n" * 5000]
    for i, text in enumerate(texts):
        write_documents(tmp_path / f"{i}.txt", [text])
    write_documents(tmp_path / "v.txt", [HELD_OUT])
    prepare(DataConfig(training=[str(tmp_path / "[0-9].txt")], validation=[str(tmp_path / "v.txt")]), tmp_path / "out")
    assert tokens_of(tmp_path / "out") == (reference(texts), reference([HELD_OUT]))


def test_a_folder_as_a_hub_dataset(tmp_path: Path) -> None:
    """`datasets` accepts a folder as a dataset; its shards are its files."""
    (tmp_path / "hub").mkdir()
    for split in ("train", "test"):
        for i in range(2):
            write_documents(
                tmp_path / "hub" / f"{split}-0000{i}-of-00002.parquet", [f"{split} {i} {j}" for j in range(3)]
            )
    config = DataConfig(hub=str(tmp_path / "hub"), training=["train"], validation=["test"])
    corpus = prepare(config, tmp_path / "out")
    texts = {split: [f"{split} {i} {j}" for i in range(2) for j in range(3)] for split in ("train", "test")}
    assert tokens_of(tmp_path / "out") == (reference(texts["train"]), reference(texts["test"]))
    assert [file["documents"] for file in corpus.splits["training"].files] == [3, 3]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"validation": None}, r"data.validation: expected the name of one split"),
        ({"validation": ["dev"]}, "data.validation: dev of .*hub cannot be read"),
        ({"hub": str(tmp_path / "none")}, "data.hub: .*none cannot be read"),
    ]
    for wrong, message in refused:
        with pytest.raises(InputError, match=message):
            prepare(dataclasses.replace(config, **wrong), tmp_path / "x")


@pytest.fixture
def corpus_of_files(tmp_path: Path) -> DataConfig:
    """Some documents of several kinds and sizes."""
    draw = random.Random(5)
    for i in range(4):
        lines = (
            " ".join(draw.choices(["peace", "war", "is", "1950"], k=8)) + "\n" for _ in range(draw.randrange(2, 15))
        )
        write_documents(tmp_path / f"{i}.txt", ["".join(lines)])
    write_documents(tmp_path / "empty.txt", [""])
    write_documents(tmp_path / "m.jsonl", [f"Message {i}.\nIt is short.\n" * i for i in range(8)])
    write_documents(tmp_path / "v.txt", [HELD_OUT])
    return DataConfig(
        training=[str(tmp_path / "*.txt"), str(tmp_path / "*.jsonl")],
        validation=[str(tmp_path / "v.txt")],
        vocabulary=280,
    )


class StoppedError(Exception):
    """Interrupts a preparation in these tests."""


def stop_after(calls: int, stages: tuple[str, ...] = ("tokenizer", "training", "validation")) -> Report:
    """Stop after that many progress reports of these stages."""
    left = iter(range(calls))

    def report(progress: PreparationProgress) -> None:
        if progress.stage in stages and next(left, None) is None:
            raise StoppedError

    return report


def test_resumes_from_any_interruption(small_steps: None, corpus_of_files: DataConfig, tmp_path: Path) -> None:
    prepare(corpus_of_files, tmp_path / "unbroken")
    expected = contents(tmp_path / "unbroken")
    finished = False
    for calls in range(1, 1000, 5):
        folder = tmp_path / f"stopped-{calls}"
        try:
            prepare(corpus_of_files, folder, stop_after(calls))
            finished = True
        except StoppedError:
            assert not (folder / "corpus.json").exists()
            for part in folder.glob("*.part"):  # what was written after the last save, complete or not
                with part.open("ab") as file:
                    file.write(b"\x01\x02\x03" * (calls % 3))
            prepare(corpus_of_files, folder)
        assert contents(folder) == expected
        if finished:
            break
    assert calls > 40
    tokenizer = Tokenizer.from_file(str(tmp_path / "unbroken" / "tokenizer.json"))
    texts = [path.read_text() for path in sorted(tmp_path.glob("[0-9].txt"))]
    texts += [f"Message {i}.\nIt is short.\n" * i for i in range(8)]
    assert expected["training.tokens"] == reference(texts, tokenizer)


def test_resumes_after_several_interruptions(small_steps: None, corpus_of_files: DataConfig, tmp_path: Path) -> None:
    prepare(corpus_of_files, tmp_path / "unbroken")
    stops = 0
    while True:
        try:
            prepare(corpus_of_files, tmp_path / "stopped", stop_after(4, ("training", "validation")))
            break
        except StoppedError:
            stops += 1
    assert stops > 2
    assert contents(tmp_path / "stopped") == contents(tmp_path / "unbroken")


KILLED = """
import os, sys
from pathlib import Path
from skippipe.data import prepare as preparing
from skippipe.data.config import DataConfig
preparing.CHUNK_CHARACTERS, preparing.BATCH_CHARACTERS, preparing.SAVE_S = 50, 100, 0.0
def report(progress, seen=[]):
    seen.append(progress)
    if progress.stage == "training" and progress.documents >= 5:
        os.kill(os.getpid(), 9)
config = DataConfig(training=sys.argv[2:4], validation=[sys.argv[4]], vocabulary=280)
preparing.prepare(config, Path(sys.argv[1]), report)
"""


def test_resumes_after_a_kill(small_steps: None, corpus_of_files: DataConfig, tmp_path: Path) -> None:
    assert corpus_of_files.training is not None
    assert corpus_of_files.validation is not None
    arguments = [str(tmp_path / "killed"), *corpus_of_files.training, *corpus_of_files.validation]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    progress = json.loads((tmp_path / "killed" / "progress.json").read_text())
    assert progress["written"]["training"]["tokens"] > 0
    prepare(corpus_of_files, tmp_path / "killed")
    prepare(corpus_of_files, tmp_path / "unbroken")
    assert contents(tmp_path / "killed") == contents(tmp_path / "unbroken")


def test_a_complete_folder_is_left_alone(corpus_of_files: DataConfig, tmp_path: Path) -> None:
    first = prepare(corpus_of_files, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    reported: list[PreparationProgress] = []
    again = prepare(corpus_of_files, tmp_path / "out", reported.append)
    assert again.sha256 == first.sha256
    assert reported == []
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("change", ["edited", "new", "gone", "vocabulary", "tokenizer"])
def test_other_input_is_refused(
    change: str, whole: bool, small_steps: None, corpus_of_files: DataConfig, tmp_path: Path
) -> None:
    try:
        prepare(corpus_of_files, tmp_path / "out", None if whole else stop_after(25))
    except StoppedError:
        assert not whole
    before = contents(tmp_path / "out")
    match change:
        case "edited":
            (tmp_path / "0.txt").write_text("Something else.")
            message = r"data.training: .*0.txt has changed"
        case "new":
            (tmp_path / "9.txt").write_text("New.")
            message = r"data.training: .*9.txt is new"
        case "gone":
            (tmp_path / "1.txt").unlink()
            message = r"data.training: .*1.txt is missing"
        case "vocabulary":
            corpus_of_files.vocabulary = 290
            message = "data.vocabulary was 280, is now 290"
        case _:
            corpus_of_files.vocabulary = None
            message = "data.tokenizer was None, is now '[0-9a-f]{64}'"
    with pytest.raises(
        InputError, match=rf"out: prepared from other input: {message}; choose another folder, or remove it"
    ):
        prepare(corpus_of_files, tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_progress_is_complete_at_the_end(small_steps: None, corpus_of_files: DataConfig, tmp_path: Path) -> None:
    reported: list[PreparationProgress] = []
    corpus = prepare(corpus_of_files, tmp_path / "out", reported.append)
    assert list(dict.fromkeys(progress.stage for progress in reported)) == ["tokenizer", "training", "validation"]
    last = next(progress for progress in reversed(reported) if progress.stage == "training")
    part = corpus.splits["training"]
    assert (last.tokens, last.documents, last.text_bytes) == (part.tokens, part.documents, part.bytes)
    validation = next(progress for progress in reversed(reported) if progress.stage == "validation")
    assert validation.text_bytes == validation.size == len(HELD_OUT)


def test_a_foreign_folder_is_left_alone(corpus_of_files: DataConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a new folder or a prepared corpus, got other files"):
        prepare(corpus_of_files, tmp_path)
    assert not (tmp_path / "progress.json").exists()


def test_concurrent_preparations_are_refused(corpus_of_files: DataConfig, tmp_path: Path) -> None:
    messages: list[str] = []

    def report(progress: PreparationProgress) -> None:
        if not messages:
            with pytest.raises(InputError, match="another process is preparing a corpus there") as caught:
                prepare(corpus_of_files, tmp_path / "out")
            messages.append(str(caught.value))

    prepare(corpus_of_files, tmp_path / "out", report)
    assert len(messages) == 1


@pytest.mark.parametrize("at", [2, 9, 40])
def test_a_full_disk(
    at: int, small_steps: None, corpus_of_files: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(corpus_of_files, tmp_path / "unbroken")
    left = iter(range(at))
    sync = os.fsync

    def full(handle: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"out: cannot be written: No space left on device; progress is kept"):
            prepare(corpus_of_files, tmp_path / "out")
    prepare(corpus_of_files, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "unbroken")


def test_folder_cannot_be_created(corpus_of_files: DataConfig) -> None:
    with pytest.raises(InputError, match=r"/proc/none/out: cannot be written"):
        prepare(corpus_of_files, Path("/proc/none/out"))


def test_inconsistent_progress(small_steps: None, corpus_of_files: DataConfig, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        prepare(corpus_of_files, tmp_path / "out", stop_after(25))
    part = tmp_path / "out" / "training.tokens.part"
    part.write_bytes(part.read_bytes()[:10])
    with pytest.raises(InputError, match=r"training.tokens.part: expected \d+ bytes \(progress.json\), got 10; remove"):
        prepare(corpus_of_files, tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json: has changed; remove .*out to start over"):
        prepare(corpus_of_files, tmp_path / "out")
    (tmp_path / "out" / "progress.json").write_text('{"format": "skippipe.data-progress/1"}')
    with pytest.raises(InputError, match=r"its specification cannot be read"):
        prepare(corpus_of_files, tmp_path / "out")


def test_the_bundled_text() -> None:
    with corpus_folder(DataConfig()) as folder:
        corpus = open_corpus(folder)
        training, validation = corpus.training(128), corpus.validation(128, 128)
        names = [{Path(file["name"]).name for file in corpus.splits[split].files} for split in corpus.splits]
        assert sum(part.bytes for part in corpus.splits.values()) < 1_000_000
        assert training.tokens.size > 200_000
        assert len(validation) == 128
        assert corpus.vocabulary == 1024
        assert 0 <= training.tokens.min() <= training.tokens.max() < 1024
        first = Path(corpus.splits["validation"].files[0]["name"]).read_text(encoding="utf-8")
        assert first.startswith(shipped_tokenizer().decode(validation.tokens[0].tolist()))
    assert len(names) == 2
    assert not names[0] & names[1]
    assert not folder.exists()


def test_refused_input_leaves_no_folder(tmp_path: Path) -> None:
    """So that the same command works with corrected input; a folder that existed before stays."""
    for name in ("t", "v"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "some words"}\n' * 50)
    config = DataConfig(training=[str(tmp_path / "t.jsonl")], validation=[str(tmp_path / "v.jsonl")])
    with (tmp_path / "v.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    (tmp_path / "before").mkdir()
    for name in ("out", "before"):
        with pytest.raises(InputError, match=r"v\.jsonl"):
            prepare(config, tmp_path / name)
        assert (tmp_path / name).exists() == (name == "before")
    (tmp_path / "v.jsonl").write_text('{"text": "some words"}\n' * 51)
    assert prepare(config, tmp_path / "out").splits["validation"].tokens > 0


def test_a_prepared_folder(corpus_of_files: DataConfig, tmp_path: Path) -> None:
    prepare(corpus_of_files, tmp_path / "out")
    with corpus_folder(DataConfig(prepared=str(tmp_path / "out"))) as folder:
        assert folder == tmp_path / "out"
    assert folder.exists()
    beside: list[dict[str, Any]] = [
        {"training": ["a.txt"]}, {"validation": ["a.txt"]}, {"tokenizer": "t.json"}, {"vocabulary": 300},
        {"field": "body"}, {"hub": "name"}, {"format": "text"},
    ]  # fmt: skip
    for given_too in beside:
        (name,) = given_too
        with (
            pytest.raises(
                InputError,
                match=rf"data.prepared: expected data.{name} or data.prepared, got both; .*out comes with its own",
            ),
            corpus_folder(DataConfig(prepared=str(tmp_path / "out"), **given_too)),
        ):
            pass
    with pytest.raises(InputError, match=r"data.prepared: expected null, got .*out, which is already prepared"):
        prepare(DataConfig(prepared=str(tmp_path / "out")), tmp_path / "again")


def test_nothing_is_written_elsewhere(
    corpus_of_files: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cache = Path.home() / ".cache" / "huggingface" / "datasets"
    before = sorted(cache.rglob("*")) if cache.exists() else []
    with corpus_folder(corpus_of_files):
        pass
    assert list((tmp_path / "here").iterdir()) == []
    assert (sorted(cache.rglob("*")) if cache.exists() else []) == before
