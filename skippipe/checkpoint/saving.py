"""Saves checkpoints in the background.

Even the copy of the tensors overlaps with the next iteration, which changes them only at its end. Saving is collective:
each rank saves its own tensors, in a background thread and over a separate process group. A failure on one rank is
reported on all of them and leaves earlier checkpoints intact.
"""

import contextlib
import json
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.checkpoint.exchange import ExchangeError, gather_json
from skippipe.checkpoint.manifest import MANIFEST, FileRecord, Manifest, hash_file, parse_file_record
from skippipe.checkpoint.reading import PLAN, PLANS, TOKENIZER
from skippipe.checkpoint.state import STATE, TrainingState
from skippipe.checkpoint.tensors import TENSORS, tensor_file, write_tensors
from skippipe.errors import SchedulerError, unexpected
from skippipe.files import write_synced
from skippipe.model.finite import describe_non_finite, is_finite


class SavingError(SchedulerError, RuntimeError):
    """A checkpoint could not be saved; the message names rank and reason."""


@dataclass(frozen=True)
class CheckpointContents:
    """Contents of a checkpoint other than tensors; rank 0 writes them."""

    state: TrainingState
    plan: str
    """skippipe.plan/1"""
    other_plans: Mapping[str, str]
    """those of the run's other phases, by the hashes of their planning requests"""
    tokenizer: str | None
    """tokenizer.json"""


@dataclass(frozen=True)
class SaveResult:
    """Outcome of a save."""

    iteration: int
    path: Path
    blocked_s: float
    """time for which training was blocked"""
    seconds: float
    """duration of the save in the background"""
    bytes: int
    error: SavingError | None


class CheckpointSaver:
    """Saves a run's checkpoints in the background; one instance per rank."""

    def __init__(
        self, directory: CheckpointDirectory, group: dist.ProcessGroup, *, key: bytes | None, keep: int
    ) -> None:
        """Create a saver.

        Args:
            directory: the run's checkpoints, the same folder on all ranks.
            group: all ranks, with a CPU backend; reserved for this object.
            key: the signing key; only rank 0 needs it.
            keep: number of checkpoints to keep.

        """
        self._directory, self._group, self._key, self._keep = directory, group, key, keep
        self._rank = dist.get_rank(group)
        self._thread: threading.Thread | None = None
        self._finished: list[SaveResult] = []
        self._copied = threading.Event()
        self._copied.set()
        self._blocked_s = 0.0
        self._broken: SavingError | None = None
        """set once collective saving is no longer possible"""

    @property
    def saving(self) -> bool:
        """Whether this rank is still saving."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, tensors: Mapping[str, Tensor], contents: CheckpointContents) -> None:
        """Start a save; a collective call, while no rank is saving.

        Args:
            tensors: by a name that no other rank has; they may change after `wait_copied`.
            contents: the rest.

        """
        begin = time.perf_counter()
        self.wait()
        if self._broken is not None:
            iteration = contents.state.iteration
            self._finished.append(SaveResult(iteration, self._directory.path(iteration), 0.0, 0.0, 0, self._broken))
            return
        self._copied.clear()
        # A daemon: a failing run must not wait for a save that cannot finish.
        self._thread = threading.Thread(target=self._run, args=(dict(tensors), contents), daemon=True)
        self._thread.start()
        self._blocked_s = time.perf_counter() - begin

    def wait_copied(self) -> None:
        """Wait until the tensors of the current save are copied and may change."""
        if not self._copied.is_set():
            begin = time.perf_counter()
            self._copied.wait()
            self._blocked_s += time.perf_counter() - begin

    def wait(self) -> None:
        """Wait for the current save to finish."""
        if self._thread is not None:
            self._thread.join()

    def take_results(self) -> list[SaveResult]:
        """Results of the saves that finished since the last call."""
        if self.saving:
            return []
        finished, self._finished = self._finished, []
        return [replace(saved, blocked_s=self._blocked_s) for saved in finished]

    def _run(self, tensors: dict[str, Tensor], contents: CheckpointContents) -> None:
        begin, iteration = time.perf_counter(), contents.state.iteration
        size, error = 0, None
        try:
            size = self._save(tensors, contents)
        except SavingError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001 - mostly a lost connection, which training notices too
            traceback.print_exception(failed)
            error = self._broken = SavingError(str(failed) or type(failed).__name__)
            error.__cause__ = failed if isinstance(failed, ExchangeError) else ConnectionError(str(failed))
        if error is not None and self._rank == 0:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._directory.staging(iteration))
        seconds = time.perf_counter() - begin
        self._finished.append(SaveResult(iteration, self._directory.path(iteration), 0.0, seconds, size, error))

    def _save(self, tensors: dict[str, Tensor], contents: CheckpointContents) -> int:
        """Write everything; returns the number of bytes."""
        iteration = contents.state.iteration
        staging = self._directory.staging(iteration)
        copied: dict[str, Tensor] = {}
        self._on_all_ranks(lambda: self._copy(tensors, copied))
        self._on_all_ranks(lambda: self._begin(contents) if self._rank == 0 else None)
        self._on_all_ranks(lambda: _check_visible(staging))
        self._on_all_ranks(lambda: self._write(staging, copied))
        records: dict[str, FileRecord] = {}
        for rank, own in enumerate(self._on_all_ranks(lambda: self._describe(staging))):
            records |= _parse_file_records(own, rank)
        self._on_all_ranks(lambda: self._publish(Manifest(iteration, records)) if self._rank == 0 else None)
        return sum(record.bytes for record in records.values())

    def _copy(self, tensors: Mapping[str, Tensor], copied: dict[str, Tensor]) -> None:
        """Copy and check for non-finite values: a useless checkpoint would only displace good ones."""
        try:
            for name, tensor in tensors.items():
                copied[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        finally:
            self._copied.set()
        for name, tensor in copied.items():
            if not is_finite(tensor):
                raise unexpected(name, describe_non_finite(tensor), "finite numbers")

    def _begin(self, contents: CheckpointContents) -> None:
        staging = self._directory.create_staging(contents.state.iteration)
        (staging / TENSORS).mkdir()
        contents.state.write(staging)
        write_synced(staging / PLAN, contents.plan)
        if contents.other_plans:
            plans = {request: json.loads(plan) for request, plan in contents.other_plans.items()}
            write_synced(staging / PLANS, json.dumps(plans))
        if contents.tokenizer is not None:
            write_synced(staging / TOKENIZER, contents.tokenizer)

    def _write(self, staging: Path, copied: Mapping[str, Tensor]) -> None:
        if copied:
            write_tensors(staging / tensor_file(self._rank), copied)

    def _describe(self, staging: Path) -> dict[str, Any]:
        """Size and hash of the files that this rank has written, JSON-serialisable."""
        names = [name for name in _own_files(self._rank) if (staging / name).exists()]
        return {name: asdict(hash_file(staging / name)) for name in names}

    def _publish(self, written: Manifest) -> None:
        assert self._key is not None, "rank 0 signs"
        write_synced(self._directory.staging(written.iteration) / MANIFEST, written.signed(self._key))
        self._directory.publish(written.iteration)
        self._directory.prune(self._keep)

    def _on_all_ranks(self, step: Callable[[], object]) -> list[Any]:
        """Run a step on all ranks and gather its results by rank; raises on all ranks if it fails on any.

        Results are exchanged as JSON and come from other processes: validate them before use.
        """
        mine: dict[str, Any]
        try:
            mine = {"value": step(), "error": None}
        except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer
            mine = {"value": None, "error": _reason(error)[:MAX_REASON]}
        values, failures = [], {}
        for rank, result in enumerate(gather_json(mine, self._group)):
            if not isinstance(result, dict) or result.keys() != mine.keys():
                raise SavingError(unexpected(f"rank {rank}", result, "a result"))
            values.append(result["value"])
            if result["error"] is not None:
                failures[rank] = str(result["error"])
        if failures:
            rank, reason = min(failures.items())
            raise SavingError(f"rank {rank}: {reason}")
        return values


MAX_REASON = 2000
"""characters of an error message sent to other ranks"""


def _own_files(rank: int) -> list[str]:
    """Files of a checkpoint that a rank may write."""
    return [tensor_file(rank), *((STATE, PLAN, PLANS, TOKENIZER) if rank == 0 else ())]


def _parse_file_records(value: object, rank: int) -> dict[str, FileRecord]:
    """Validate a rank's file records before they are signed."""
    records = value if isinstance(value, dict) else {}
    if not records.keys() <= set(_own_files(rank)):
        raise SavingError(unexpected(f"rank {rank}", ", ".join(map(str, records)), "files of its own"))
    try:
        return {name: parse_file_record(record) for name, record in records.items()}
    except ValueError as error:
        raise SavingError(f"rank {rank}: {error}") from None


def _check_visible(staging: Path) -> None:
    if not staging.is_dir():
        raise RuntimeError(
            f"{staging}, created by rank 0, is not visible on this node; all nodes must share one folder"
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__
