"""Crash-safe progress of a preparation in its folder.

Tokens are appended to `SPLIT.tokens.part`. Every few seconds that file is synced; then `progress.json` records its
valid length and the chunks of the input it covers. Anything beyond is truncated when the preparation resumes.
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
from skippipe.errors import InputError, SchedulerError, unwritable
from skippipe.files import locked, read_json_object, remove_leftovers

FORMAT = "skippipe.data-progress/2"


class StorageError(SchedulerError, RuntimeError):
    """The folder cannot be written any more; earlier progress is kept."""


@dataclass
class SplitProgress:
    """Progress of a split."""

    tokens: int = 0
    bytes: int = 0
    """of text, as UTF-8"""
    documents: list[int] = field(default_factory=list)
    """of each input started"""
    chunks: int = 0
    """of the last of these inputs"""
    complete: bool = False

    def add(self, number: int, chunk: Chunk) -> None:
        """Count a chunk of input `number`."""
        if len(self.documents) <= number:
            self.documents += [0] * (number + 1 - len(self.documents))
            self.chunks = 0
        self.chunks += 1
        self.documents[number] += chunk.last
        self.bytes += len(chunk.text.encode())

    def documents_of(self, inputs: int) -> list[int]:
        """Documents of each of all inputs."""
        return self.documents + [0] * (inputs - len(self.documents))


@dataclass
class PreparationState:
    """Contents of `progress.json` other than the corpus specification."""

    written: dict[Split, SplitProgress]
    tokenizer: str | None = None
    """sha256 of the tokenizer, once written"""

    @staticmethod
    def of(folder: Path, spec: CorpusSpec) -> "PreparationState":
        """Resume in a folder, or start in an empty one.

        Raises:
            InputError: the folder holds other files, or a preparation with another specification.

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
                raise InputError("cannot be read", file=path, hint=f"remove {folder} to start over") from None
        if any(folder.iterdir()):
            raise InputError(file=folder, expected="a new folder or a prepared corpus", found="other files")
        return PreparationState({split: SplitProgress() for split in SPLITS})

    def to_json(self) -> dict[str, Any]:
        """Serialise it, without the specification."""
        written = {split: asdict(self.written[split]) for split in SPLITS}
        return {"tokenizer": self.tokenizer, "written": written}


def check_same(folder: Path, content: dict[str, Any], spec: CorpusSpec) -> None:
    """Raise `InputError` unless a folder was started with the same specification."""
    try:
        difference = CorpusSpec.read(content).difference(spec)
    except (KeyError, TypeError, AttributeError):
        difference = "its specification cannot be read"
    if difference is not None:
        hint = "choose another folder, or remove it to start over"
        raise InputError(f"prepared from other input: {difference}", file=folder, hint=hint)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Create the folder if necessary and lock it; raises `InputError`.

    If the input is refused, a folder created here is removed: it would not match the corrected input.
    """
    new = not folder.exists()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder, unwritable(folder, "another process is preparing a corpus there")))
        except OSError as error:
            raise unwritable(folder, error) from None
        try:
            yield
        except InputError:
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            raise


@contextlib.contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Turn write errors into `StorageError`, or `InputError` if the folder was never writable."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output is gone
        raise
    except OSError as error:
        failure = unwritable(error.filename or folder, error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise failure from None
        raise StorageError(f"{failure}; progress is kept, the same command resumes") from None


@contextlib.contextmanager
def opened_at(path: Path, size: int) -> Iterator[BinaryIO]:
    """Open a file for appending after its first `size` bytes, truncating the rest; raises `InputError` if shorter."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        there = file.seek(0, os.SEEK_END)
        if there < size:
            hint = f"remove {path.parent} to start over"
            raise InputError(file=path, expected=f"{size} bytes (progress.json)", found=there, hint=hint)
        file.truncate(size)
        file.seek(size)
        yield file
