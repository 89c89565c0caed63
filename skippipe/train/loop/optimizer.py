"""AdamW for the stages of one rank, the learning rate over tokens, and clipping by the norm over all stages.

Every rank steps for its own stages. Replicas start from the same weights and apply the same operations to the same
gradients, so they stay equal without exchanging weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from skippipe.runtime.stage import Stage
from skippipe.train.resolve.spec import OptimizerSpec


class StageOptimizer:
    """The optimizer of one rank's stages; a step depends on the gradient's norm and on the tokens so far.

    Parameters without a gradient, moments and step count included, stay as they are.
    """

    def __init__(
        self, stages: Mapping[int, Stage], spec: OptimizerSpec, *, tokens: int, iterations: int, tokens_done: int = 0
    ) -> None:
        """Make the optimizer.

        Args:
            stages: those of this rank; where they change, `follow_stages` is to be called.
            spec: AdamW and its learning rate.
            tokens: per iteration.
            iterations: still to be done.
            tokens_done: trained on before.

        """
        self._stages, self._spec, self._tokens = stages, spec, tokens
        self._optimizer = make_optimizer(spec, [stage.module for stage in stages.values()])
        self._total = tokens_done + iterations * tokens
        self.tokens_done = tokens_done
        """tokens trained on so far"""
        self.rate = 0.0
        """learning rate of the latest step"""

    def follow_stages(self) -> None:
        """Take on stages that have come, and forget those that have gone; the others keep their state."""
        before = self._optimizer.state
        self._optimizer = make_optimizer(self._spec, [stage.module for stage in self._stages.values()])
        for stage in self._stages.values():
            for parameter in stage.module.parameters():
                if parameter in before:
                    self._optimizer.state[parameter] = before[parameter]

    def step(self, norm: float) -> None:
        """Clip by the norm of the full model's gradient, and step; if the norm is not finite, weights stay."""
        self.tokens_done += self._tokens
        self.rate = learning_rate(self._spec, self.tokens_done, self._total)
        if not math.isfinite(norm):
            return
        clip([g for stage in self._stages.values() for g in stage.gradients()], norm, self._spec.clip_norm)
        take_step(self._optimizer, self.rate)

    def tensors(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Optimizer state of parameters by name, by `parameter/kind`; may be filled in place."""
        found: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            for kind, tensor in moments(self._optimizer, parameter).items():
                found[f"{name}/{kind}"] = tensor
        return found


def learning_rate(spec: OptimizerSpec, tokens: float, total: float) -> float:
    """Learning rate of the step that ends at `tokens` of the run's `total`: linear warm-up, then decay.

    Linear decay over the end of the run is the warm-up-stable-decay schedule (MiniCPM, arXiv 2404.06395, section 4).
    """
    warm = spec.warmup * total
    if tokens < warm:
        return spec.learning_rate * tokens / warm
    duration = total - warm if spec.decay == "cosine" else min(spec.decay_fraction * total, total - warm)
    remaining = min(max(total - tokens, 0.0) / duration, 1.0) if duration > 0 else float(spec.decay == "linear")
    left = 0.5 * (1.0 - math.cos(math.pi * remaining)) if spec.decay == "cosine" else remaining
    low = spec.final_learning_rate
    return spec.learning_rate * (low + (1.0 - low) * left)


def make_optimizer(spec: OptimizerSpec, modules: Iterable[nn.Module]) -> torch.optim.AdamW:
    """AdamW over all parameters of the modules; only weight matrices of linear layers and experts decay."""
    decay, keep = parameter_groups(modules)
    groups = [{"params": decay, "weight_decay": spec.weight_decay}, {"params": keep, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=spec.learning_rate,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
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
    """Optimizer state of a parameter: step count and moments; before the first step, their initial values."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        fused = optimizer.defaults["fused"]
        state["step"] = torch.zeros((), device=parameter.device if fused else None)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


def clip(gradients: Sequence[Tensor], norm: float, limit: float | None) -> None:
    """Scale gradients in place so that a global norm of `norm` becomes at most `limit`."""
    if not gradients or limit is None or not norm > limit:
        return
    torch._foreach_mul_(list(gradients), limit / norm)


def take_step(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One step at the learning rate `rate`; gradients are released afterwards."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
