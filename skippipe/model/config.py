"""Settings of `skippipe export`."""

from dataclasses import dataclass

from omegaconf import MISSING

from skippipe.config import setting

DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ExportJob:
    """Settings of `skippipe export`."""

    checkpoint: str = MISSING
    """a checkpoint, or a run's folder for its latest complete one"""
    output: str = MISSING
    """output folder, new or empty"""
    dtype: str = setting("float32", choices=DTYPES)
    """dtype of the weights: float32, bfloat16 or float16"""
    key: str | None = None
    """file with the key that checkpoints are signed with; null: the user's own (~/.config/skippipe)"""
