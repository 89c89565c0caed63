"""Settings of `skippipe evaluate`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import AT_LEAST_1, Range, setting
from skippipe.data.config import DataConfig
from skippipe.devices import AUTOCASTS, DTYPES

UNITS = ("layers", "stages")


@dataclass
class EvaluateJob:
    """`skippipe evaluate`: perplexity of a model with layers or stages skipped, with confidence intervals."""

    checkpoint: str | None = None
    """checkpoint, or folder of a run: its latest complete checkpoint"""
    model_folder: str | None = None
    """transformers folder, instead of checkpoint; model= is an alias"""
    compare: list[str] = field(default_factory=list)
    """folders of finished evaluations to compare in one table and plot, instead of a model"""
    omit: list[str] = field(default_factory=lambda: ["none", "random:0.25", "random:0.5"])
    """omissions, evaluated one at a time: none, random:SHARE, every:K, last:N (early exit), stages:2+5, layers:3+7,
    lost:STAGE or lost:NODE, swap:STAGE (with the next one), swaps:N (random ones)"""
    unit: str = setting("layers", choices=UNITS)
    """unit of random, every and last: layers or stages"""
    keep_first: bool = True
    """exempt stage 0 from random, every and swaps (CC1); shares still refer to all layers or stages"""
    draws: int = setting(20, within=AT_LEAST_1)
    """number of different draws of random and swaps; all if there are no more"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of draws and bootstrap"""
    layers: list[int] | None = setting(None, within=AT_LEAST_1)
    """decoder layers of each stage, e.g. [2,2,2]; null: as trained; for a transformers folder one per stage"""
    data: DataConfig = field(default_factory=DataConfig)
    """corpus; its validation split is used; default data.sequence: that of the checkpoint's training"""
    batch: int = setting(16, within=AT_LEAST_1)
    """sequences per batch"""
    device: str = "auto"
    """cpu, cuda, cuda:1 etc.; auto: a GPU if available"""
    dtype: str = setting("float32", choices=tuple(DTYPES))
    """dtype of the weights"""
    autocast: str | None = setting(None, choices=AUTOCASTS)
    """autocast dtype; null: no autocast"""
    compile: bool = False
    """compile layers and loss with torch.compile"""
    key: str | None = None
    """file with the key that signed the checkpoint; null: the user's default key (~/.config/skippipe)"""
    output: str = MISSING
    """output folder; an unfinished evaluation resumes"""
