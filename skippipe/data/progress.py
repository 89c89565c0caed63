"""A folder in which a text is being prepared: whose it is, how far it has come, tokens appended so that they hold.

Tokens go to `SPLIT.tokens.part`. Every few seconds that file is synced, and then `progress.json` says how much of it
holds and which pieces of the input that was; what was written after is cut off when the work goes on.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from skippipe.data.chunks import Chunk
from skippipe.data.corpus import SPLITS, Split
from skippipe.data.corpus_spec import CorpusSpec
from skippipe.errors import InputError, SchedulerError
from skippipe.files import locked, read_json_object, remove_leftovers

FORMAT = "skippipe.data-progress/2"


class StorageError(SchedulerError, RuntimeError):
    """The folder cannot be written any more; what was written before holds."""


@dataclass
class SplitProgress:
    """How far a split has come."""

    tokens: int = 0
    bytes: int = 0
    """of text, as UTF-8"""
    documents: list[int] = field(default_factory=list)
    """of each source that has been begun"""
    chunks: int = 0
    """of the last one of these"""
    whole: bool = False

    def add(self, number: int, chunk: Chunk) -> None:
        """Count a piece of source `number`."""
        if len(self.documents) <= number:
            self.documents += [0] * (number + 1 - len(self.documents))
            self.chunks = 0
        self.chunks += 1
        self.documents[number] += chunk.last
        self.bytes += len(chunk.text.encode())

    def documents_of(self, inputs: int) -> list[int]:
        """Documents of each of all sources."""
        return self.documents + [0] * (inputs - len(self.documents))


@dataclass
class PreparationState:
    """What `progress.json` says beside the recipe."""

    written: dict[Split, SplitProgress]
    tokenizer: str | None = None
    """sha256 of the tokenizer, once it is written"""

    @staticmethod
    def of(folder: Path, spec: CorpusSpec) -> "PreparationState":
        """Take up what lies in a folder, or begin in an empty one.

        Raises:
            InputError: something else lies there, or it was begun with something else.

        """
        path = folder / "progress.json"
        for name in (path.name, "tokenizer.json", "corpus.json"):
            remove_leftovers(folder, name)
        if path.exists():
            content = read_json_object(str(path))
            check_same(folder, content, spec)
            try:
                return PreparationState(
                    {s: SplitProgress(**content["written"][s]) for s in SPLITS}, content["tokenizer"]
                )
            except (KeyError, TypeError):
                raise InputError(f"{path}: cannot be read; remove {folder} to begin anew") from None
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no prepared text, a new folder is expected")
        return PreparationState({split: SplitProgress() for split in SPLITS})

    def to_json(self) -> dict[str, Any]:
        """Write it, but for the recipe."""
        written = {split: asdict(self.written[split]) for split in SPLITS}
        return {"tokenizer": self.tokenizer, "written": written}


def check_same(folder: Path, content: dict[str, Any], spec: CorpusSpec) -> None:
    """Raise `InputError` unless a folder was begun with the same input as is given now."""
    try:
        difference = CorpusSpec.read(content).difference(spec)
    except (KeyError, TypeError, AttributeError):
        difference = "what it was made from cannot be read"
    if difference is not None:
        raise InputError(
            f"{folder} was made from other input: {difference}; name another folder, or remove it to begin anew"
        )


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and keep others from preparing a text there; raises `InputError`.

    A folder that is made here goes again where the input is refused: the mended input would not fit what it holds.
    """
    new = not folder.exists()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder, f"{folder}: another process is preparing a text there"))
        except OSError as error:
            raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
        try:
            yield
        except InputError:
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            raise


@contextlib.contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Turn what a disk refuses into one message; raises `InputError` where it could never be written."""
    try:
        yield
    except BrokenPipeError:  # who reads our output has gone
        raise
    except OSError as error:
        place = f"{error.filename or folder}: cannot be written: {error.strerror or error}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(place) from None
        raise StorageError(f"{place}; what was prepared so far is kept, the same command goes on from there") from None


@contextlib.contextmanager
def opened_at(path: Path, size: int) -> Iterator[BinaryIO]:
    """Open a file to append to its first `size` bytes, what comes after is cut off; raises `InputError` if shorter."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        there = file.seek(0, os.SEEK_END)
        if there < size:
            raise InputError(
                f"{path}: has {there} bytes, {size} are expected by progress.json; remove {path.parent} to begin anew"
            )
        file.truncate(size)
        file.seek(size)
        yield file
