"""Settings of `skippipe evaluate`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import AT_LEAST_1, Range, setting
from skippipe.data.config import DataConfig
from skippipe.devices import AUTOCASTS, DTYPES

UNITS = ("layers", "stages")


@dataclass
class EvaluateJob:
    """`skippipe evaluate`: perplexity of a model with stages or layers left out, in many draws, with intervals."""

    checkpoint: str | None = None
    """a checkpoint, or a run's folder: the newest whole one of it"""
    model_folder: str | None = None
    """a folder that transformers has written, in place of checkpoint; model= is the same"""
    compare: list[str] = field(default_factory=list)
    """folders of finished evaluations, in place of a model: one table and one picture of all of them"""
    omit: list[str] = field(default_factory=lambda: ["none", "random:0.25", "random:0.5"])
    """what is left out, each word evaluated by itself: none, random:SHARE, every:K, last:N (early exit),
    stages:2+5, layers:3+7, lost:STAGE or lost:NODE, swap:STAGE (it and the next one), swaps:N (random ones)"""
    unit: str = setting("layers", choices=UNITS)
    """layers or stages: what random, every and last count"""
    keep_first: bool = True
    """random, every and swaps leave stage 0 alone (CC1), while the share is still one of all layers or stages"""
    draws: int = setting(20, within=AT_LEAST_1)
    """different draws of random and swaps; where there are no more than that, all"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of the draws, and of the intervals"""
    layers: list[int] | None = setting(None, within=AT_LEAST_1)
    """decoder layers of each stage, e.g. [2,2,2]; null: as the checkpoint was trained; of a folder, one for each"""
    data: DataConfig = field(default_factory=DataConfig)
    """the text: its validation part; data.sequence left as it is: as long as the checkpoint was trained with"""
    batch: int = setting(16, within=AT_LEAST_1)
    """sequences at a time"""
    device: str = "auto"
    """cpu, cuda, cuda:1 and so on; auto: a GPU if there is one"""
    dtype: str = setting("float32", choices=tuple(DTYPES))
    """numbers of the weights"""
    autocast: str | None = setting(None, choices=AUTOCASTS)
    """compute in this type where torch's autocast does; null: in dtype"""
    compile: bool = False
    """compile layers and loss with torch.compile"""
    key: str | None = None
    """the file with the secret that the checkpoint is signed with; null: the user's own (~/.config/skippipe)"""
    output: str = MISSING
    """the folder of results, table and picture; one that holds some of them is gone on with"""
