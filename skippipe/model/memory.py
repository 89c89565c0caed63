"""Memory of one stage of a model, estimated without building it."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from skippipe.model.build import rebuild_buffers
from skippipe.model.stage_module import StageModule, empty_stage_module
from skippipe.moves import MOMENTS

if TYPE_CHECKING:
    from transformers import PretrainedConfig


PARTITIONER = "aot_eager_decomp_partition"
"""Backend of `torch.compile` that decides as the compiler does what a forward saves, and compiles nothing."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage on one rank, without torch itself and temporaries within layers."""

    parameters: int
    """number of parameters, tied weights once"""
    weight_bytes: int
    """weights"""
    gradient_bytes: int
    """gradients, of the weights' type; what replicas of the stage exchange"""
    optimizer_bytes: int
    """state of AdamW, of the weights' type"""
    activation_bytes: int
    """held for one microbatch from its forward to its backward, input and output of the stage included"""
    backward_bytes: int
    """held while a layer runs backward: what is recomputed of it, or what CUDA graphs have for its gradients"""
    loss_bytes: int
    """held for one microbatch's loss until its backward, which follows at once; 0 except on stage 0"""


def stage_memory(  # noqa: PLR0913 - what a stage is, and a microbatch
    config: "PretrainedConfig",
    *,
    stage: int,
    layers: range,
    first: bool,
    microbatch_size: int,
    sequence: int,
    dtype: torch.dtype = torch.float32,
    activation_checkpointing: int = 0,
    loss_chunk: int | None = None,
    compiled: bool = False,
    graphs: bool = False,
) -> StageMemory:
    """Estimate the memory of one stage by a forward pass on meta tensors.

    Args:
        config: of the full model.
        stage: number of the stage.
        layers: numbers of its layers in the full model.
        first: whether it is stage 0.
        microbatch_size: sequences per microbatch.
        sequence: tokens per sequence.
        dtype: of weights and activations.
        activation_checkpointing: n: every nth layer is recomputed in the backward pass; 0: none.
        loss_chunk: most tokens in one pass through the head; None: all of a microbatch.
        compiled: whether layers and loss are; they save less, since the backward pass computes some of it again.
        graphs: whether CUDA graphs launch layers and loss: they free no activation while they run backward.

    """
    module = empty_stage_module(config, stage=stage, layers=layers, first=first).to(dtype)
    if compiled:
        module.enable_compile(PARTITIONER)
    weights = sum(_bytes(parameter) for parameter in module.parameters())
    held, backward = _activation_bytes(module, microbatch_size, sequence, dtype), 0
    loss = _compiled_loss_bytes if compiled else _loss_bytes
    if activation_checkpointing:
        complete = held
        module.enable_activation_checkpointing(activation_checkpointing)
        held = _activation_bytes(module, microbatch_size, sequence, dtype)
        backward = _layer_bytes(complete - held, layers, activation_checkpointing)
    elif graphs:
        backward = _layer_bytes(held, layers, 1)
    return StageMemory(
        parameters=parameter_count(module),
        weight_bytes=weights,
        gradient_bytes=weights,
        optimizer_bytes=MOMENTS * weights,
        activation_bytes=held,
        backward_bytes=backward,
        loss_bytes=loss(module, min(microbatch_size * sequence, loss_chunk or sys.maxsize), dtype) if first else 0,
    )


def parameter_count(module: nn.Module) -> int:
    """Count parameters, tied weights once."""
    return sum(parameter.numel() for parameter in module.parameters())


def saved_bytes(run: Callable[[], Any], without: Iterable[Tensor]) -> int:
    """Bytes that autograd saves while `run` computes: each storage once, those of `without` not at all."""
    known = {_storage(tensor) for tensor in without}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a freed storage could be allocated, and counted, again

    def pack(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in known:
            kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
            alive.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(kept.values())


def _activation_bytes(module: StageModule, microbatch_size: int, sequence: int, dtype: torch.dtype) -> int:
    rebuild_buffers(module, torch.device("cpu"))  # positions are computed, not only shaped
    hidden = _shaped(module, microbatch_size, sequence, dtype)

    def run() -> tuple[Tensor, Tensor | None]:
        output, local_loss = module(hidden)
        return output, local_loss

    with ShapesOnly():
        saved = saved_bytes(run, [*module.parameters(), hidden])
    return saved + 2 * _bytes(hidden)  # the output is held even if nothing saves it; counted twice at worst


def _layer_bytes(bytes_: int, layers: range, every: int) -> int:
    """Bytes of one layer, of `bytes_` that every nth of the layers has."""
    counted = sum((number + 1) % every == 0 for number in layers)
    return bytes_ // counted if counted else 0


def _loss_bytes(module: StageModule, tokens: int, dtype: torch.dtype) -> int:
    hidden = _shaped(module, tokens, 1, dtype)
    labels = torch.empty(tokens, 1, dtype=torch.int64, device="meta")
    saved = saved_bytes(lambda: module.loss(hidden, labels), [*module.parameters(), hidden])
    logits = tokens * int(module.config.vocab_size)
    # Gradients of the logits' logarithms and of the logits, both at one time.
    return saved + 2 * logits * torch.promote_types(dtype, torch.float32).itemsize


def _compiled_loss_bytes(module: StageModule, tokens: int, dtype: torch.dtype) -> int:
    """Logits and their gradient; neither softmax nor wider numbers are stored."""
    return 2 * tokens * int(module.config.vocab_size) * dtype.itemsize


def _shaped(module: StageModule, microbatch_size: int, sequence: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(
        microbatch_size, sequence, module.config.hidden_size, dtype=dtype, device="meta", requires_grad=True
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class ShapesOnly(TorchFunctionMode):
    """Within: autograd saves for meta tensors what it would save for real ones.

    Otherwise torch computes their attention by the math kernel, which saves the weights of all pairs of positions, and
    does not support the functions that mixtures of experts need.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run `func`, or what stands in for it."""
        return _STAND_INS.get(func, func)(*args, **(kwargs or {}))


def _bincount(values: Tensor, *, minlength: int) -> Tensor:
    return values.new_empty(minlength, dtype=torch.int64)


def _flash_attention(  # noqa: PLR0913, PLR0917 - torch's signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001, FBT001, FBT002 - the kernel sees it from the shapes
) -> Tensor:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - the one that has shapes
    mask = None if attn_mask is None else torch.empty_like(attn_mask, dtype=query.dtype)
    output: Tensor = kernel(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)[0]
    return output


def _grouped_product(rows: Tensor, weights: Tensor, **_groups: Any) -> Tensor:
    """Multiply every row with the weights of its group, (n, k) by (groups, k, m): all take the first group's here."""
    return rows @ weights[0]


_STAND_INS: dict[Any, Callable[..., Any]] = {
    functional.scaled_dot_product_attention: _flash_attention,
    torch._grouped_mm: _grouped_product,  # noqa: SLF001 - what torch.nn.functional.grouped_mm calls
    torch.bincount: _bincount,
}


def _storage(tensor: Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - tensors without memory have no address to tell them apart
    return number
