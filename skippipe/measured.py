"""Figures of a measured cluster for stages of any size, by the part `measured` of `skippipe.cluster/1`.

A forward of a stage with l layers takes what was measured, plus the time of a layer times (l - measured layers); the
same holds for backward, optimizer step and memory. No torch.
"""

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from skippipe._scheduler import Cluster
from skippipe.allocation import even_shares
from skippipe.errors import unexpected
from skippipe.workload import workload_of

MOST_HELD = 1000
"""Microbatches of a node's memory: more would limit no plan."""


def with_layers(cluster: Cluster, layers: Sequence[Fraction | int], stages: int) -> Cluster:
    """The figures of a measured cluster for nodes that serve stages of other sizes.

    Args:
        cluster: with the part `measured`.
        layers: decoder layers of the stage that each node serves.
        stages: how many stages there are; gradients are those of equal ones.

    Raises:
        InputError: a node has no room for a single microbatch.

    """
    content: dict[str, Any] = json.loads(cluster.to_json())
    measured, workload = content["measured"], content["workload"]
    for number, (node, about, now) in enumerate(zip(content["nodes"], measured["nodes"], layers, strict=True)):
        more = float(now - workload["node_layers"][number])
        for key, per_layer in (("forward_s", "layer_forward_s"), ("backward_s", "layer_backward_s")):
            node[key] = max(node[key] + more * about[per_layer], 0.0)
        if content.get("step_s"):
            content["step_s"][number] = max(content["step_s"][number] + more * about["layer_step_s"], 0.0)
        node["memory"] = held_microbatches(about, float(now))
        if not node["memory"]:
            hint = "smaller microbatches, activation checkpointing or fewer layers per stage need less"
            room = f"room for a microbatch of a stage of {float(now):.3g} decoder layers"
            raise unexpected(f"memory of node {node['name']}", f"{about['memory_bytes']:,.0f} bytes", room, hint=hint)
    workload["node_layers"] = [int(now) if now == int(now) and now > 0 else None for now in layers]
    if content["gradient_bytes"]:
        share = workload["layers"] / stages * measured["layer_gradient_bytes"]
        content["gradient_bytes"] = [share + measured["head_gradient_bytes"], *[share] * (stages - 1)]
    return Cluster.from_json(json.dumps(content))


def held_microbatches(about: dict[str, Any], layers: float) -> int:
    """How many microbatches fit into a node's memory beside the state of a stage of so many layers."""
    free = about["memory_bytes"] - about["fixed_bytes"] - layers * about["layer_state_bytes"]
    each = about["held_bytes"] + layers * about["layer_held_bytes"]
    return max(0, min(int(free // each) if each else MOST_HELD, MOST_HELD))


def for_planning(
    cluster: Cluster, stages: int, *, total: int | None, searched: bool, node_layers: Sequence[int] | None = None
) -> Cluster:
    """The figures of a cluster for a plan; one that was not measured stays as it is.

    Args:
        cluster: of the question.
        stages: of the plan.
        total: decoder layers of the model; None: those of the cluster's workload.
        searched: whether layers are searched: the figures are then to hold for an equal share, whole or not. Otherwise
            they hold for the larger stages of a partition as even as possible.
        node_layers: decoder layers of the stage that each node serves, where an allocation is given.

    """
    workload = workload_of(cluster)
    total = total or workload.layers
    if cluster.measured is None or None in workload.node_layers or total is None or not 0 < stages <= total:
        return cluster
    share = Fraction(total, stages)
    equal = share if searched else math.ceil(share)
    found = with_layers(cluster, node_layers or [equal] * len(cluster), stages)
    content = json.loads(found.to_json())
    del content["measured"]  # a plan states figures that hold for it
    return Cluster.from_json(json.dumps(content))


def layers_by_node(stages: Sequence[Sequence[int]], layers: Sequence[int], cluster: Cluster) -> list[int] | None:
    """Decoder layers of the stage that each node serves, one where it serves none; None: not known.

    Args:
        stages: nodes of each stage.
        layers: of each stage; empty: as even as possible.
        cluster: whose workload states how many there are.

    """
    total = workload_of(cluster).layers
    if not layers and total is not None and total >= len(stages):
        layers = even_shares(total, len(stages))
    if not layers:
        return None
    of_node = {node: count for nodes, count in zip(stages, layers, strict=False) for node in nodes}
    return [of_node.get(node, 1) for node in range(len(cluster))]
