"""The model of a run, partitioned; the stages that one rank serves, built."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from skippipe._scheduler import Plan
from skippipe.devices import Precision
from skippipe.errors import unexpected
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.flops import BACKWARD, head_flops, layer_flops
from skippipe.model.settings import config_sha256
from skippipe.model.stage_module import StageModule, empty_stage_module
from skippipe.moves import WeightBytes, copy_sources
from skippipe.phases import layers_in_use
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.resolve.plan_model import PlanModel, check_model, partition
from skippipe.train.resolve.spec import DeviceSpec, PlanPhase, RunSpec


def message_spec_of(
    config: Any, microbatch_size: int, sequence: int, precision: Precision, device: torch.device
) -> MessageSpec:
    """Shape and type of the messages of a model: microbatches of so many sequences of so many tokens."""
    return MessageSpec(
        microbatch_size,
        sequence,
        config.hidden_size,
        dtype=precision.torch_hidden_dtype,
        device=device,
        wire_dtype=precision.torch_wire_dtype,
    )


@dataclass(frozen=True)
class PartitionedModel:
    """A model and the decoder layers of each stage."""

    config: Any
    """of transformers"""
    plan_model: PlanModel
    """as a plan describes it"""
    layers: list[int]
    """number of decoder layers per stage"""

    @property
    def stage_layers(self) -> list[range]:
        """Layer numbers of each stage."""
        return stage_layers(self.layers, self.config)

    @cached_property
    def shapes(self) -> StageModule:
        """All of it as one stage, without memory or weights: building it takes longer than looking at it."""
        return empty_stage_module(self.config, stage=0, layers=range(self.config.num_hidden_layers), first=True)


def partition_model(spec: RunSpec, config: Any) -> PartitionedModel:
    """Partition the model of a run; `config` is by `skippipe.model.settings.model_config`.

    Raises:
        InputError: the layers do not fit model or plan, or the plan is for another model.

    """
    model = PlanModel(
        config_sha256(config),
        config.hidden_size,
        config.num_hidden_layers,
        spec.data.microbatch_size,
        spec.data.sequence,
        spec.precision.wire_dtype,
    )
    layout = spec.layout
    if layout.plan is not None:
        check_model(layout.plan, asdict(model), layout.origin)
    layers = partition(layout.allocation.layers, spec.model.layers, len(layout.stages), model.layers, layout.origin)
    partitioned = PartitionedModel(config, model, layers)
    if spec.new_layers == "copy":
        _check_copies(spec, partitioned)
    return partitioned


def _check_copies(spec: RunSpec, model: PartitionedModel) -> None:
    """Raise `InputError` where a layer that joins has other weights than the one that it is to copy."""
    joined: set[int] = set()
    for phase in spec.phases:
        stages = [stage for stage, nodes in enumerate(phase.allocation.stages) if nodes]
        new = {layer for s in stages for layer in layers_in_use(phase.layers, model.stage_layers[s])} - joined
        for layer, source in copy_sources(new, joined, model.stage_layers).items():
            if _layer_shapes(model, layer) != _layer_shapes(model, source):
                expected = f"init: layers {layer} and {source} have different weights"
                raise unexpected("train.new_layers", spec.new_layers, expected)
        joined |= new


def _layer_shapes(model: PartitionedModel, layer: int) -> list[torch.Size]:
    return [parameter.shape for _, parameter in sorted(model.shapes.parameters_of_layer(layer).items())]


def check_groups(spec: RunSpec, config: Any) -> None:
    """Raise `InputError` where several microbatches in one pass would give other losses than one by one."""
    if spec.device.group > 1 and getattr(config, "output_router_logits", False):
        expected, hint = "1 with model.output_router_logits", "router losses are taken over a microbatch"
        raise unexpected("runtime.group", spec.device.group, expected, hint=hint)


def build_stages(
    spec: RunSpec, model: PartitionedModel, served: Sequence[int], device: torch.device, *, joined: Collection[int]
) -> dict[int, Stage]:
    """Build the stages that a rank serves; unless all their layers have `joined`, with the weights of `model.folder`.

    Weights of layers that have joined are loaded from the checkpoint afterwards.
    """
    stages: dict[int, Stage] = {}
    for number in served:
        module = build_stage_module(
            model.config,
            stage=number,
            layers=model.stage_layers[number],
            first=number == 0,
            seed=spec.seed,
            dtype=spec.precision.torch_dtype,
            device=device,
            weights=None if {*model.stage_layers[number]} <= {*joined} else spec.model.folder,
        )
        stages[number] = equip(module, spec.precision, spec.device)
    return stages


def equip(module: StageModule, precision: Precision, device: DeviceSpec) -> Stage:
    """Have a stage's layers run as a job asks for: autocast, activation checkpointing, compiled, loss in chunks."""
    if precision.torch_autocast is not None:
        module.enable_autocast(precision.torch_autocast)
    module.enable_activation_checkpointing(device.activation_checkpointing)
    if device.compile:
        module.enable_compile()
    return Stage(module, device.loss_chunk)


def warm_up(stage: Stage, message_spec: MessageSpec, vocabulary: int) -> None:
    """Run a microbatch through a stage of a GPU, and a message, so that kernels are loaded before training begins.

    Loading a kernel may wait for all others, also for transfers that wait for this rank's next message. Weights,
    gradients and random state are unchanged.
    """
    if message_spec.device.type != "cuda":
        return
    shape, device = message_spec.shape, message_spec.device
    with torch.random.fork_rng(devices=[device]):
        hidden = torch.randn(shape, device=device).to(message_spec.dtype)
        tokens = torch.randint(vocabulary, shape[:2], device=device)
        stage.begin(tokens.numel())
        for _ in range(2):  # the second one as all that follow: gradients are added up
            if stage.module.first:
                hidden = stage.loss(0, stage.forward(0, stage.embed(0, tokens)), tokens)
                stage.embed_backward(0, stage.backward(0, hidden))
            else:
                stage.backward(0, stage.forward(0, hidden))
        with stage.evaluating():
            output = stage.forward(0, stage.embed(0, tokens) if stage.module.first else hidden)
            if stage.module.first:
                stage.loss(0, output, tokens)
        payload = message_spec.empty_payload()
        message_spec.encode(hidden, payload)
        message_spec.decode(payload)
        stage.begin(1)


def build_probe(  # noqa: PLR0913 - what a stage depends on
    config: Any, layers: int, precision: Precision, device_spec: DeviceSpec, device: torch.device, *, head: bool
) -> Stage:
    """Build a stage of the first decoder layers of a model to be timed; with embedding, norm and head if `head`."""
    module = build_stage_module(
        config,
        stage=0 if head else 1,
        layers=range(layers),
        first=head,
        seed=0,
        dtype=precision.torch_dtype,
        device=device,
    )
    return equip(module, precision, device_spec)


def weight_bytes(model: PartitionedModel, dtype: torch.dtype) -> WeightBytes:
    """Bytes of the weights of every layer, and of embedding, final norm and head."""

    def size(parameters: dict[str, torch.nn.Parameter]) -> float:
        return float(dtype.itemsize * sum(parameter.numel() for parameter in parameters.values()))

    of_layer = [size(model.shapes.parameters_of_layer(layer)) for layer in model.shapes.layers]
    return WeightBytes(of_layer, size(model.shapes.parameters_of(())))


def iteration_flops(phase: PlanPhase, plan: Plan, model: PartitionedModel) -> float:
    """FLOPs of one iteration of a phase, forward and backward, over the visits that its routes make."""
    sequence = model.plan_model.sequence
    used = [layers_in_use(phase.layers, layers) for layers in model.stage_layers]
    of_layer = layer_flops(model.shapes, sequence)
    of_stage = [sum(of_layer[layer] for layer in layers) for layers in used]
    visited = sum(of_stage[stage] for microbatch in plan.microbatches for stage in microbatch.stages)
    head = head_flops(model.config) * len(plan.microbatches)
    return (1 + BACKWARD) * model.plan_model.microbatch_tokens * (visited + head)
