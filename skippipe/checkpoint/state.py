"""Training state of a checkpoint, other than its tensors."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skippipe.errors import InputError
from skippipe.files import write_synced

STATE = "state.json"


@dataclass(frozen=True)
class TrainingState:
    """State of training between two iterations.

    The seed suffices for random numbers: each iteration seeds its generators by run, iteration and rank.
    """

    iteration: int
    """iterations completed"""
    tokens: int
    """tokens trained on so far; the learning rate depends on it"""
    position: int
    """blocks consumed, over all epochs"""
    seed: int
    """of the run"""
    text: str
    """hash of the corpus"""
    model: dict[str, Any]
    """every model setting, named as in transformers"""
    planning: str
    """hash of the planning request"""
    layers: list[int]
    """decoder layers that have joined, in order; the checkpoint has no tensors of others"""
    new_layers: str
    """how the others join: `init` or `copy`"""
    loss_scale: float | None = None
    """of the next iteration; None: losses are not scaled"""
    loss_scale_iterations: int = 0
    """without overflow since the loss scale last changed"""

    def write(self, folder: Path) -> None:
        """Write it to a checkpoint's folder."""
        write_synced(folder / STATE, json.dumps(asdict(self), indent=1) + "\n")


def parse_state(text: bytes, path: Path) -> TrainingState:
    """Parse the file's text; `path` is for messages."""
    content = json.loads(text)
    missing = [item.name for item in fields(TrainingState) if item.name not in content]
    if missing:
        raise InputError("no such key: written by another version of skippipe", key=missing[0], file=path)
    return TrainingState(**{item.name: content[item.name] for item in fields(TrainingState)})
