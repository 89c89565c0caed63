"""Saves checkpoints while training goes on.

Even the copying of tensors runs beside the next iteration, which changes them only at its end. All ranks save
together, each what it is given, in a thread of its own and over a process group of its own. What goes wrong on one of
them is known to all, and leaves what stood before as it was.
"""

import contextlib
import io
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from skippipe.checkpoint import manifest
from skippipe.checkpoint.manifest import FileNote, Manifest, describe
from skippipe.checkpoint.reading import PLAN, TENSORS, TOKENIZER
from skippipe.checkpoint.shelf import Shelf
from skippipe.checkpoint.state import State
from skippipe.errors import SchedulerError
from skippipe.files import write_synced

T = TypeVar("T")


class SavingError(SchedulerError, RuntimeError):
    """A checkpoint could not be saved; the message names rank and reason."""


@dataclass(frozen=True)
class Contents:
    """What a checkpoint is to hold; the tensors of each rank are its own, the rest is rank 0's to write."""

    state: State
    plan: str
    """skippipe.plan/1"""
    tokenizer: str | None
    """tokenizer.json"""


@dataclass(frozen=True)
class Saved:
    """What became of a save."""

    iteration: int
    path: Path
    blocked_s: float
    """how long training stood still for it"""
    seconds: float
    """how long it took, beside training"""
    bytes: int
    error: SavingError | None


class Saver:
    """One rank's part in saving the checkpoints of a run."""

    def __init__(self, shelf: Shelf, group: dist.ProcessGroup, *, key: bytes | None, keep: int) -> None:
        """Prepare to save.

        Args:
            shelf: where checkpoints stand, the same folder on all ranks.
            group: all ranks, on the CPU; nobody else may use it.
            key: what manifests are signed with; rank 0 needs it, nobody else.
            keep: how many checkpoints stay.

        """
        self._shelf, self._group, self._key, self._keep = shelf, group, key, keep
        self._rank = dist.get_rank(group)
        self._thread: threading.Thread | None = None
        self._finished: list[Saved] = []
        self._copied = threading.Event()
        self._copied.set()
        self._blocked_s = 0.0
        self._broken: SavingError | None = None
        """why the ranks can no longer save together"""

    @property
    def busy(self) -> bool:
        """Whether this rank is still saving."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, tensors: Mapping[str, Tensor], contents: Contents) -> None:
        """Begin to save. All ranks call it, none of them busy.

        Args:
            tensors: by a name that no other rank has; they may change after `settle`.
            contents: the rest.

        """
        begin = time.perf_counter()
        self.wait()
        if self._broken is not None:
            iteration = contents.state.iteration
            self._finished.append(Saved(iteration, self._shelf.path(iteration), 0.0, 0.0, 0, self._broken))
            return
        self._copied.clear()
        # A daemon: where a run fails, nobody waits for a save that will never come to its end.
        self._thread = threading.Thread(target=self._run, args=(dict(tensors), contents), daemon=True)
        self._thread.start()
        self._blocked_s = time.perf_counter() - begin

    def settle(self) -> None:
        """Wait until the tensors of the latest save are copied, and may change."""
        if not self._copied.is_set():
            begin = time.perf_counter()
            self._copied.wait()
            self._blocked_s += time.perf_counter() - begin

    def wait(self) -> None:
        """Wait until nothing is being saved."""
        if self._thread is not None:
            self._thread.join()

    def take_finished(self) -> list[Saved]:
        """What has come to its end since the last call."""
        if self.busy:
            return []
        finished, self._finished = self._finished, []
        return [replace(saved, blocked_s=self._blocked_s) for saved in finished]

    def _run(self, tensors: dict[str, Tensor], contents: Contents) -> None:
        begin, iteration = time.perf_counter(), contents.state.iteration
        size, error = 0, None
        try:
            size = self._save(tensors, contents)
        except SavingError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001 - a lost connection, mostly; training meets it as well
            traceback.print_exception(failed)
            error = self._broken = SavingError(str(failed) or type(failed).__name__)
        if error is not None and self._rank == 0:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._shelf.draft(iteration))
        seconds = time.perf_counter() - begin
        self._finished.append(Saved(iteration, self._shelf.path(iteration), 0.0, seconds, size, error))

    def _save(self, tensors: dict[str, Tensor], contents: Contents) -> int:
        """Write everything; gives the number of bytes."""
        iteration = contents.state.iteration
        draft = self._shelf.draft(iteration)
        copied: dict[str, Tensor] = {}
        self._together(lambda: self._copy(tensors, copied))
        self._together(lambda: self._begin(contents) if self._rank == 0 else None)
        self._together(lambda: _check_visible(draft))
        writer = FileSystemWriter(draft / TENSORS)
        writer.fs = files = _Files()
        try:
            save(copied, storage_writer=writer, process_group=self._group)
        except CheckpointException as error:
            self._together(files.check)  # the reason, where it is the system's
            raise _first_failure({rank: failure[0] for rank, failure in error.failures.items()}) from None
        notes: dict[str, FileNote] = {}
        for own in self._together(lambda: self._describe(draft)):
            notes |= own
        self._together(lambda: self._publish(Manifest(iteration, notes)) if self._rank == 0 else None)
        return sum(note.bytes for note in notes.values())

    def _copy(self, tensors: Mapping[str, Tensor], copied: dict[str, Tensor]) -> None:
        try:
            for name, tensor in tensors.items():
                copied[name] = tensor.detach().to("cpu", copy=True)
        finally:
            self._copied.set()

    def _begin(self, contents: Contents) -> None:
        draft = self._shelf.begin(contents.state.iteration)
        contents.state.write(draft)
        write_synced(draft / PLAN, contents.plan)
        if contents.tokenizer is not None:
            write_synced(draft / TOKENIZER, contents.tokenizer)

    def _describe(self, draft: Path) -> dict[str, FileNote]:
        """Hash what this rank has written."""
        paths = list((draft / TENSORS).glob(f"__{self._rank}_*"))
        if self._rank == 0:
            paths += [path for path in draft.iterdir() if path.is_file()]
            paths += [path for path in (draft / TENSORS).iterdir() if path.name.startswith(".")]
        return {path.relative_to(draft).as_posix(): describe(path) for path in paths}

    def _publish(self, written: Manifest) -> None:
        assert self._key is not None, "rank 0 signs"
        write_synced(self._shelf.draft(written.iteration) / manifest.NAME, written.signed(self._key))
        self._shelf.publish(written.iteration)
        self._shelf.keep(self._keep)

    def _together(self, step: Callable[[], T]) -> list[T]:
        """Do something on all ranks, and give what came of it by rank; raises on all where it failed on one."""
        mine: tuple[Any, str | None]
        try:
            mine = step(), None
        except Exception as error:  # noqa: BLE001 - whatever it is: the others wait for an answer
            mine = None, _reason(error)
        everybody: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everybody, mine, group=self._group)
        failures = {rank: reason for rank, (_, reason) in enumerate(everybody) if reason is not None}
        if failures:
            raise _first_failure(failures)
        return [value for value, _ in everybody]


class _Files(FileSystem):
    """Files as torch writes them, which remember why the system refused something: torch says only that it failed."""

    def __init__(self) -> None:
        self.error: OSError | None = None

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file."""
        try:
            with super().create_stream(path, mode) as stream:
                yield cast("io.IOBase", _Stream(stream, self._note))
        except OSError as error:
            self._note(error)
            raise

    def check(self) -> None:
        """Raise what the system has said, if it has."""
        if self.error is not None:
            raise self.error

    def _note(self, error: OSError) -> None:
        self.error = self.error or error


class _Stream:
    """An open file whose failures to write are noted."""

    def __init__(self, stream: io.IOBase, note: Callable[[OSError], None]) -> None:
        self._stream: Any = stream
        self._note = note

    def write(self, data: Any) -> int:
        """Write, as files do."""
        try:
            written: int = self._stream.write(data)
        except OSError as error:
            self._note(error)
            raise
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _check_visible(draft: Path) -> None:
    if not draft.is_dir():
        raise RuntimeError(f"{draft}, which rank 0 has made, is not to be seen here: all nodes have to see one folder")


def _first_failure(failures: Mapping[int, BaseException | str]) -> SavingError:
    rank, failure = min(failures.items())
    return SavingError(f"rank {rank}: {failure if isinstance(failure, str) else _reason(failure)}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__
