"""Checkpoints of a training run: saved in the background, verified on load, resharded onto any model partition."""

from skippipe.checkpoint.reading import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
