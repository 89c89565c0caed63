"""What one rank measures of its own device: decoder layers, head and loss, memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from skippipe.measure.memory import available_bytes, held_bytes
from skippipe.measure.stages import StageTimes, time_embedding, time_head, time_stage
from skippipe.measure.timing import Timing
from skippipe.moves import MOMENTS
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage

MOST_LAYERS = 4
"""Of the larger of the two stages that are timed."""


class BuildStage(Protocol):
    """Builds a stage of the first decoder layers of the model, as training would."""

    def __call__(self, layers: int, *, head: bool) -> Stage:
        """Build one of so many layers, with embedding and head if `head`."""


@dataclass(frozen=True)
class DeviceProfile:
    """One rank's device. Times of a stage of `layers` decoder layers; each further layer adds those named `layer_`."""

    layers: int
    smaller: int
    """layers of the other stage that was timed"""
    stage: StageTimes
    layer_forward_s: float
    layer_backward_s: float
    layer_step_s: float
    loss_s: float
    """of head, loss and embedding, forward and backward: what only stage 0 has"""
    loss_spread_s: float
    held_bytes: int
    """of one microbatch from forward to backward, without any layer"""
    layer_held_bytes: int
    layer_state_bytes: int
    """weights, gradients and optimizer state"""
    fixed_bytes: int
    """whatever the layers: embedding, head and their states, one loss, messages"""
    memory_bytes: int
    """that the process may use"""
    layer_gradient_bytes: int
    head_gradient_bytes: int


def layers_to_time(share: float, layers: int) -> tuple[int, int]:
    """Sizes of the two stages to be timed, the smaller first, for stages of about `share` of the model's layers."""
    larger = min(max(round(share), 2), MOST_LAYERS, layers)
    return min(1, larger), larger


def profile_device(  # noqa: PLR0913 - by keyword
    build: BuildStage,
    sizes: tuple[int, int],
    message_spec: MessageSpec,
    *,
    vocabulary: int,
    memory_bytes: int | None,
    sharing: int,
    loss_bytes: int,
    messages: int,
    together: Callable[[str], None],
    host_share: Callable[[Stage], float | None] = lambda _: None,
) -> DeviceProfile:
    """Measure this rank's device while all others measure theirs.

    Args:
        build: builds stages.
        sizes: as from `layers_to_time`.
        message_spec: shape and type of messages.
        vocabulary: tokens are drawn below it.
        memory_bytes: that the process may use; None: what is free now, shared with the others.
        sharing: processes that share the device's memory.
        loss_bytes: that head and loss of one microbatch take for a moment.
        messages: that may wait, received or to be sent.
        together: waits until all ranks have come as far, so that they compute at the same time, as in training.
        host_share: whether training records a stage's work as CUDA graphs, as for `time_stage`.

    """
    memory_bytes = memory_bytes or available_bytes(message_spec.device, sharing)
    smaller, larger = sizes
    times: dict[int, StageTimes] = {}
    held: dict[int, int] = {}
    for layers in (larger, smaller):
        if layers not in times:
            stage = build(layers, head=False)
            held[layers] = held_bytes(stage, message_spec, vocabulary, host_share(stage))
            together(f"stage of {layers}")
            times[layers] = time_stage(stage, message_spec, vocabulary, host_share(stage))
            del stage
    head = build(0, head=True)
    together("head")
    loss = time_head(head, message_spec, vocabulary)
    embedding = time_embedding(head, message_spec, vocabulary)
    together("device measured")
    head_bytes = sum(parameter.nbytes for parameter in head.parameters)
    larger_times, smaller_times = times[larger], times[smaller]
    layer_held = layer_share(held[larger], held[smaller], sizes)
    layer_bytes = int(layer_share(larger_times.gradient_bytes, smaller_times.gradient_bytes, sizes))
    return DeviceProfile(
        layers=larger,
        smaller=smaller,
        stage=larger_times,
        layer_forward_s=layer_share(larger_times.forward_s, smaller_times.forward_s, sizes),
        layer_backward_s=layer_share(larger_times.backward_s, smaller_times.backward_s, sizes),
        layer_step_s=layer_share(larger_times.step_s, smaller_times.step_s, sizes),
        loss_s=loss.median_s + embedding.median_s,
        loss_spread_s=_added(loss, embedding),
        held_bytes=int(held[larger] - larger * layer_held),
        layer_held_bytes=int(layer_held),
        layer_state_bytes=(2 + MOMENTS) * layer_bytes,
        fixed_bytes=(2 + MOMENTS) * head_bytes + loss_bytes + messages * message_spec.payload_bytes,
        memory_bytes=memory_bytes,
        layer_gradient_bytes=layer_bytes,
        head_gradient_bytes=head_bytes,
    )


def layer_share(larger: float, smaller: float, sizes: tuple[int, int]) -> float:
    """What one layer adds, from figures of stages of two `sizes`, the smaller first.

    At most the larger figure per layer, since a stage without layers takes no less than nothing; at least half of that,
    since whatever is more than the layers themselves is noise.
    """
    few, many = sizes
    per_layer = larger / many
    if few == many:
        return per_layer
    return min(max((larger - smaller) / (many - few), per_layer / 2), per_layer)


def _added(a: Timing, b: Timing) -> float:
    """Spread of the sum of two times: they vary together at worst."""
    return a.spread_s + b.spread_s
