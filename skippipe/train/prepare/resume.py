"""Where a run begins: at its first iteration, or at a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.reading import WEIGHTS, Checkpoint, latest_complete, open_checkpoint, open_shared
from skippipe.errors import InputError, shown, unexpected
from skippipe.runtime.stage import Stage
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.loop import OPTIMIZER
from skippipe.train.loop.loss_scale import LossScale
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.loop.run_state import RunProgress
from skippipe.train.observe.events import RunResumed
from skippipe.train.resolve.spec import CheckpointSpec

START = "start"
"""Key under which rank 0 states where a run begins."""
READING_S = 3600.0
"""Time limit for rank 0 to verify all files of a checkpoint, and for every rank to load it."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a run begins, on all ranks the same."""

    directory: CheckpointDirectory
    """of this run's checkpoints"""
    checkpoint: Checkpoint | None
    """the one from which it resumes"""
    damaged: list[str]
    """why newer checkpoints were skipped"""

    @property
    def progress(self) -> RunProgress:
        """How far the run is."""
        if self.checkpoint is None:
            return RunProgress()
        state = self.checkpoint.state
        own = self.checkpoint.path.parent == self.directory.folder
        scale = None if state.loss_scale is None else LossScale(state.loss_scale, state.loss_scale_iterations)
        return RunProgress(
            state.iteration,
            state.tokens,
            state.position,
            state.iteration if own else -1,
            frozenset(state.layers),
            scale,
        )

    def event(self, *, plan_kept: bool) -> RunResumed:
        """Report where the run resumes."""
        assert self.checkpoint is not None
        return RunResumed(
            iteration=self.checkpoint.state.iteration,
            path=str(self.checkpoint.path),
            damaged=self.damaged,
            plan_kept=plan_kept,
        )

    def check(self, model: Mapping[str, Any], seed: int, text: str, new_layers: str) -> None:
        """Raise `InputError` if the checkpoint is of another model, text or seed, or of another way to add layers."""
        if self.checkpoint is None:
            return
        state, path = self.checkpoint.state, self.checkpoint.path
        for key, ours in json.loads(json.dumps(dict(model))).items():
            theirs = state.model.get(key)
            if theirs != ours:
                raise unexpected(f"model.{key}", ours, shown(theirs), path, "checkpoint of another model")
        if state.seed != seed:
            raise unexpected("train.seed", seed, str(state.seed), path, "the order of the text depends on it")
        if state.new_layers != new_layers and len(state.layers) < state.model["num_hidden_layers"]:
            hint = "layers are still to join"
            raise unexpected("train.new_layers", new_layers, state.new_layers, path, hint)
        if state.text != text:
            hint = "to use only its weights: skippipe export, then model=pretrained"
            raise InputError("checkpoint of another text (data.*)", file=path, hint=hint)

    def load(self, stages: Mapping[int, Stage], optimizer: StageOptimizer) -> None:
        """Load weights and optimizer state of this rank's stages, except for layers that have not joined yet."""
        if self.checkpoint is None:
            return
        for stage in stages.values():
            parameters = stage.module.parameters_of(self.checkpoint.state.layers)
            self.checkpoint.load(parameters, WEIGHTS)
            self.checkpoint.load(optimizer.tensors(parameters), OPTIMIZER)


def find_resume_point(spec: CheckpointSpec, folder: Path, rendezvous: Rendezvous) -> ResumePoint:
    """Determine where a run begins: rank 0 decides, and all ranks verify that they see the same.

    Args:
        spec: which checkpoint to resume from.
        folder: of the run, on rank 0.
        rendezvous: all ranks.

    Raises:
        InputError: there are checkpoints but none is complete, or one cannot be seen from this rank.

    """
    verified = rendezvous.rank_spec.verified
    text = rendezvous.broadcast(START, lambda: json.dumps(_look(spec, folder, verified)), READING_S)
    found = json.loads(text)
    directory = directory_of(text, spec)
    checkpoint = None
    if found["path"] is not None:
        checkpoint = open_shared(Path(found["path"]), found["manifest_sha256"], load_key(spec.key))
    return ResumePoint(directory, checkpoint, found["damaged"])


def directory_of(start: str, spec: CheckpointSpec) -> CheckpointDirectory:
    """The directory of a run's checkpoints, from what rank 0 has stated of its start.

    Raises `InputError` if this machine does not see the folder of the run, and checkpoints are to be written.
    """
    directory = Path(json.loads(start)["directory"])
    if spec.enabled and not directory.parent.is_dir():
        expected = (
            "the run's folder on rank 0 to be visible to all nodes, on a shared file system, or "
            "checkpoint.enabled=false"
        )
        raise InputError(file=directory.parent, expected=expected, found="no such folder here")
    return CheckpointDirectory(directory)


def _look(spec: CheckpointSpec, folder: Path, verified: str | None) -> dict[str, Any]:
    directory = CheckpointDirectory(folder.resolve() / CHECKPOINTS)
    if spec.enabled:
        load_key(spec.key)  # a missing key is reported before anything else
    newest: Checkpoint | None = None
    damaged: list[str] = []
    if directory.all():
        newest, damaged = latest_complete(directory, load_key(spec.key), verified)
        if newest is None:
            raise InputError(f"none of the checkpoints in {folder} is complete: {'; '.join(damaged)}", key="folder")
    elif spec.resume is not None:
        newest = open_checkpoint(Path(spec.resume).resolve(), spec.key)
    return {
        "directory": str(directory.folder),
        "path": None if newest is None else str(newest.path),
        "manifest_sha256": None if newest is None else newest.manifest.sha256,
        "damaged": damaged,
    }
