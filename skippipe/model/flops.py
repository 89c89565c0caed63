"""Floating-point operations of a model's parts, counted from its shapes: one multiplication and one addition are two.

What counts is what is needed: products with weights, and attention under the causal mask, where a token looks at
itself and those before it. Norms, activations and softmax are left out, as is usual; and so is anything computed twice.
"""

from typing import TYPE_CHECKING, Any

from torch import nn

from skippipe.model.stage_module import empty_stage_module

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BACKWARD = 2
"""a backward pass takes as many operations as two forward passes: by the input, and by the weights"""


def layer_flops(config: "PretrainedConfig", layer: int, sequence: int) -> float:
    """Operations of one decoder layer's forward pass for one token of a sequence of that length, on average."""
    module = empty_stage_module(config, stage=0, layers=range(layer, layer + 1), first=False)
    stated: Any = config
    heads = stated.num_attention_heads
    width = heads * (getattr(stated, "head_dim", None) or stated.hidden_size // heads)
    seen = (sequence + 1) / 2
    return 2 * sum(_products(module, stated) for module in module.modules()) + float(2 * 2 * width * seen)


def head_flops(config: "PretrainedConfig") -> float:
    """Operations of the head's forward pass for one token."""
    stated: Any = config
    return float(2 * stated.hidden_size * stated.vocab_size)


def _products(module: nn.Module, config: Any) -> float:
    """Multiplications with a module's own weights for one token; of the experts only those that a token goes to."""
    weights = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim > 1]
    share = 1.0
    if any(parameter.ndim == 3 for parameter in weights):
        share = config.num_experts_per_tok / config.num_local_experts
    return share * sum(parameter.numel() for parameter in weights)
