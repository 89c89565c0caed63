"""Settings of `skippipe evaluate`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import AT_LEAST_1, Range, setting
from skippipe.data.config import DataConfig
from skippipe.train.config import AUTOCASTS, DTYPES

UNITS = ("layers", "stages")


@dataclass
class EvaluateJob:
    """Settings of `skippipe evaluate`."""

    checkpoint: str | None = None
    """a checkpoint, or a run's folder for its latest complete one"""
    model_folder: str | None = None
    """a transformers folder, instead of checkpoint; model= is a synonym"""
    compare: list[str] = field(default_factory=list)
    """folders of finished evaluations, instead of a model: all of them in one table and one plot"""
    omit: list[str] = field(default_factory=lambda: ["none", "random:0.25", "random:0.5"])
    """omissions to evaluate, each on its own: none, random:FRACTION, every:K, last:N (early exit), stages:2+5,
    layers:3+7, lost:STAGE or lost:NODE, swap:STAGE (with the next one), swaps:N (random ones)"""
    unit: str = setting("layers", choices=UNITS)
    """unit of random, every and last: layers or stages"""
    keep_first: bool = True
    """random, every and swaps spare stage 0 (CC1); fractions still refer to all layers or stages"""
    draws: int = setting(20, within=AT_LEAST_1)
    """distinct draws of random and swaps; all, if there are no more"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of draws and confidence intervals"""
    layers: list[int] | None = setting(None, within=AT_LEAST_1)
    """decoder layers per stage, e.g. [2,2,2]; null: as in the checkpoint; for a folder, one layer per stage"""
    data: DataConfig = field(default_factory=DataConfig)
    """the text, of which the validation part is used; data.sequence defaults to that of the checkpoint"""
    batch: int = setting(16, within=AT_LEAST_1)
    """sequences per batch"""
    device: str = "auto"
    """cpu, cuda, cuda:1 etc.; auto: a GPU if available"""
    dtype: str = setting("float32", choices=tuple(DTYPES))
    """dtype of the weights"""
    autocast: str | None = setting(None, choices=AUTOCASTS)
    """dtype of torch autocast; null: no autocast"""
    compile: bool = False
    """compile layers and loss with torch.compile"""
    key: str | None = None
    """file with the key that checkpoints are signed with; null: the user's own (~/.config/skippipe)"""
    output: str = MISSING
    """folder for results, table and plot; an unfinished evaluation is resumed"""
