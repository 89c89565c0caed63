"""The workload for which a cluster's times hold, and the throughput of a plan in its terms.

The part `workload` of `skippipe.cluster/1`. Unknown values are None, never 0.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skippipe._scheduler import Cluster, Plan


@dataclass(frozen=True)
class Workload:
    """The workload for which node times and message sizes were measured or stated."""

    config_sha256: str | None = None
    """hash of the model's configuration"""
    hidden: int | None = None
    """hidden size"""
    layers: int | None = None
    """decoder layers of the model"""
    microbatch_size: int | None = None
    """sequences of a microbatch"""
    sequence: int | None = None
    """tokens of a sequence"""
    wire_dtype: str | None = None
    """dtype of messages"""
    device: str | None = None
    """device on which the stages were timed"""
    node_layers: tuple[int | None, ...] = ()
    """per node, the decoder layers for which its times hold; empty: unknown"""
    sources: tuple[int, ...] | None = None
    """nodes timed as stage 0, embedding included; None: unknown"""

    def to_json(self) -> str:
        """Write the known values, as in a cluster file."""
        known = {key: value for key, value in dataclasses.asdict(self).items() if value not in (None, ())}
        return json.dumps(known)

    @property
    def microbatch_tokens(self) -> int | None:
        """Tokens of a microbatch."""
        if self.microbatch_size is None or self.sequence is None:
            return None
        return self.microbatch_size * self.sequence


def workload_of(cluster: Cluster) -> Workload:
    """The workload that a cluster states; all unknown if it states none."""
    if cluster.workload is None:
        return Workload()
    content: dict[str, Any] = json.loads(cluster.workload)
    sources = content.get("sources")
    return Workload(
        **content
        | {
            "node_layers": tuple(content.get("node_layers", ())),
            "sources": None if sources is None else tuple(sources),
        }
    )


def microbatch_tokens(plan: Plan) -> int | None:
    """Tokens of one microbatch, by the plan's model, else by its cluster; None: unknown."""
    model: dict[str, Any] = {} if plan.model is None else json.loads(plan.model)
    size, sequence = model.get("microbatch_size"), model.get("sequence")
    if type(size) is int and type(sequence) is int and size > 0 and sequence > 0:
        return size * sequence
    return workload_of(plan.cluster).microbatch_tokens


@dataclass(frozen=True)
class Throughput:
    """Work per second; None: unknown."""

    microbatches_per_s: float | None = None
    tokens_per_s: float | None = None


def throughput(plan: Plan, iteration_s: float | None = None) -> Throughput:
    """Throughput of a plan with iterations of `iteration_s` seconds (default: as predicted)."""
    seconds = plan.predicted.iteration_s if iteration_s is None else iteration_s
    tokens = microbatch_tokens(plan)
    if seconds <= 0:
        return Throughput()
    rate = len(plan.microbatches) / seconds
    return Throughput(rate, None if tokens is None else rate * tokens)


def skipped_executions(plan: Plan) -> float | None:
    """Fraction of (microbatch, decoder layer) executions that a plan skips; None if layers are unknown.

    The skip ratio counts stages; the two are equal if all stages have the same number of layers. Absent stages count in
    neither.
    """
    if not plan.layers:
        return None
    present = [stage for stage in range(len(plan.stages)) if stage not in plan.absent_stages]
    every = len(plan.microbatches) * sum(plan.layers[stage] for stage in present)
    executed = sum(plan.layers[stage] for microbatch in plan.microbatches for stage in microbatch.stages)
    return 1.0 - executed / every if every else None


def partition_mismatch(plan: Plan, layers: Sequence[int] | None) -> str | None:
    """Describe the stages with other layers than their node times hold for; None if there are none, or unknown.

    Args:
        plan: with its allocation and cluster.
        layers: decoder layers of each stage; None: unknown.

    """
    held = workload_of(plan.cluster).node_layers
    if not held or layers is None:
        return None
    differing: dict[tuple[int, int], list[int]] = {}
    for stage, nodes in enumerate(plan.stages):
        for then in sorted({count for count in (held[node] for node in nodes) if count not in (None, layers[stage])}):
            differing.setdefault((then, layers[stage]), []).append(stage)
    if not differing:
        return None
    parts = [
        f"{_stages(stages)} {'has' if len(stages) == 1 else 'have'} {now} decoder layer{'' if now == 1 else 's'}, "
        f"the node times hold for {then}"
        for (then, now), stages in differing.items()
    ]
    return "; ".join(parts)


def source_mismatch(plan: Plan) -> str | None:
    """Describe nodes of stage 0 timed without the embedding, and others timed with it; None: none, or unknown."""
    timed = workload_of(plan.cluster).sources
    if timed is None:
        return None
    names, served = plan.cluster.names, {node for nodes in plan.stages for node in nodes}
    without = [names[node] for node in plan.stages[0] if node not in timed]
    others = [names[node] for node in timed if node in served and node not in plan.stages[0]]
    parts = [f"times of {', '.join(without)} are without the embedding of stage 0"] if without else []
    parts += [f"times of {', '.join(others)} include the embedding of stage 0"] if others else []
    return "; ".join(parts) or None


def _stages(numbers: Sequence[int]) -> str:
    """Name stages: `stage 2`, `stages 0-3`, `stages 0, 2`."""
    if len(numbers) == 1:
        return f"stage {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"stages {numbers[0]}-{numbers[-1]}"
    return f"stages {', '.join(map(str, numbers))}"
