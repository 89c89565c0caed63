"""The result of a preset: nodes and links of a cluster, before the number of stages is known."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skippipe._scheduler import Cluster
from skippipe.config import ClusterConfig, NodeProfile, WorkloadConfig
from skippipe.errors import unexpected
from skippipe.workload import Workload

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ClusterSpec:
    """N nodes and the links between their R regions; in seconds, bytes, bytes per second."""

    names: list[str]
    forward_s: Floats
    """shape (N,)"""
    backward_s: Floats
    """shape (N,)"""
    loss_s: Floats
    """shape (N,)"""
    memory: Integers
    """shape (N,)"""
    region_of: Integers
    """shape (N,), the region of each node"""
    latency_s: Floats
    """shape (R, R), row = sender; the diagonal holds for two nodes of one region"""
    bandwidth: Floats
    """shape (R, R)"""

    def cluster(self, config: ClusterConfig, gradient_bytes: Sequence[float] = ()) -> Cluster:
        """Build the cluster with the settings common to all presets; `gradient_bytes` per stage, () = not modelled."""
        processors, nodes = config.processors, len(self.names)
        if processors is not None and len(processors) != nodes:
            raise unexpected("cluster.processors", processors, f"a list of {nodes}, one number for each node, or null")
        return Cluster(
            self.names,
            self.forward_s,
            self.backward_s,
            self.loss_s,
            self.memory,
            latency_s=self.latency_s,
            bandwidth=self.bandwidth,
            overhead_s=config.overhead_s,
            region_of=self.region_of,
            activation_bytes=config.activation_bytes,
            gradient_bytes=list(gradient_bytes),
            source=config.source or None,
            workload=self._workload(config.workload),
            processors=processors,
            contention=config.contention,
        )

    def _workload(self, config: WorkloadConfig) -> str | None:
        """The workload that the times are for; None if unknown."""
        stated = dataclasses.asdict(config)
        per_stage = stated.pop("layers_per_stage")
        node_layers = () if per_stage is None else (per_stage,) * len(self.names)
        known = Workload(**stated, node_layers=node_layers)
        return None if known == Workload() else known.to_json()


def equal_nodes(
    profile: NodeProfile, names: list[str], region_of: list[int], latency_s: Floats, bandwidth: Floats
) -> ClusterSpec:
    """Specification with the same profile for every node."""
    count = len(names)
    return ClusterSpec(
        names=names,
        forward_s=np.full(count, profile.forward_s),
        backward_s=np.full(count, profile.backward_s),
        loss_s=np.full(count, profile.loss_s),
        memory=np.full(count, profile.memory, dtype=np.int64),
        region_of=np.array(region_of, dtype=np.int64),
        latency_s=latency_s,
        bandwidth=bandwidth,
    )
