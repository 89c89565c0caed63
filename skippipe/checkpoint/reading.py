"""Finding and loading checkpoints: complete ones only, verified before use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skippipe._scheduler import Plan
from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory, iteration_of
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.manifest import MANIFEST, Manifest, check_files, read_checked, read_manifest
from skippipe.checkpoint.state import STATE, TrainingState, parse_state
from skippipe.errors import InputError, unexpected
from skippipe.model.families import family_of

if TYPE_CHECKING:
    from torch import Tensor

PLAN, PLANS, TOKENIZER = "plan.json", "plans.json", "tokenizer.json"
"""Files of a checkpoint other than manifest, state and tensors."""
SHARED = "all nodes must share one folder"
WEIGHTS = "weights"
"""Prefix of weight names in tensor files; the rest is the name in transformers' state dict."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    state: TrainingState
    manifest: Manifest
    skipped: tuple[str, ...] = ()
    """newer checkpoints of the run that were skipped, with reasons"""

    @property
    def plan(self) -> Plan:
        """The plan in use when it was saved."""
        return Plan.from_json(read_checked(self.path, PLAN, self.manifest).decode())

    @property
    def plans(self) -> dict[str, Plan]:
        """The plans of all phases of the run, by the hashes of their planning requests."""
        others: dict[str, Any] = {}
        if PLANS in self.manifest.files:
            others = json.loads(read_checked(self.path, PLANS, self.manifest))
        return {request: Plan.from_json(json.dumps(plan)) for request, plan in others.items()} | {
            self.state.planning: self.plan
        }

    @property
    def model(self) -> dict[str, Any]:
        """Settings of a model that consists of the layers that have joined, named as in transformers."""
        model, kinds = self.state.model, self.state.model.get("layer_types")
        own_kinds = {} if kinds is None else {"layer_types": [kinds[layer] for layer in self.state.layers]}
        return model | {"num_hidden_layers": len(self.state.layers)} | own_kinds

    def load_model(self, tensors: Mapping[str, "Tensor"]) -> None:
        """Fill the weights of such a model in place, as `load` does: its layers are numbered from 0."""
        family, layers = family_of(self.state.model["model_type"]), self.state.layers
        self.load({family.renumbered(name, layers.__getitem__): tensor for name, tensor in tensors.items()})

    @property
    def tokenizer_json(self) -> str | None:
        """The tokenizer of the corpus, if stored."""
        if TOKENIZER not in self.manifest.files:
            return None
        return read_checked(self.path, TOKENIZER, self.manifest).decode()

    def load(self, tensors: Mapping[str, "Tensor"], prefix: str = WEIGHTS) -> None:
        """Fill tensors in place.

        Args:
            tensors: by name; weights use the names of transformers' state dict. A tensor that shares memory with
                another, such as a tied head, needs no entry of its own.
            prefix: `weights`, or the prefix of `skippipe.train`'s optimizer state.

        Raises:
            InputError: a tensor is missing or has a different shape; the message names it.

        """
        # Imported late: the supervisor looks for checkpoints without torch.
        import torch  # noqa: PLC0415

        from skippipe.checkpoint.tensors import open_tensors  # noqa: PLC0415

        with open_tensors(self.path, self.manifest) as saved, torch.no_grad():
            loaded: set[int] = set()
            for name in sorted(tensors, key=lambda name: f"{prefix}/{name}" not in saved):
                tensor, key = tensors[name], f"{prefix}/{name}"
                if key not in saved and tensor.data_ptr() in loaded:
                    continue
                loaded.add(tensor.data_ptr())
                if key not in saved:
                    raise InputError("no such tensor: checkpoint of another model", key=key, file=self.path)
                if saved.shape(key) != tuple(tensor.shape):
                    raise unexpected(key, saved.shape(key), f"shape {tuple(tensor.shape)}", self.path)
                tensor.copy_(saved.read(key))


def open_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """Open a checkpoint, or the latest complete one of a run.

    Args:
        path: folder of a checkpoint or of a run.
        key: file with the signing key; None: the user's default key.

    Raises:
        InputError: there is no complete checkpoint; the message gives the reasons.

    """
    secret = load_key(key)
    if (path / MANIFEST).exists():
        return _open(path, secret)
    if not path.is_dir():
        raise InputError(f"no such folder: {path}", key="checkpoint")
    newest, damaged = latest_complete(CheckpointDirectory(path / CHECKPOINTS), secret)
    if newest is not None:
        return replace(newest, skipped=tuple(damaged))
    if damaged:
        raise InputError(f"no complete checkpoint in {path}: {'; '.join(damaged)}", key="checkpoint")
    raise unexpected("checkpoint", f"{path} with neither", f"a folder with {MANIFEST} or {CHECKPOINTS}/")


def latest_complete(
    directory: CheckpointDirectory, secret: bytes, checked: str | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """Find the latest complete checkpoint of a run, and the reasons why newer ones were skipped.

    Args:
        directory: the run's checkpoints.
        secret: the signing key.
        checked: hash of a manifest whose files were verified a moment ago and need no second hashing.

    """
    damaged: list[str] = []
    for path in directory.all():
        try:
            return _open(path, secret, checked), damaged
        except InputError as error:
            damaged.append(str(error))
    return None, damaged


def open_shared(path: Path, manifest_sha256: str, secret: bytes) -> Checkpoint:
    """Open a checkpoint whose files another process has verified, given its manifest's hash.

    Raises:
        InputError: not visible on this node, a different one, or signed with a different key.

    """
    if not path.is_dir():
        raise InputError("not visible on this node", file=path, hint=SHARED)
    manifest = read_manifest(path, secret)
    if manifest.sha256 != manifest_sha256:
        raise InputError("differs from the checkpoint on rank 0", file=path, hint=SHARED)
    return _checkpoint(path, manifest)


def _open(path: Path, secret: bytes, checked: str | None = None) -> Checkpoint:
    manifest = read_named_manifest(path, secret)
    if manifest.sha256 != checked:
        check_files(path, manifest)
    _check_finite(path, manifest)
    return _checkpoint(path, manifest)


def read_named_manifest(path: Path, secret: bytes) -> Manifest:
    """Read a manifest as `read_manifest` does; raises also if the folder's name is that of another iteration."""
    manifest = read_manifest(path, secret)
    if iteration_of(path) not in (-1, manifest.iteration):
        raise InputError(f"checkpoint of iteration {manifest.iteration} under another name", file=path)
    return manifest


def _check_finite(path: Path, manifest: Manifest) -> None:
    from skippipe.checkpoint.tensors import open_tensors  # noqa: PLC0415 - takes torch

    with open_tensors(path, manifest) as saved:
        saved.check_finite()


def _checkpoint(path: Path, manifest: Manifest) -> Checkpoint:
    return Checkpoint(path, parse_state(read_checked(path, STATE, manifest), path / STATE), manifest)
