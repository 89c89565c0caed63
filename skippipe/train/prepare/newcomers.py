"""What a process that joins a run says of its nodes: the stages that they may serve, and how fast they are.

The times of a node hold for as many decoder layers as its stage had when the run began, so it may serve the stages that
have as many. Only one that may serve stage 0 needs the text. Where the times of the run's plans were measured, those of
the node are measured as well, before it asks to join: nobody waits for that.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skippipe.errors import unexpected
from skippipe.measure.stages import time_head, time_stage
from skippipe.model.settings import model_config
from skippipe.ranks import shown_names
from skippipe.runtime.message import MessageSpec
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.loop.recording import recorded_above
from skippipe.train.prepare.stages import build_probe
from skippipe.train.resolve.spec import RunSpec


@dataclass(frozen=True)
class NodeTimes:
    """Seconds of a node for one microbatch, and for the optimizer step."""

    forward_s: float
    backward_s: float
    loss_s: float
    step_s: float


@dataclass(frozen=True)
class NodeFacts:
    """A node that joins."""

    stages: tuple[int, ...]
    """that it may serve"""
    times: NodeTimes | None
    """as measured; None: those of the cluster hold"""


def facts_to_json(facts: dict[str, NodeFacts]) -> str:
    """Facts of nodes, by name, as text for rank 0."""
    return json.dumps({name: asdict(node) for name, node in facts.items()})


def merged_facts(texts: Sequence[str]) -> dict[str, NodeFacts]:
    """Facts of the nodes of all processes that join, from what they have written."""
    return {
        name: NodeFacts(tuple(node["stages"]), None if node["times"] is None else NodeTimes(**node["times"]))
        for text in texts
        for name, node in json.loads(text).items()
    }


@dataclass(frozen=True)
class StatedLayout:
    """Nodes and stages of a run, as its ranks have stated them at the start."""

    names: list[str]
    stages: list[list[int]]
    layers: list[int]
    """decoder layers of each stage"""

    @staticmethod
    def from_json(text: str) -> "StatedLayout":
        """Read the text that `skippipe.train.prepare.prepare` has the ranks compare."""
        names, allocations, _, layers = json.loads(text)
        return StatedLayout(names, allocations[0]["stages"], layers)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise `InputError` where this process knows other nodes than the run has."""
        if list(names) != self.names:
            raise unexpected("cluster", f"nodes {shown_names(names)}", f"those of the run, {shown_names(self.names)}")

    def stages_for(self, node: int) -> tuple[int, ...]:
        """The stages that a node may serve.

        One that had a stage may serve others with as many layers, but for stage 0, for whose text it is not prepared.
        """
        home = next((stage for stage, nodes in enumerate(self.stages) if node in nodes), None)
        if home is None:
            return tuple(range(len(self.stages)))
        return tuple(s for s, n in enumerate(self.layers) if n == self.layers[home] and (s or not home))


def facts_of(
    spec: RunSpec, layout: StatedLayout, names: Sequence[str], message_spec: MessageSpec
) -> dict[str, NodeFacts]:
    """What to say of the nodes of this process, measured if the run's plans are made for measured times."""
    measures = spec.calibrate and spec.layout.plan is None
    _begin_to_use_torch(spec, message_spec)
    found: dict[str, NodeFacts] = {}
    for name in names:
        stages = layout.stages_for(layout.names.index(name))
        if measures:
            measured = max(layout.layers[stage] for stage in stages)
            stages = tuple(stage for stage in stages if layout.layers[stage] == measured)
            found[name] = NodeFacts(stages, _measure(spec, measured, message_spec))
        else:
            found[name] = NodeFacts(stages, None)
    return found


def _begin_to_use_torch(spec: RunSpec, message_spec: MessageSpec) -> None:
    """Build a stage and its optimizer, for what torch imports then: it takes seconds, for which others would wait."""
    config: Any = model_config(spec.model.settings)
    probe = build_probe(config, 1, spec.precision, spec.device, message_spec.device, head=False)
    StageOptimizer({0: probe}, spec.optimizer, tokens=1, iterations=1).step(0.0)


def _measure(spec: RunSpec, layers: int, message_spec: MessageSpec) -> NodeTimes:
    """Time a stage of so many layers, and head and loss."""
    config: Any = model_config(spec.model.settings)

    def probe(count: int, *, head: bool) -> Any:
        return build_probe(config, count, spec.precision, spec.device, message_spec.device, head=head)

    layers_probe = probe(layers, head=False)
    host_share = recorded_above(spec.device, spec.precision, [layers_probe])
    stage = time_stage(layers_probe, message_spec, config.vocab_size, host_share)
    loss_s = time_head(probe(0, head=True), message_spec, config.vocab_size).median_s
    return NodeTimes(stage.forward_s, stage.backward_s, loss_s, stage.step_s)
