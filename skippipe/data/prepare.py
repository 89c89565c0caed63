"""Tokenise a corpus once, into a folder that trainings memory-map; resumable at any moment.

The same input gives the same bytes, however often it was interrupted. `corpus.json` is written last.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from skippipe.console import streams
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
from skippipe.errors import InputError, unexpected
from skippipe.files import read_json_object, write_text

BATCH_CHARACTERS = 1 << 20
"""Characters tokenised per call."""
SAVE_S = 2.0
"""Seconds between two saves of the progress."""
UNUSUAL = 3
"""Warn if the validation share is off by more than this factor."""
FROM_PREPARED = ("training", "validation", "format", "field", "hub", "hub_configuration", "tokenizer", "vocabulary")
"""Settings that a prepared corpus fixes."""


@dataclass(frozen=True)
class PreparationProgress:
    """Progress of a preparation."""

    stage: str
    """tokenizer, training or validation"""
    text_bytes: int
    """bytes of text processed in this stage, as UTF-8"""
    size: int | None
    """bytes of text to process; None: unknown"""
    documents: int
    tokens: int


Report = Callable[[PreparationProgress], None]
Batch = list[tuple[int, Chunk]]
"""Chunks, each with the number of its input."""


def check_input(config: DataConfig) -> None:
    """Check early what can be checked early: missing files, conflicting settings.

    Raises:
        InputError: names key, value and expectation.

    """
    if config.prepared is not None:
        plain = DataConfig()
        given = [name for name in FROM_PREPARED if getattr(config, name) != getattr(plain, name)]
        if given:
            hint = f"{config.prepared} comes with its own corpus and tokenizer"
            raise unexpected("data.prepared", "both", f"data.{given[0]} or data.prepared", hint=hint)
        open_corpus(Path(config.prepared))
        return
    if config.tokenizer is not None and config.vocabulary is not None:
        raise unexpected("data.tokenizer", "both", "data.tokenizer or data.vocabulary")
    check_tokenizer(config)
    if config.hub is None:
        find_files(config)


@contextlib.contextmanager
def corpus_folder(
    config: DataConfig, parent: Path | None = None, warn: Callable[[str], None] | None = None
) -> Iterator[Path]:
    """Yield the folder of a prepared corpus: `data.prepared`, or a temporary one that lasts as long as the context.

    Args:
        config: the corpus.
        parent: where to create the temporary folder, for exclusive use: leftovers of a killed process are removed;
            None: the system's temporary folder.
        warn: receives warnings about the corpus; None: standard error.

    Raises:
        InputError: invalid settings or files.
        StorageError: the corpus cannot be written.

    """
    check_input(config)
    if config.prepared is not None:
        yield Path(config.prepared)
        return
    for leftover in [] if parent is None else parent.glob(".text-*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=".text-" if parent else "skippipe-text-", dir=parent) as folder:
        warning = share_warning(config, prepare(config, Path(folder)))
        if warning is not None:
            (warn or streams.warn)(warning)
        yield Path(folder)


def share_warning(config: DataConfig, corpus: Corpus) -> str | None:
    """Warning if the default validation split, chosen by file names, is unusually large or small."""
    if config.validation is not None or config.training is None or config.prepared is not None:
        return None
    tokens = {split: corpus.splits[split].tokens for split in SPLITS}
    share, files = tokens["validation"] / sum(tokens.values()), len(corpus.splits["validation"].files)
    if 1 / (UNUSUAL * ONE_IN) <= share <= UNUSUAL / ONE_IN:
        return None
    return (
        f"warning: data.validation is null: by a hash of their names, {files} of "
        f"{files + len(corpus.splits['training'].files)} files are the validation split, {share:.1%} of all tokens "
        f"(usually {1 / ONE_IN:.0%}); choose files with data.validation=[FILE,...]"
    )


def prepare(config: DataConfig, folder: Path, report: Report | None = None) -> Corpus:
    """Tokenise a corpus into `folder`, resume an unfinished preparation, or verify a complete one.

    Args:
        config: the corpus and its tokenizer.
        folder: created if necessary; it may hold only the same corpus, complete or unfinished.
        report: progress callback; not called if the corpus is already complete.

    Raises:
        InputError: invalid settings or files, or others than the folder was started with.
        StorageError: e.g. disk full; the same call resumes later.

    """
    if config.prepared is not None:
        raise unexpected("data.prepared", f"{config.prepared}, which is already prepared", "null")
    check_input(config)
    with claimed(folder), Reader(config) as reader:
        inputs = reader.inputs()
        encoder = None if config.vocabulary is not None else load_encoder(config)
        spec = CorpusSpec.of(config, inputs, encoder.json if encoder else None, reader.revision())
        existing = folder / "corpus.json"
        if existing.exists():
            check_same(folder, read_json_object(str(existing)), spec)
            corpus = open_corpus(folder)
            corpus.verify(whole=config.verify == "whole")
            return corpus
        with storing(folder):
            _Preparation(folder, reader, inputs, spec, report or _discard).run(encoder, config.vocabulary)
        return open_corpus(folder)


class _Preparation:
    """A preparation in progress."""

    def __init__(self, folder: Path, reader: Reader, inputs: Inputs, spec: CorpusSpec, report: Report) -> None:
        """Start, or resume what is in the folder."""
        self._folder, self._reader, self._inputs, self._spec, self._report = folder, reader, inputs, spec, report
        self._state = PreparationState.of(folder, spec)
        self._save()

    def run(self, encoder: Encoder | None, entries: int | None) -> None:
        """Complete the preparation; without an encoder, train one with `entries` entries."""
        encoder = self._tokenizer(encoder, entries)
        for split in SPLITS:
            if not self._state.written[split].complete:
                self._write(split, encoder)
            if self._partial(split).exists():
                self._partial(split).replace(self._target(split))
        write_text(self._folder / "corpus.json", json.dumps(self._content(encoder), indent=1) + "\n")
        (self._folder / "progress.json").unlink()

    def _tokenizer(self, encoder: Encoder | None, entries: int | None) -> Encoder:
        """Put the tokenizer into the folder: the one already there, the given one, or one trained on the corpus."""
        path = self._folder / "tokenizer.json"
        if self._state.tokenizer is not None:
            if _sha256(path) != self._state.tokenizer:
                raise InputError("has changed", file=path, hint=f"remove {self._folder} to start over")
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
        self._report_progress("tokenizer", "training", seen)
        for batch in _batches(self._chunks("training", SplitProgress(), CHUNK_CHARACTERS)):
            yield [chunk.text for _, chunk in batch]
            for number, chunk in batch:
                seen.add(number, chunk)
            self._report_progress("tokenizer", "training", seen)

    def _write(self, split: Split, encoder: Encoder) -> None:
        """Append the rest of a split, saving the progress periodically."""
        written, dtype = self._state.written[split], DTYPES[encoder.dtype]
        chunks = self._chunks(split, written, CHUNK_CHARACTERS if encoder.splits_at_newlines() else None)
        with opened_at(self._partial(split), written.tokens * dtype.itemsize) as file:
            self._report_progress(split, split, written)
            saved = time.monotonic()
            for batch, tokens in _encoded(encoder, _batches(chunks)):
                file.write(tokens.astype(dtype, copy=False).tobytes())
                written.tokens += len(tokens)
                for number, chunk in batch:
                    written.add(number, chunk)
                self._report_progress(split, split, written)
                if time.monotonic() - saved >= SAVE_S:
                    self._sync(file)
                    saved = time.monotonic()
            if not written.tokens:
                first, *others = self._inputs[split]
                empty = f"and {len(others)} more contain no text" if others else "contains no text"
                raise InputError(f"{first.name} {empty}", key=f"data.{split}")
            written.complete = True
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

    def _report_progress(self, stage: str, split: Split, written: SplitProgress) -> None:
        sizes = [file.text_bytes for file in self._inputs[split]]
        known = [size for size in sizes if size is not None]
        size = sum(known) if len(known) == len(sizes) else None
        self._report(PreparationProgress(stage, written.bytes, size, sum(written.documents), written.tokens))

    def _content(self, encoder: Encoder) -> dict[str, Any]:
        """Contents of `corpus.json`."""
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

    def _partial(self, split: Split) -> Path:
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
    """Tokens of each batch; reading the next and writing the previous batch overlap with tokenising."""

    def encode(batch: Batch) -> Tokens:
        return encoder.encode([chunk for _, chunk in batch])

    with ThreadPoolExecutor(1) as pool:
        pending: tuple[Batch, Future[Tokens]] | None = None
        for batch in batches:
            following = batch, pool.submit(encode, batch)
            if pending is not None:
                yield pending[0], pending[1].result()
            pending = following
        if pending is not None:
            yield pending[0], pending[1].result()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _discard(progress: PreparationProgress) -> None:
    """Discard progress."""
    del progress
