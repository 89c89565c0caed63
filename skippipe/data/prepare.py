"""Tokenise a text once, into a folder that trainings map into memory; stopped at any moment, it goes on from there.

The same input gives the same bytes, however often it was stopped. `corpus.json` is written last.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from skippipe.data.blocks import Tokens
from skippipe.data.chunks import CHUNK_CHARACTERS, Chunk, split_chunks
from skippipe.data.config import DataConfig
from skippipe.data.corpus import DTYPES, SPLITS, Corpus, Split, hashes_of, open_corpus
from skippipe.data.corpus import FORMAT as CORPUS_FORMAT
from skippipe.data.corpus_spec import CorpusSpec
from skippipe.data.inputs import ONE_IN, Inputs, find_files
from skippipe.data.progress import FORMAT, PreparationState, SplitProgress, check_same, claimed, opened_at, storing
from skippipe.data.reading import Reader
from skippipe.data.tokenizer import Encoder, check_tokenizer, load_encoder, read_encoder, train_encoder
from skippipe.errors import InputError
from skippipe.files import read_json_object, write_text

BATCH_CHARACTERS = 1 << 20
"""Characters that are tokenised in one call."""
SAVE_S = 2.0
"""The most seconds of work that are lost when it is stopped."""
UNUSUAL = 3
"""A share to validate on that is so many times what it should be, or so small a part of it, is worth a warning."""
FROM_PREPARED = ("training", "validation", "format", "field", "hub", "hub_configuration", "tokenizer", "vocabulary")
"""Settings that a prepared text has behind it."""


@dataclass(frozen=True)
class PreparationProgress:
    """How far a preparation has come."""

    stage: str
    """what is worked on: tokenizer, training or validation"""
    text_bytes: int
    """of text that this stage has gone through, as UTF-8"""
    size: int | None
    """bytes of text that it has to go through; None: not known"""
    documents: int
    tokens: int


Report = Callable[[PreparationProgress], None]
Batch = list[tuple[int, Chunk]]
"""Chunks, each with the number of its input."""


def check_input(config: DataConfig) -> None:
    """Find at once what can be found at once: files that are missing, settings that exclude each other.

    Raises:
        InputError: naming the key, its value and what is expected.

    """
    if config.prepared is not None:
        plain = DataConfig()
        given = [name for name in FROM_PREPARED if getattr(config, name) != getattr(plain, name)]
        if given:
            raise InputError(
                f"data.{given[0]} is set beside data.prepared={config.prepared}, which has its own text and tokenizer: "
                f"one of the two is expected"
            )
        open_corpus(Path(config.prepared))
        return
    if config.tokenizer is not None and config.vocabulary is not None:
        raise InputError("data.tokenizer and data.vocabulary are both set, one of the two is expected")
    check_tokenizer(config)
    if config.hub is None:
        find_files(config)


@contextlib.contextmanager
def corpus_folder(
    config: DataConfig, place: Path | None = None, say: Callable[[str], None] | None = None
) -> Iterator[Path]:
    """Give the folder of a prepared text: `data.prepared`, or one that is made here and lasts as long as the context.

    Args:
        config: the text.
        place: the folder in which one is made, which nobody else uses: what a killed process has left there goes first;
            None: where temporary files go.
        say: is told what the user ought to know of the text that is made; None: standard error is.

    Raises:
        InputError: settings or files that cannot be used.
        StorageError: the text cannot be written.

    """
    check_input(config)
    if config.prepared is not None:
        yield Path(config.prepared)
        return
    for left in [] if place is None else place.glob(".text-*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=".text-" if place else "skippipe-text-", dir=place) as folder:
        warning = share_warning(config, prepare(config, Path(folder)))
        if warning is not None:
            (say or _to_stderr)(warning)
        yield Path(folder)


def share_warning(config: DataConfig, corpus: Corpus) -> str | None:
    """Say it where names alone have chosen what is validated on, and that is far more or less than is usual."""
    if config.validation is not None or config.training is None or config.prepared is not None:
        return None
    tokens = {split: corpus.splits[split].tokens for split in SPLITS}
    share, files = tokens["validation"] / sum(tokens.values()), len(corpus.splits["validation"].files)
    if 1 / (UNUSUAL * ONE_IN) <= share <= UNUSUAL / ONE_IN:
        return None
    return (
        f"warning: data.validation is null, so {files} of {files + len(corpus.splits['training'].files)} files, chosen "
        f"by a hash of the names, are validated on: {share:.1%} of all tokens, where {1 / ONE_IN:.0%} is usual; "
        "data.validation=[FILE,...] chooses others"
    )


def prepare(config: DataConfig, folder: Path, report: Report | None = None) -> Corpus:
    """Tokenise a text into `folder`, or go on with it, or find that it is there already.

    Args:
        config: the text and its tokenizer.
        folder: is made if need be; it may hold nothing but the same text, whole or unfinished.
        report: is told how far it has come; never, where the text is there already.

    Raises:
        InputError: settings or files that cannot be used, or that are not those that the folder was begun with.
        StorageError: the disk is full or the like; the same call goes on later.

    """
    if config.prepared is not None:
        raise InputError(f"data.prepared is {config.prepared}, which is prepared already; null is expected here")
    check_input(config)
    with claimed(folder), Reader(config) as reader:
        inputs = reader.inputs()
        encoder = None if config.vocabulary is not None else load_encoder(config)
        spec = CorpusSpec.of(config, inputs, encoder.json if encoder else None, reader.revision())
        whole = folder / "corpus.json"
        if whole.exists():
            check_same(folder, read_json_object(str(whole)), spec)
            corpus = open_corpus(folder)
            corpus.verify(whole=config.verify == "whole")
            return corpus
        with storing(folder):
            _Preparation(folder, reader, inputs, spec, report or _to_nobody).run(encoder, config.vocabulary)
        return open_corpus(folder)


class _Preparation:
    """A preparation under way."""

    def __init__(self, folder: Path, reader: Reader, inputs: Inputs, spec: CorpusSpec, report: Report) -> None:
        """Begin, or take up what lies in the folder."""
        self._folder, self._reader, self._inputs, self._spec, self._report = folder, reader, inputs, spec, report
        self._state = PreparationState.of(folder, spec)
        self._save()

    def run(self, encoder: Encoder | None, entries: int | None) -> None:
        """Do all that is left; without an encoder one with `entries` entries is trained."""
        encoder = self._tokenizer(encoder, entries)
        for split in SPLITS:
            if not self._state.written[split].whole:
                self._write(split, encoder)
            if self._part(split).exists():
                self._part(split).replace(self._target(split))
        write_text(self._folder / "corpus.json", json.dumps(self._content(encoder), indent=1) + "\n")
        (self._folder / "progress.json").unlink()

    def _tokenizer(self, encoder: Encoder | None, entries: int | None) -> Encoder:
        """Have the tokenizer in the folder: what is there already, what was given, or one trained on the text."""
        path = self._folder / "tokenizer.json"
        if self._state.tokenizer is not None:
            if _sha256(path) != self._state.tokenizer:
                raise InputError(f"{path} has changed; remove {self._folder} to begin anew")
            return encoder or read_encoder(path)
        if encoder is None:
            assert entries is not None
            encoder = train_encoder(self._training_texts(), entries)
        write_text(path, encoder.json)
        self._state.tokenizer = _sha256(path)
        self._save()
        return encoder

    def _training_texts(self) -> Iterator[list[str]]:
        seen = SplitProgress()
        self._tell("tokenizer", "training", seen)
        for batch in _batches(self._chunks("training", SplitProgress(), CHUNK_CHARACTERS)):
            yield [chunk.text for _, chunk in batch]
            for number, chunk in batch:
                seen.add(number, chunk)
            self._tell("tokenizer", "training", seen)

    def _write(self, split: Split, encoder: Encoder) -> None:
        """Append what is left of a split, saving every now and then how far it has come."""
        written, dtype = self._state.written[split], DTYPES[encoder.dtype]
        chunks = self._chunks(split, written, CHUNK_CHARACTERS if encoder.cuts_at_lines() else None)
        with opened_at(self._part(split), written.tokens * dtype.itemsize) as file:
            self._tell(split, split, written)
            saved = time.monotonic()
            for batch, tokens in _encoded(encoder, _batches(chunks)):
                file.write(tokens.astype(dtype, copy=False).tobytes())
                written.tokens += len(tokens)
                for number, chunk in batch:
                    written.add(number, chunk)
                self._tell(split, split, written)
                if time.monotonic() - saved >= SAVE_S:
                    self._sync(file)
                    saved = time.monotonic()
            if not written.tokens:
                first, *others = self._inputs[split]
                none = f"and {len(others)} more hold no text" if others else "holds no text"
                raise InputError(f"data.{split}: {first.name} {none}")
            written.whole = True
            self._sync(file)

    def _chunks(self, split: Split, done: SplitProgress, limit: int | None) -> Iterator[tuple[int, Chunk]]:
        """The rest of a split, each chunk with the number of its input."""
        first, skip = max(len(done.documents) - 1, 0), done.chunks
        for number, chunks in self._reader.read(split, self._inputs[split], first):
            for chunk in itertools.islice(split_chunks(chunks, limit), skip, None):
                yield number, chunk
            skip = 0

    def _sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())
        self._save()

    def _save(self) -> None:
        documents = {s: self._state.written[s].documents_of(len(self._inputs[s])) for s in SPLITS}
        spec = self._spec.to_json({s: {} for s in SPLITS}, documents)
        content = {"format": FORMAT, **spec, **self._state.to_json()}
        write_text(self._folder / "progress.json", json.dumps(content) + "\n")

    def _tell(self, stage: str, split: Split, written: SplitProgress) -> None:
        sizes = [file.text_bytes for file in self._inputs[split]]
        known = [size for size in sizes if size is not None]
        size = sum(known) if len(known) == len(sizes) else None
        self._report(PreparationProgress(stage, written.bytes, size, sum(written.documents), written.tokens))

    def _content(self, encoder: Encoder) -> dict[str, Any]:
        """What `corpus.json` says."""
        documents = {s: self._state.written[s].documents_of(len(self._inputs[s])) for s in SPLITS}
        about: dict[Split, dict[str, Any]] = {}
        for split in SPLITS:
            written = self._state.written[split]
            sha256, chunks = hashes_of(self._target(split))
            about[split] = {
                "tokens": written.tokens,
                "documents": sum(documents[split]),
                "bytes": written.bytes,
                "sha256": sha256,
                "chunks": chunks,
            }
        tokenizer = {
            "vocabulary": encoder.vocabulary,
            "end_of_text": encoder.end_of_text,
            "sha256": self._state.tokenizer,
        }
        spec = self._spec.to_json(about, documents)
        return {"format": CORPUS_FORMAT, "tokenizer": tokenizer, "dtype": encoder.dtype, **spec}

    def _part(self, split: Split) -> Path:
        return self._folder / f"{split}.tokens.part"

    def _target(self, split: Split) -> Path:
        return self._folder / f"{split}.tokens"


def _batches(chunks: Iterable[tuple[int, Chunk]]) -> Iterator[Batch]:
    """Batch chunks for calls of about `BATCH_CHARACTERS`."""
    batch: Batch = []
    characters = 0
    for number, chunk in chunks:
        batch.append((number, chunk))
        characters += len(chunk.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encoded(encoder: Encoder, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tokens]]:
    """Tokens of each batch; the next one is read, and the last one written, while one is tokenised."""

    def encode(batch: Batch) -> Tokens:
        return encoder.encode([chunk for _, chunk in batch])

    with ThreadPoolExecutor(1) as pool:
        under_way: tuple[Batch, Future[Tokens]] | None = None
        for batch in batches:
            following = batch, pool.submit(encode, batch)
            if under_way is not None:
                yield under_way[0], under_way[1].result()
            under_way = following
        if under_way is not None:
            yield under_way[0], under_way[1].result()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"skippipe: {line}\n")


def _to_nobody(progress: PreparationProgress) -> None:
    """Take reports that nobody asked for."""
    del progress
