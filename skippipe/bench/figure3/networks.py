"""Networks and clusters of the figure: a network of the paper, with the times and sizes of a model."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skippipe._scheduler import Cluster
from skippipe.bench.figure3.shapes import BACKWARD, FLOPS_PER_S, MODELS, SEQUENCE
from skippipe.config import NodeProfile, WorkloadConfig
from skippipe.presets import preset_spec
from skippipe.presets.named import preset_config

MEMORY = 3
"""Microbatches that a node can hold, in the paper's public code."""
FIVE_REGIONS = ["LA", "NL", "Germany", "Singapore", "Oregon"]
ONE_REGION = "Germany"
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "geo20": ("geo20", {}),
    "five_regions": ("geo20", {"regions": FIVE_REGIONS * 4}),
    "one_region": ("geo20", {"regions": [ONE_REGION] * 20}),
    "five_clusters": ("five_clusters", {}),
    "single_cluster": ("single_cluster", {"nodes_per_site": 20}),
}
"""Each a preset, with what differs from it. The first three are the settings of the paper's public code, with its links
(one of them corrected, see the preset)."""
SIZES = {4: (4, 4, 4, 4), 6: (5, 3, 3, 3, 3, 3), 8: (6, 2, 2, 2, 2, 2, 2, 2)}
"""Nodes of each stage, by the number of stages."""


@dataclass(frozen=True)
class Setting:
    """One group of bars: what all strategies are planned for."""

    network: str
    model: str
    tokens: int
    """of a microbatch"""
    all_reduce: bool
    """whether an iteration includes the all-reduce of gradients"""
    sizes: tuple[int, ...]
    """nodes of each stage, to begin with; the first so many nodes of the network are used"""

    @property
    def title(self) -> str:
        """Name for progress and messages."""
        shape = (
            "" if self.sizes == default_sizes(self.model) else f", {sum(self.sizes)} nodes in {len(self.sizes)} stages"
        )
        return f"{self.network}, {self.model}, {self.tokens} tokens{', all-reduce' if self.all_reduce else ''}{shape}"


def default_sizes(model: str) -> tuple[int, ...]:
    """Nodes of each stage of a model."""
    return SIZES[MODELS[model].stages]


def cluster_of(setting: Setting, flops_per_s: float | None) -> Cluster:
    """Nodes and links with the times and sizes of the model; all nodes are equal.

    Args:
        setting: network, model, tokens and stages.
        flops_per_s: what a node reaches; None: `FLOPS_PER_S`.

    """
    shape, stages = MODELS[setting.model], len(setting.sizes)
    rate = flops_per_s or FLOPS_PER_S
    forward_s = shape.layers / stages * shape.layer_flops * setting.tokens / rate
    head_s = shape.head_flops * setting.tokens / rate
    node = NodeProfile(forward_s, BACKWARD * forward_s, (1 + BACKWARD) * head_s, MEMORY)
    preset, changes = NETWORKS[setting.network]
    config = preset_config(preset, changes)
    config.node = node  # type: ignore[attr-defined] # every kind in NETWORKS has equal nodes
    config.activation_bytes = shape.message_bytes(setting.tokens)
    config.source = f"links of {setting.network}; nodes and messages: Llama {setting.model} by shape, {rate:.3g} FLOP/s"
    config.workload = WorkloadConfig(
        shape.layers, shape.layers // stages, shape.hidden, setting.tokens // SEQUENCE, SEQUENCE, "bfloat16"
    )
    spec = preset_spec(config)
    used = slice(sum(setting.sizes))
    by_node = ("names", "forward_s", "backward_s", "loss_s", "memory", "region_of")
    spec = dataclasses.replace(spec, **{name: getattr(spec, name)[used] for name in by_node})
    return spec.cluster(config, shape.gradient_bytes(stages) if setting.all_reduce else ())


def settings_of(
    networks: Sequence[str], models: Sequence[str], tokens: Sequence[int], all_reduce: Sequence[bool]
) -> list[Setting]:
    """All combinations, in the order of the figure."""
    return [
        Setting(network, model, count, reduced, default_sizes(model))
        for reduced in all_reduce
        for network in networks
        for model in models
        for count in tokens
    ]
