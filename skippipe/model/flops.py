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


def layer_flops(config: "PretrainedConfig", layers: range, sequence: int) -> list[float]:
    """FLOPs of the forward pass of each of some decoder layers per token, on average over a sequence of that length."""
    stage = empty_stage_module(config, stage=0, layers=layers, first=False)
    stated: Any = config
    heads = stated.num_attention_heads
    width = heads * (getattr(stated, "head_dim", None) or stated.hidden_size // heads)
    attention = float(2 * 2 * width * (sequence + 1) / 2)
    weights = [stage.parameters_of_layer(layer).values() for layer in layers]
    return [2 * sum(_products(weight, stated) for weight in own) + attention for own in weights]


def head_flops(config: "PretrainedConfig") -> float:
    """FLOPs of the head's forward pass per token."""
    stated: Any = config
    return float(2 * stated.hidden_size * stated.vocab_size)


def _products(weight: nn.Parameter, config: Any) -> float:
    """Multiplications with a weight per token; of experts only those that a token is routed to."""
    if weight.ndim == 1:  # biases and norms
        return 0.0
    experts = weight.ndim == 3
    return weight.numel() * (config.num_experts_per_tok / config.num_local_experts if experts else 1.0)
