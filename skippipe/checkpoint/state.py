"""What a checkpoint says beside its tensors: how far training was, and of what."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skippipe.errors import InputError
from skippipe.files import write_synced

STATE = "state.json"


@dataclass(frozen=True)
class TrainingState:
    """Where a training stands after whole iterations.

    Random numbers need no more than the seed: each iteration begins with generators seeded by run, iteration and rank.
    """

    iteration: int
    """iterations done"""
    tokens: int
    """tokens trained on, over all of them; the learning rate depends on it"""
    position: int
    """blocks of text used: places in the endless sequence of epochs"""
    seed: int
    """of the run"""
    text: str
    """hash of the text"""
    model: dict[str, Any]
    """every setting of the model, by the names of transformers"""
    planning: str
    """hash of what the plan was asked for"""

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint's folder."""
        write_synced(folder / STATE, json.dumps(asdict(self), indent=1) + "\n")


def parse_state(text: bytes, path: Path) -> TrainingState:
    """Make sense of what was written; `path` is for messages."""
    content = json.loads(text)
    missing = [item.name for item in fields(TrainingState) if item.name not in content]
    if missing:
        raise InputError(f"{path}: has no {missing[0]}: it was written by another version of skippipe")
    return TrainingState(**{item.name: content[item.name] for item in fields(TrainingState)})
