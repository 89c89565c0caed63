"""Checkpoints of a training run: saved while training goes on, found again whole, read onto any cut of the model."""

from skippipe.checkpoint.reading import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
