"""Which work of a GPU is recorded as CUDA graphs."""

from collections.abc import Iterable

import torch

from skippipe.devices import Precision
from skippipe.model.families import Family
from skippipe.runtime.stage import Stage
from skippipe.runtime.stage_graphs import HOST_SHARE
from skippipe.train.resolve.spec import DeviceSpec


def may_be_recorded(spec: DeviceSpec, precision: Precision, family: Family) -> bool:
    """Whether each iteration issues the same work to a GPU, and CUDA graphs are wanted.

    With experts it depends on the tokens, and with float16 on the loss scale. A layer that is recomputed saves the
    state of the random numbers, which needs the host.
    """
    gpu = spec.device.startswith("cuda") or (spec.device == "auto" and torch.cuda.is_available())
    varies = family.router is not None or precision.autocast == "float16" or spec.activation_checkpointing > 0
    return gpu and spec.cuda_graphs != "never" and not varies


def all_may_be_recorded(spec: DeviceSpec, precision: Precision, stages: Iterable[Stage]) -> bool:
    """Whether that holds for all stages of a rank."""
    return all(may_be_recorded(spec, precision, stage.module.family) for stage in stages)


def recorded_above(spec: DeviceSpec, precision: Precision, stages: Iterable[Stage]) -> float | None:
    """What `StageGraphs` takes as `host_share` for the stages of a rank; None: no stage is recorded."""
    if spec.group > 1 or not all_may_be_recorded(spec, precision, stages):
        return None
    return HOST_SHARE if spec.cuda_graphs == "auto" else 0.0
