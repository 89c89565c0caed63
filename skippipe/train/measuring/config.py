"""Settings of `skippipe measure`; those that training has as well are called the same."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from skippipe.config import AT_LEAST_1, ClusterConfig, setting
from skippipe.data.config import DataConfig
from skippipe.devices import DTYPES
from skippipe.train.config import RuntimeConfig, TrainConfig


@dataclass
class MeasuredData:
    """Length of the sequences; their tokens are random."""

    sequence: int = setting(DataConfig.sequence, within=AT_LEAST_1)
    """tokens per sequence"""


@dataclass
class MeasuredTraining:
    """What times and sizes depend on."""

    microbatch_size: int = setting(TrainConfig.microbatch_size, within=AT_LEAST_1)
    """sequences per microbatch"""
    dtype: str = setting(TrainConfig.dtype, choices=tuple(DTYPES))
    """dtype of weights and gradients"""


@dataclass
class MeasureJob:
    """Settings of `skippipe measure`."""

    output: str | None = None
    """cluster file to write; null: only show the result"""
    stages: int | None = setting(None, within=AT_LEAST_1)
    """number of stages that the times in the file hold for; plans for other numbers convert them; null: as
    `skippipe plan` chooses it"""
    cluster: ClusterConfig = MISSING
    """names of the nodes of a local measurement (under torchrun runtime.node names them); links to be emulated"""
    model: dict[str, Any] = field(default_factory=dict)
    """the model: model_type and its settings, named as in transformers; +model.KEY=VALUE adds one"""
    data: MeasuredData = field(default_factory=MeasuredData)
    """sequence length"""
    train: MeasuredTraining = field(default_factory=MeasuredTraining)
    """microbatches and dtype"""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """processes, devices and communication, as in the training to come"""
