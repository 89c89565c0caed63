"""Checkpoints found and read, by any process: whole ones only, checked before anything of them is used."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skippipe._scheduler import Plan
from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory, iteration_of
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.manifest import MANIFEST, Manifest, check_files, read_checked, read_manifest
from skippipe.checkpoint.state import STATE, TrainingState, parse_state
from skippipe.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

PLAN, TOKENIZER = "plan.json", "tokenizer.json"
"""What lies in the folder of a checkpoint, beside manifest, state and tensors."""
WEIGHTS = "weights"
"""What the names of weights begin with, before those that transformers has for them"""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are those that were written."""

    path: Path
    state: TrainingState
    manifest: Manifest
    skipped: tuple[str, ...] = ()
    """what is wrong with newer ones of the same run"""

    @property
    def plan(self) -> Plan:
        """The plan that was trained by."""
        return Plan.from_json(read_checked(self.path, PLAN, self.manifest).decode())

    @property
    def tokenizer_json(self) -> str | None:
        """The tokenizer of the text, where one is kept."""
        if TOKENIZER not in self.manifest.files:
            return None
        return read_checked(self.path, TOKENIZER, self.manifest).decode()

    def load(self, tensors: Mapping[str, "Tensor"], part: str = WEIGHTS) -> None:
        """Fill tensors in place.

        Args:
            tensors: by name; weights bear the names of transformers' state dict. One that shares its memory with
                another, as a tied head does with the embedding, may have no entry of its own.
            part: what is read, `weights` or what `skippipe.train` keeps of its optimizer.

        Raises:
            InputError: a tensor is missing or has another shape; the message names it.

        """
        # Imported here, as torch is everywhere in this package: the supervisor looks for checkpoints without it.
        import torch  # noqa: PLC0415

        from skippipe.checkpoint.tensors import open_tensors  # noqa: PLC0415

        with open_tensors(self.path, self.manifest) as saved, torch.no_grad():
            met: set[int] = set()
            for name in sorted(tensors, key=lambda name: f"{part}/{name}" not in saved):
                tensor, key = tensors[name], f"{part}/{name}"
                if key not in saved and tensor.data_ptr() in met:
                    continue
                met.add(tensor.data_ptr())
                if key not in saved:
                    raise InputError(f"{self.path}: has no tensor {key}: it is of another model")
                if saved.shape(key) != tuple(tensor.shape):
                    raise InputError(
                        f"{self.path}: {key} has shape {saved.shape(key)}, {tuple(tensor.shape)} is expected"
                    )
                tensor.copy_(saved.read(key))


def open_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """Open a checkpoint, or the newest whole one of a run.

    Args:
        path: folder of a checkpoint, or of a run.
        key: file with the secret that it is signed with; None: the user's own.

    Raises:
        InputError: there is none that is whole; the message says what is wrong with it.

    """
    secret = load_key(key)
    if (path / MANIFEST).exists():
        return _open(path, secret)
    if not path.is_dir():
        raise InputError(f"checkpoint={path}: there is no such folder")
    newest, damaged = latest_complete(CheckpointDirectory(path / CHECKPOINTS), secret)
    if newest is not None:
        return replace(newest, skipped=tuple(damaged))
    if damaged:
        raise InputError(f"checkpoint={path}: none of its checkpoints is whole: {'; '.join(damaged)}")
    raise InputError(f"checkpoint={path}: neither {MANIFEST} nor checkpoints in {CHECKPOINTS} are there")


def latest_complete(
    directory: CheckpointDirectory, secret: bytes, checked: str | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """Find the newest whole checkpoint of a run, if it has one, and say what is wrong with those that are newer.

    Args:
        directory: where they are.
        secret: what they are signed with.
        checked: hash of a manifest whose files need not be hashed, since they have been a moment ago.

    """
    damaged: list[str] = []
    for path in directory.all():
        try:
            return _open(path, secret, checked), damaged
        except InputError as error:
            damaged.append(str(error))
    return None, damaged


def open_shared(path: Path, manifest_sha256: str, secret: bytes) -> Checkpoint:
    """Open a checkpoint whose files another process has checked, who says what its manifest's hash is.

    Raises:
        InputError: it is not to be seen here, it is another one, or it is not signed with the same secret.

    """
    if not path.is_dir():
        raise InputError(f"{path}: is not to be seen here; all nodes have to see the same folder")
    manifest = read_manifest(path, secret)
    if manifest.sha256 != manifest_sha256:
        raise InputError(f"{path}: is another checkpoint here than on rank 0; all nodes have to see the same folder")
    return _checkpoint(path, manifest)


def _open(path: Path, secret: bytes, checked: str | None = None) -> Checkpoint:
    manifest = read_named_manifest(path, secret)
    if manifest.sha256 != checked:
        check_files(path, manifest)
    _check_finite(path, manifest)
    return _checkpoint(path, manifest)


def read_named_manifest(path: Path, secret: bytes) -> Manifest:
    """Read a checkpoint's manifest; raises as `read_manifest` does, and where the folder has the name of another."""
    manifest = read_manifest(path, secret)
    if iteration_of(path) not in (-1, manifest.iteration):
        raise InputError(f"{path}: is a checkpoint of iteration {manifest.iteration} under the name of another")
    return manifest


def _check_finite(path: Path, manifest: Manifest) -> None:
    from skippipe.checkpoint.tensors import open_tensors  # noqa: PLC0415 - takes torch

    with open_tensors(path, manifest) as saved:
        saved.check_finite()


def _checkpoint(path: Path, manifest: Manifest) -> Checkpoint:
    return Checkpoint(path, parse_state(read_checked(path, STATE, manifest), path / STATE), manifest)
