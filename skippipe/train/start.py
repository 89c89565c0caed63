"""Where a run begins: at nothing, or where a checkpoint of it stands."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.reading import WEIGHTS, Checkpoint, latest_complete, open_checkpoint, open_shared
from skippipe.errors import InputError
from skippipe.train.config import CheckpointConfig
from skippipe.train.events import Event
from skippipe.train.loop import Optimization, Station
from skippipe.train.team import Team

READING_S = 3600.0
"""What is waited for rank 0 to check all files of a checkpoint."""


@dataclass(frozen=True)
class Start:
    """What a run begins with, on all ranks the same."""

    shelf: CheckpointDirectory
    """where checkpoints of this run stand"""
    checkpoint: Checkpoint | None
    """where it goes on from"""
    damaged: list[str]
    """what is wrong with newer checkpoints that were passed over"""

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return self.checkpoint.state.iteration if self.checkpoint else 0

    @property
    def tokens(self) -> int:
        """Tokens trained on."""
        return self.checkpoint.state.tokens if self.checkpoint else 0

    @property
    def position(self) -> int:
        """Blocks of text used."""
        return self.checkpoint.state.position if self.checkpoint else 0

    @property
    def kept(self) -> int:
        """Iteration whose checkpoint stands on this run's own shelf; -1 where none does."""
        own = self.checkpoint is not None and self.checkpoint.path.parent == self.shelf.folder
        return self.iteration if own else -1

    def event(self, *, plan_kept: bool) -> Event:
        """Say where the run goes on."""
        assert self.checkpoint is not None
        return {
            "event": "resumed",
            "iteration": self.iteration,
            "path": str(self.checkpoint.path),
            "damaged": self.damaged,
            "plan_kept": plan_kept,
        }

    def check(self, model: Mapping[str, Any], seed: int, text: str) -> None:
        """Raise `InputError` where the checkpoint is of another model, text or seed than the run."""
        if self.checkpoint is None:
            return
        state, path = self.checkpoint.state, self.checkpoint.path
        for key, ours in json.loads(json.dumps(dict(model))).items():
            theirs = state.model.get(key)
            if theirs != ours:
                raise InputError(f"{path}: is of another model: model.{key} is {theirs} there, here it is {ours}")
        if state.seed != seed:
            raise InputError(
                f"{path}: train.seed was {state.seed}, here it is {seed}: the order of the text depends on it"
            )
        if state.text != text:
            raise InputError(
                f"{path}: was trained on another text (data.*); to go on with its weights alone: skippipe export, "
                "then model=pretrained"
            )

    def load(self, station: Station, optimization: Optimization) -> None:
        """Fill weights and optimizer of the stages that this rank serves."""
        if self.checkpoint is None:
            return
        for number, stage in station.stages.items():
            self.checkpoint.load(dict(stage.module.named_parameters()), WEIGHTS)
            self.checkpoint.load(optimization.tensors(number), OPTIMIZER)


OPTIMIZER = "optimizer"
"""What the names of the optimizer's tensors begin with in a checkpoint."""


def find_start(config: CheckpointConfig, folder: Path, team: Team) -> Start:
    """Find out where a run begins: rank 0 looks, and all ranks see that they see the same.

    Args:
        config: the settings.
        folder: of the run, on rank 0.
        team: all ranks.

    Raises:
        InputError: there are checkpoints but none is whole, or one is not to be seen from this rank.

    """
    text = team.share("start", lambda: json.dumps(_look(config, folder, team.place.checked)), READING_S)
    found = json.loads(text)
    run = Path(found["shelf"]).parent
    if config.enabled and not run.is_dir():
        raise InputError(
            f"{run}, the folder of the run on rank 0, is not to be seen here: all nodes have to see it, on a shared "
            "file system, or checkpoint.enabled=false"
        )
    checkpoint = None
    if found["path"] is not None:
        checkpoint = open_shared(Path(found["path"]), found["manifest_sha256"], load_key(config.key))
    return Start(CheckpointDirectory(Path(found["shelf"])), checkpoint, found["damaged"])


def _look(config: CheckpointConfig, folder: Path, checked: str | None) -> dict[str, Any]:
    shelf = CheckpointDirectory(folder.resolve() / CHECKPOINTS)
    if config.enabled:
        load_key(config.key)  # that there is none is to be known before anything else
    newest: Checkpoint | None = None
    damaged: list[str] = []
    if shelf.all():
        newest, damaged = latest_complete(shelf, load_key(config.key), checked)
        if newest is None:
            raise InputError(f"folder={folder}: none of its checkpoints is whole: {'; '.join(damaged)}")
    elif config.resume is not None:
        newest = open_checkpoint(Path(config.resume).resolve(), config.key)
    return {
        "shelf": str(shelf.folder),
        "path": None if newest is None else str(newest.path),
        "manifest_sha256": None if newest is None else newest.manifest.sha256,
        "damaged": damaged,
    }
