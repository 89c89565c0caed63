"""A prepared text: the folder that `prepare` writes and trainings read.

corpus.json         what is in the folder and what it was made from; written last, so that it is there means whole
tokenizer.json
training.tokens     little-endian uint16 or uint32, each document ended by the end-of-text token
validation.tokens
"""

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skippipe.data.blocks import Blocks, Tokens, cut
from skippipe.errors import InputError
from skippipe.files import read_json_object, read_text

FORMAT = "skippipe.data/2"
Split = Literal["training", "validation"]
SPLITS: tuple[Split, ...] = ("training", "validation")
CHUNK_BYTES = 16 * 2**20
"""A token file is hashed in chunks of this size, ..."""
SAMPLED_CHUNKS = 16
"""... of which no more are read before a training, unless the whole file is asked for."""
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True)
class TokenFile:
    """Training or validation: a stream of tokens in a file."""

    split: Split
    tokens: int
    documents: int
    bytes: int
    """of text, as UTF-8"""
    sha256: str
    """of the file"""
    chunks: list[str]
    """sha256 of each `CHUNK_BYTES` of it"""
    files: list[dict[str, Any]]
    """`name`, `bytes` on disk (null: not known) and `documents` of each input file"""


@dataclass(frozen=True)
class Corpus:
    """A prepared text; `open_corpus` makes one."""

    folder: Path
    vocabulary: int
    """tokens are below it"""
    end_of_text: int
    dtype: str
    """a key of `DTYPES`"""
    tokenizer_sha256: str
    splits: dict[Split, TokenFile]

    @property
    def sha256(self) -> str:
        """Hash of everything that is trained and validated on, tokenizer included; nothing is read for it."""
        hashes = [self.dtype, self.tokenizer_sha256, *(self.splits[split].sha256 for split in SPLITS)]
        return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()

    @property
    def tokenizer_json(self) -> str:
        """The tokenizer, as `tokenizers` writes it."""
        return read_text(str(self.folder / "tokenizer.json"))

    def training(self, sequence: int) -> Blocks:
        """Blocks to train on, mapped into memory; raises `InputError` where the text does not fill one."""
        return self._blocks("training", sequence)

    def validation(self, sequence: int, at_most: int) -> Blocks:
        """Blocks to validate on, evenly spread over that text; raises as `training` does."""
        return self._blocks("validation", sequence).spread(at_most)

    def stream(self, split: Split) -> Tokens:
        """All tokens of a split, mapped into memory."""
        part = self.splits[split]
        if not part.tokens:  # an empty file cannot be mapped
            return np.empty(0, dtype=DTYPES[self.dtype])
        return np.memmap(self.folder / f"{split}.tokens", dtype=DTYPES[self.dtype], mode="r")

    def verify(self, *, whole: bool) -> None:
        """Hold the token files against what `corpus.json` records.

        Args:
            whole: read all of them; else of a large file the first chunk, the last and some between, others each time.

        Raises:
            InputError: a file has changed since it was prepared, or holds a token beyond the vocabulary.

        """
        for split in SPLITS:
            self._verify(split, whole=whole)

    def _verify(self, split: Split, *, whole: bool) -> None:
        path, part = self.folder / f"{split}.tokens", self.splits[split]
        stream, step = self.stream(split), CHUNK_BYTES // DTYPES[self.dtype].itemsize
        count = -(-len(stream) // step)
        if len(part.chunks) != count:
            raise InputError(
                f"{self.folder / 'corpus.json'}: {split}.chunks: expected {count} hashes, got {len(part.chunks)}"
            )
        numbers = list(range(count)) if whole else _sample(count)
        all_of_it = hashlib.sha256()
        for number in numbers:
            chunk = stream[number * step : (number + 1) * step]
            content = chunk.tobytes()
            all_of_it.update(content)
            if hashlib.sha256(content).hexdigest() != part.chunks[number]:
                first = number * CHUNK_BYTES
                raise _changed(path, f"bytes {first:,} to {first + chunk.nbytes - 1:,} are others")
            self.check_tokens(chunk, path)
        if len(numbers) == count and all_of_it.hexdigest() != part.sha256:
            raise _changed(path, "its hash is another one")

    def check_tokens(self, tokens: Tokens, origin: Path) -> None:
        """Raise `InputError` that names `origin` where a token is beyond the vocabulary."""
        largest = int(tokens.max(initial=0))
        if largest >= self.vocabulary:
            raise InputError(f"{origin}: expected tokens below {self.vocabulary}, got {largest}; prepare the text anew")

    def _blocks(self, split: Split, sequence: int) -> Blocks:
        blocks = cut(self.stream(split), sequence)
        if not len(blocks):
            raise InputError(
                f"data.{split} holds {self.splits[split].tokens} tokens, at least {sequence + 1} (data.sequence + 1) "
                f"are expected"
            )
        return blocks


def open_corpus(folder: Path) -> Corpus:
    """Open what `prepare` has written; nothing but `corpus.json` and the tokenizer is read: see `Corpus.verify`.

    Raises:
        InputError: it is not there, not whole, of another version, files do not have the size that they should, or
            the tokenizer has changed.

    """
    path = folder / "corpus.json"
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder, one that `skippipe data prepare` has written is expected")
    if not path.is_file():
        raise InputError(
            f"{folder}: holds no corpus.json, a folder that `skippipe data prepare` has written to the end is expected"
        )
    content = read_json_object(str(path))
    if content.get("format") != FORMAT:
        raise InputError(f"{path}: format is {content.get('format')!r}, {FORMAT} is expected")
    try:
        corpus = _corpus(folder, content)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not what `skippipe data prepare` writes: {_reason(error)}") from None
    for part in corpus.splits.values():
        _check_size(folder / f"{part.split}.tokens", part.tokens * DTYPES[corpus.dtype].itemsize)
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder}: tokenizer.json is missing")
    if hashlib.sha256(corpus.tokenizer_json.encode()).hexdigest() != corpus.tokenizer_sha256:
        raise _changed(folder / "tokenizer.json", "its hash is another one")
    return corpus


def _changed(path: Path, what: str) -> InputError:
    return InputError(f"{path}: expected what corpus.json records, got a changed file ({what}); prepare the text anew")


def _sample(chunks: int) -> list[int]:
    """Numbers of the chunks to read: all of a few; of many the first, the last and some drawn anew each time."""
    if chunks <= SAMPLED_CHUNKS:
        return list(range(chunks))
    return [0, *sorted(random.sample(range(1, chunks - 1), SAMPLED_CHUNKS - 2)), chunks - 1]


def hashes_of(path: Path) -> tuple[str, list[str]]:
    """Compute sha256 of a file, and of each `CHUNK_BYTES` of it, as `corpus.json` records them."""
    all_of_it, chunks = hashlib.sha256(), []
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            all_of_it.update(chunk)
            chunks.append(hashlib.sha256(chunk).hexdigest())
    return all_of_it.hexdigest(), chunks


def _corpus(folder: Path, content: dict[str, Any]) -> Corpus:
    tokenizer = content["tokenizer"]
    dtype = str(content["dtype"])
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, one of {', '.join(DTYPES)} is expected")
    return Corpus(
        folder=folder,
        vocabulary=_count(tokenizer, "vocabulary"),
        end_of_text=_count(tokenizer, "end_of_text"),
        dtype=dtype,
        tokenizer_sha256=str(tokenizer["sha256"]),
        splits={split: _token_file(split, content[split]) for split in SPLITS},
    )


def _token_file(split: Split, content: dict[str, Any]) -> TokenFile:
    counts = {name: _count(content, name) for name in ("tokens", "documents", "bytes")}
    chunks = list(map(str, content["chunks"]))
    return TokenFile(split, **counts, sha256=str(content["sha256"]), chunks=chunks, files=list(content["files"]))


def _count(content: dict[str, Any], name: str) -> int:
    value = content[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}, an integer of at least 0 is expected")
    return value


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if size != expected:
        raise InputError(f"{path}: has {size} bytes, {expected} are expected by corpus.json; prepare the text anew")


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
