"""Settings of `skippipe export`."""

from dataclasses import dataclass

from omegaconf import MISSING

from skippipe.config import setting

DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ExportJob:
    """Settings of `skippipe export`."""

    checkpoint: str = MISSING
    """a checkpoint, or a run's folder: the newest whole one of it"""
    output: str = MISSING
    """the folder; a new or an empty one"""
    dtype: str = setting("float32", choices=DTYPES)
    """numbers of the weights: float32, bfloat16 or float16"""
    key: str | None = None
    """the file with the secret that the checkpoint is signed with; null: the user's own (~/.config/skippipe)"""
