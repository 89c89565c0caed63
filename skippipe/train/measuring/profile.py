"""A cluster, measured by all ranks together: links, one decoder layer, head and loss, memory."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skippipe._scheduler import Cluster
from skippipe.allocation import default_stages
from skippipe.devices import device_identity, device_name
from skippipe.errors import unexpected
from skippipe.measure.links import LinkTimes, time_links, time_norm
from skippipe.measure.node import DeviceProfile, layers_to_time, profile_device
from skippipe.measure.stages import StageTimes
from skippipe.measured import with_layers
from skippipe.model.memory import stage_memory
from skippipe.model.settings import config_sha256
from skippipe.ranks import processors_of
from skippipe.runtime.links.addresses import machine_id
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.connect.links import Links
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.recording import recorded_above
from skippipe.train.measuring.spec import ProfileSpec
from skippipe.train.prepare.stages import build_probe
from skippipe.train.resolve.plan_model import PlanModel
from skippipe.workload import Workload

Progress = Callable[[int, int, str], None]
"""Told how many steps of how many are done, and what comes next."""
DEVICE_STEPS = 4


def profile_cluster(  # noqa: PLR0913 - by keyword
    spec: ProfileSpec,
    config: Any,
    rendezvous: Rendezvous,
    links: Links,
    message_spec: MessageSpec,
    *,
    names: Sequence[str],
    rank_of: Sequence[int],
    source: str,
    progress: Progress,
) -> Cluster:
    """Measure nodes and links before there are stages. All ranks call this, and get the same.

    Args:
        spec: microbatches and settings of the training to come.
        config: of the model.
        rendezvous: all ranks.
        links: to the others.
        message_spec: shape and type of messages, and the device of this rank's stages.
        names: of the nodes.
        rank_of: the rank that serves each node.
        source: what the cluster says of the origin of its figures.
        progress: told of the steps.

    Raises:
        InputError: the model has too few layers for the stages, or a node no room for a microbatch.

    """
    model = PlanModel(
        config_sha256(config), config.hidden_size, config.num_hidden_layers, spec.microbatch_size, spec.sequence,
        spec.precision.wire_dtype,
    )  # fmt: skip
    stages = min(spec.stages or default_stages(len(names)), len(names))
    if model.layers < stages:
        raise unexpected("model.num_hidden_layers", model.layers, f"at least the number of stages, {stages}")
    total = DEVICE_STEPS + rendezvous.world - 1 + rendezvous.world % 2
    profile = _profile_own_device(
        spec, config, message_spec, rendezvous, model.layers / stages, lambda done, what: progress(done, total, what)
    )
    link_times = time_links(
        rendezvous,
        links.messages,
        message_spec,
        "measure",
        lambda done, _: progress(DEVICE_STEPS + done, total, "links"),
    )
    # Rank 0 states its own, so that all ranks have the same.
    norm_s = float(rendezvous.all_gather("norm", str(time_norm(rendezvous, links.control, stages)))[0])
    profiles = [
        DeviceProfile(**{**values, "stage": StageTimes(**values["stage"])})
        for values in map(json.loads, rendezvous.all_gather("profiles", json.dumps(dataclasses.asdict(profile))))
    ]
    devices = set(rendezvous.all_gather("device names", device_name(message_spec.device)))
    return assemble(
        profiles,
        link_times,
        model,
        names=names,
        rank_of=rank_of,
        stages=stages,
        norm_s=norm_s,
        device=devices.pop() if len(devices) == 1 else None,
        source=source,
    )


def _profile_own_device(  # noqa: PLR0913, PLR0917 - what a rank knows
    spec: ProfileSpec,
    config: Any,
    message_spec: MessageSpec,
    rendezvous: Rendezvous,
    share: float,
    progress: Callable[[int, str], None],
) -> DeviceProfile:
    identity = device_identity(message_spec.device) or machine_id()
    sharing = rendezvous.all_gather("memory shared", identity).count(identity)
    loss = stage_memory(
        config,
        stage=0,
        layers=range(0),
        first=True,
        microbatch_size=spec.microbatch_size,
        sequence=spec.sequence,
        dtype=spec.precision.torch_dtype,
        loss_chunk=spec.device.loss_chunk,
        compiled=spec.device.compile,
    )
    reached: list[str] = []

    def build(layers: int, *, head: bool) -> Stage:
        return build_probe(config, layers, spec.precision, spec.device, message_spec.device, head=head)

    def together(what: str) -> None:
        rendezvous.all_gather(what, "")
        progress(len(reached), what)
        reached.append(what)

    memory_bytes = None if spec.memory_bytes is None else int(spec.memory_bytes)
    return profile_device(
        build,
        layers_to_time(share, config.num_hidden_layers),
        message_spec,
        vocabulary=config.vocab_size,
        memory_bytes=memory_bytes,
        sharing=sharing,
        loss_bytes=loss.loss_bytes,
        messages=spec.communication.recv_buffers + spec.communication.sends_in_flight,
        together=together,
        host_share=lambda stage: recorded_above(spec.device, spec.precision, [stage]),
    )


def assemble(  # noqa: PLR0913 - by keyword
    profiles: Sequence[DeviceProfile],
    links: LinkTimes,
    model: PlanModel,
    *,
    names: Sequence[str],
    rank_of: Sequence[int],
    stages: int,
    norm_s: float,
    device: str | None,
    source: str,
) -> Cluster:
    """The cluster that ranks have measured, for stages as equal as possible, the larger ones of them.

    Args:
        profiles: by rank.
        links: between ranks.
        model: what was measured.
        names: of the nodes.
        rank_of: the rank that serves each node; nodes of one rank share its memory.
        stages: that the figures are to hold for.
        norm_s: exchange of the gradient norm, in seconds.
        device: name of what all ranks compute on; None: they differ.
        source: what the cluster says of the origin of its figures.

    """
    nodes = [profiles[rank] for rank in rank_of]
    pairs = np.ix_(rank_of, rank_of)
    error = f"; messages of full size that were not sent are extrapolated, with a median error of {links.error:.1%}"
    measured = {
        "nodes": [
            _about(node, node.memory_bytes // list(rank_of).count(rank))
            for node, rank in zip(nodes, rank_of, strict=True)
        ],
        "layer_gradient_bytes": max(profile.layer_gradient_bytes for profile in profiles),
        "head_gradient_bytes": max(profile.head_gradient_bytes for profile in profiles),
        "links": {
            "latency_spread_s": links.latency_spread_s[pairs].tolist(),
            "message_spread_s": links.message_spread_s[pairs].tolist(),
            "messages": links.messages[pairs].tolist(),
        },
    }
    cluster = Cluster(
        list(names),
        [node.stage.forward_s for node in nodes],
        [node.stage.backward_s for node in nodes],
        [node.loss_s for node in nodes],
        [1] * len(nodes),  # it follows from the layers
        latency_s=links.latency_s[pairs],
        bandwidth=links.bandwidth[pairs],
        activation_bytes=model.message_bytes,
        gradient_bytes=[0.0] * stages,
        step_s=[node.stage.step_s for node in nodes],
        norm_s=norm_s,
        source=source + (error if links.error else ""),
        workload=Workload(
            **dataclasses.asdict(model), device=device, node_layers=tuple(node.layers for node in nodes)
        ).to_json(),
        measured=json.dumps(measured),
        processors=processors_of(rank_of),
        contention="link",  # what two messages over one link share
    )
    return with_layers(cluster, [math.ceil(model.layers / stages)] * len(nodes), stages)


def _about(node: DeviceProfile, memory_bytes: int) -> dict[str, Any]:
    return {
        "layer_forward_s": node.layer_forward_s,
        "layer_backward_s": node.layer_backward_s,
        "layer_step_s": node.layer_step_s,
        "forward_spread_s": node.stage.forward_spread_s,
        "backward_spread_s": node.stage.backward_spread_s,
        "loss_spread_s": node.loss_spread_s,
        "samples": node.stage.samples,
        "timed_layers": sorted({node.smaller, node.layers}),
        "held_bytes": node.held_bytes,
        "layer_held_bytes": node.layer_held_bytes,
        "layer_state_bytes": node.layer_state_bytes,
        "fixed_bytes": node.fixed_bytes,
        "memory_bytes": memory_bytes,
    }
