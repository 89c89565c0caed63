"""FLOPs of a model, counted from its shapes: a multiplication and an addition count as two.

Products with weights are counted, and attention under the causal mask, where a token attends to itself and all previous
ones. Norms, activations, softmax and recomputation are not, as is usual.
"""

from typing import TYPE_CHECKING, Any

from torch import nn

from skippipe.model.stage_module import StageModule

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BACKWARD = 2
"""A backward pass takes as many FLOPs as two forward passes: one by the input, one by the weights."""


def layer_flops(stage: StageModule, sequence: int) -> list[float]:
    """FLOPs of each decoder layer's forward pass per token, on average over a sequence of that length."""
    config: Any = stage.config
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    attention = float(2 * 2 * width * (sequence + 1) / 2)
    weights = [stage.parameters_of_layer(layer).values() for layer in stage.layers]
    return [2 * sum(_products(weight, config) for weight in own) + attention for own in weights]


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
