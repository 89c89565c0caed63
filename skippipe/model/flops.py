"""FLOPs of a model, counted from its shapes: a multiplication and an addition count as two.

Products with weights are counted, and attention under the causal mask, where a token attends to itself and all previous
ones. Norms, activations, softmax and recomputation are not, as is usual.
"""

from typing import TYPE_CHECKING, Any

from torch import nn

from skippipe.model.stage_module import empty_stage_module

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BACKWARD = 2
"""A backward pass takes as many FLOPs as two forward passes: one by the input, one by the weights."""


def layer_flops(config: "PretrainedConfig", layer: int, sequence: int) -> float:
    """FLOPs of one decoder layer's forward pass per token, on average over a sequence of that length."""
    stage = empty_stage_module(config, stage=0, layers=range(layer, layer + 1), first=False)
    stated: Any = config
    heads = stated.num_attention_heads
    width = heads * (getattr(stated, "head_dim", None) or stated.hidden_size // heads)
    attended = (sequence + 1) / 2
    return 2 * sum(_products(module, stated) for module in stage.modules()) + float(2 * 2 * width * attended)


def head_flops(config: "PretrainedConfig") -> float:
    """FLOPs of the head's forward pass per token."""
    stated: Any = config
    return float(2 * stated.hidden_size * stated.vocab_size)


def _products(module: nn.Module, config: Any) -> float:
    """Multiplications with a module's own weights per token; of experts only those that a token is routed to."""
    weights = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim > 1]
    share = 1.0
    if any(parameter.ndim == 3 for parameter in weights):
        share = config.num_experts_per_tok / config.num_local_experts
    return share * sum(parameter.numel() for parameter in weights)
