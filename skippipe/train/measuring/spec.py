"""What a measurement needs to know; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skippipe._scheduler import Cluster
from skippipe.devices import Precision
from skippipe.train.resolve.spec import CommunicationSpec, DeviceSpec, LaunchSpec


@dataclass(frozen=True)
class ProfileSpec:
    """What figures depend on beside model and machines."""

    microbatch_size: int
    """sequences"""
    sequence: int
    """tokens"""
    precision: Precision
    device: DeviceSpec
    communication: CommunicationSpec
    memory_bytes: float | None
    """that each process may use; None: what is free"""
    stages: int | None
    """that the figures hold for; None: as many as a plan has by default"""


@dataclass(frozen=True)
class MeasureSpec:
    """A job of `skippipe measure`."""

    profile: ProfileSpec
    model: Mapping[str, Any]
    """as `skippipe.model.settings` takes it"""
    network: Cluster
    """names of the nodes of a local measurement, and links to be emulated"""
    launch: LaunchSpec
    settings: Mapping[str, str]
    """that have to be equal on all ranks, as JSON"""
