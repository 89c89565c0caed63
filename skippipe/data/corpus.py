"""A prepared corpus: the folder that `prepare` writes and trainings read.

corpus.json         contents of the folder and their origin; written last, so its presence means the corpus is complete
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

from skippipe.data.blocks import Blocks, Tokens, pack
from skippipe.errors import InputError, in_file, unexpected, unreadable
from skippipe.files import read_json_object, read_text

FORMAT = "skippipe.data/2"
PREPARE_AGAIN = "prepare it again"
Split = Literal["training", "validation"]
SPLITS: tuple[Split, ...] = ("training", "validation")
CHUNK_BYTES = 16 * 2**20
"""Token files are hashed in chunks of this size."""
SAMPLED_CHUNKS = 16
"""Chunks verified before a training, unless `data.verify=whole`."""
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True)
class TokenFile:
    """The token stream of a split, in a file."""

    split: Split
    tokens: int
    documents: int
    bytes: int
    """of text, as UTF-8"""
    sha256: str
    """of the file"""
    chunks: list[str]
    """sha256 of each chunk of `CHUNK_BYTES`"""
    files: list[dict[str, Any]]
    """`name`, `bytes` on disk (null: unknown) and `documents` of each input file"""


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus, from `open_corpus`."""

    folder: Path
    vocabulary: int
    """number of entries; all tokens are below it"""
    end_of_text: int
    dtype: str
    """a key of `DTYPES`"""
    tokenizer_sha256: str
    splits: dict[Split, TokenFile]

    @property
    def sha256(self) -> str:
        """Hash of all training and validation tokens and the tokenizer; reads no file."""
        hashes = [self.dtype, self.tokenizer_sha256, *(self.splits[split].sha256 for split in SPLITS)]
        return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()

    @property
    def tokenizer_json(self) -> str:
        """The tokenizer, in the format of `tokenizers`."""
        return read_text(str(self.folder / "tokenizer.json"))

    def training(self, sequence: int) -> Blocks:
        """Training blocks, memory-mapped; raises `InputError` if the corpus is shorter than a block."""
        return self._blocks("training", sequence)

    def validation(self, sequence: int, at_most: int) -> Blocks:
        """Validation blocks, evenly spaced; raises as `training` does."""
        return self._blocks("validation", sequence).subsample(at_most)

    def stream(self, split: Split) -> Tokens:
        """All tokens of a split, memory-mapped."""
        part = self.splits[split]
        if not part.tokens:  # an empty file cannot be mapped
            return np.empty(0, dtype=DTYPES[self.dtype])
        return np.memmap(self.folder / f"{split}.tokens", dtype=DTYPES[self.dtype], mode="r")

    def verify(self, *, whole: bool) -> None:
        """Verify the token files against the hashes in `corpus.json`.

        Args:
            whole: all of them; else of a large file the first chunk, the last and a random sample in between.

        Raises:
            InputError: a file has changed since it was prepared, or contains a token outside the vocabulary.

        """
        for split in SPLITS:
            self._verify(split, whole=whole)

    def _verify(self, split: Split, *, whole: bool) -> None:
        path, part = self.folder / f"{split}.tokens", self.splits[split]
        stream, step = self.stream(split), CHUNK_BYTES // DTYPES[self.dtype].itemsize
        count = -(-len(stream) // step)
        if len(part.chunks) != count:
            raise unexpected(f"{split}.chunks", len(part.chunks), f"{count} hashes", self.folder / "corpus.json")
        numbers = list(range(count)) if whole else _sample(count)
        complete = hashlib.sha256()
        for number in numbers:
            chunk = stream[number * step : (number + 1) * step]
            content = chunk.tobytes()
            complete.update(content)
            if hashlib.sha256(content).hexdigest() != part.chunks[number]:
                first = number * CHUNK_BYTES
                raise _changed(path, f"bytes {first:,} to {first + chunk.nbytes - 1:,}")
            self.check_tokens(chunk, path)
        if len(numbers) == count and complete.hexdigest() != part.sha256:
            raise _changed(path, "sha256 mismatch")

    def check_tokens(self, tokens: Tokens, origin: Path) -> None:
        """Raise `InputError` that names `origin` if a token is outside the vocabulary."""
        largest = int(tokens.max(initial=0))
        if largest >= self.vocabulary:
            raise InputError(file=origin, expected=f"tokens below {self.vocabulary}", found=largest, hint=PREPARE_AGAIN)

    def _blocks(self, split: Split, sequence: int) -> Blocks:
        blocks = pack(self.stream(split), sequence)
        if not len(blocks):
            expected = f"at least {sequence + 1} tokens (data.sequence + 1)"
            raise unexpected(f"data.{split}", self.splits[split].tokens, expected)
        return blocks


def open_corpus(folder: Path) -> Corpus:
    """Open a prepared corpus; reads only `corpus.json` and the tokenizer: see `Corpus.verify`.

    Raises:
        InputError: it is missing, incomplete or of another version, a file has the wrong size, or the tokenizer has
            changed.

    """
    path = folder / "corpus.json"
    if not folder.is_dir():
        raise InputError(file=folder, expected="a folder written by `skippipe data prepare`", found="no such folder")
    if not path.is_file():
        expected = "a folder completed by `skippipe data prepare`"
        raise InputError(file=folder, expected=expected, found="one without corpus.json")
    content = read_json_object(str(path))
    if content.get("format") != FORMAT:
        raise unexpected("format", content.get("format"), FORMAT, path)
    try:
        corpus = _corpus(folder, content)
    except InputError as error:
        raise in_file(error, path) from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not written by `skippipe data prepare`: {_reason(error)}", file=path) from None
    for part in corpus.splits.values():
        _check_size(folder / f"{part.split}.tokens", part.tokens * DTYPES[corpus.dtype].itemsize)
    if not (folder / "tokenizer.json").is_file():
        raise InputError("tokenizer.json is missing", file=folder)
    if hashlib.sha256(corpus.tokenizer_json.encode()).hexdigest() != corpus.tokenizer_sha256:
        raise _changed(folder / "tokenizer.json", "sha256 mismatch")
    return corpus


def _changed(path: Path, what: str) -> InputError:
    return InputError(f"changed since it was prepared ({what})", file=path, hint=PREPARE_AGAIN)


def _sample(chunks: int) -> list[int]:
    """Numbers of the chunks to verify: all, or of many the first, the last and a random sample."""
    if chunks <= SAMPLED_CHUNKS:
        return list(range(chunks))
    return [0, *sorted(random.sample(range(1, chunks - 1), SAMPLED_CHUNKS - 2)), chunks - 1]


def hashes_of(path: Path) -> tuple[str, list[str]]:
    """Compute sha256 of a file and of each chunk of `CHUNK_BYTES`, as recorded in `corpus.json`."""
    complete, chunks = hashlib.sha256(), []
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            complete.update(chunk)
            chunks.append(hashlib.sha256(chunk).hexdigest())
    return complete.hexdigest(), chunks


def _corpus(folder: Path, content: dict[str, Any]) -> Corpus:
    tokenizer = content["tokenizer"]
    dtype = str(content["dtype"])
    if dtype not in DTYPES:
        raise unexpected("dtype", dtype, f"one of {', '.join(DTYPES)}")
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
        raise unexpected(name, repr(value), "an integer of at least 0")
    return value


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    if size != expected:
        raise InputError(file=path, expected=f"{expected} bytes (corpus.json)", found=size, hint=PREPARE_AGAIN)


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
