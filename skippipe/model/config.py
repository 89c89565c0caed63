"""Settings of `skippipe export`."""

from dataclasses import dataclass

from omegaconf import MISSING

from skippipe.config import setting

DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ExportJob:
    """`skippipe export`: write the model of a checkpoint as a folder that transformers reads."""

    checkpoint: str = MISSING
    """a checkpoint, or the folder of a run: its newest complete one"""
    output: str = MISSING
    """the folder, new or empty"""
    dtype: str = setting("float32", choices=DTYPES)
    """dtype of the weights: float32, bfloat16 or float16"""
    key: str | None = None
    """the file with the secret that the checkpoint is signed with; null: the user's own (~/.config/skippipe)"""
