"""AdamW for the stages of one rank, the learning rate over tokens, and clipping by the norm over all stages.

Every rank steps for its own stages. Replicas start from the same weights and apply the same operations to the same
gradients, so that they stay equal without exchanging weights.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from skippipe.train.config import TrainConfig


def learning_rate(config: TrainConfig, tokens: float, total: float) -> float:
    """Learning rate of the step that ends at `tokens` of the run's `total`: a line up, then a cosine down."""
    warm = config.warmup * total
    if tokens < warm:
        return config.learning_rate * tokens / warm
    progress = min((tokens - warm) / (total - warm), 1.0) if total > warm else 1.0
    low = config.final_learning_rate
    return config.learning_rate * (low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def make_optimizer(config: TrainConfig, modules: Iterable[nn.Module]) -> torch.optim.AdamW:
    """AdamW over all parameters of the modules; only weight matrices of linear layers and experts decay."""
    decay, keep = parameter_groups(modules)
    groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": keep, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        foreach=False,
        fused=any(parameter.is_cuda for parameter in [*decay, *keep]),
    )


def parameter_groups(modules: Iterable[nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters that decay and those that do not (embeddings, norms, biases); each once, tied ones too."""
    decay: list[Tensor] = []
    keep: list[Tensor] = []
    for module in modules:
        embeddings = {id(p) for part in module.modules() if isinstance(part, nn.Embedding) for p in part.parameters()}
        for parameter in module.parameters():
            (keep if parameter.ndim < 2 or id(parameter) in embeddings else decay).append(parameter)
    return decay, keep


def moments(optimizer: torch.optim.AdamW, parameter: Tensor) -> dict[str, Tensor]:
    """What the optimizer keeps of a parameter: its steps and the means; before the first step, what it begins with."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        fused = optimizer.defaults["fused"]
        state["step"] = torch.zeros((), device=parameter.device if fused else None)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


def clip(gradients: Iterable[Tensor], norm: float, limit: float | None) -> None:
    """Scale gradients in place so that a global norm of `norm` becomes at most `limit`."""
    if limit is None or not norm > limit:
        return
    torch._foreach_mul_(list(gradients), limit / norm)


def take_step(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One step at the learning rate `rate`; gradients are let go of afterwards."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
