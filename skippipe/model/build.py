"""Build the module of one stage, never the full model; weights do not depend on how the model is partitioned."""

import hashlib
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from skippipe.errors import unexpected
from skippipe.model.stage_module import StageModule, empty_stage_module
from skippipe.model.weights import stage_weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig

INITIAL_DTYPE = torch.float32
"""Weights are drawn in it, on the CPU, and then converted."""


def stage_layers(sizes: Sequence[int], config: "PretrainedConfig") -> list[range]:
    """Partition a model's decoder layers.

    Args:
        sizes: number of decoder layers of each stage, as in a plan's `layers`.
        config: of the model.

    Returns:
        The layer numbers of each stage.

    Raises:
        InputError: a stage has no layer, or the sizes do not add up to the model's layers.

    """
    total = int(config.num_hidden_layers)
    if min(sizes, default=0) < 1 or sum(sizes) != total:
        raise unexpected("layers", list(sizes), f"positive numbers that add up to the model's {total}")
    return [range(begin, end) for begin, end in pairwise(accumulate(sizes, initial=0))]


def build_stage_module(  # noqa: PLR0913 - what defines a stage
    config: "PretrainedConfig",
    *,
    stage: int,
    layers: range,
    first: bool,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    weights: Path | None = None,
) -> StageModule:
    """Build the module of one stage.

    Without `weights`, the parameters of every submodule are initialized as transformers does it, from a generator
    seeded by `seed` and the submodule's name in the full model: the same weights for every partition. One layer at a
    time is held in float32 on the CPU.

    Args:
        config: of the full model, by `model_config`.
        stage: number of the stage, for messages.
        layers: numbers of its layers in the full model.
        first: whether it is stage 0, with embedding, final norm and head.
        seed: of the initial weights.
        dtype: of the weights.
        device: where they go.
        weights: a folder whose safetensors files hold them; only this stage's tensors are read.

    Returns:
        The module, in training mode.

    Raises:
        InputError: the weights in the folder cannot be used, or do not fit the configuration.

    """
    module = empty_stage_module(config, stage=stage, layers=layers, first=first)
    rebuild_buffers(module, torch.device(device))
    if weights is None:
        _init_all(module, config, seed, dtype, torch.device(device))
    else:
        read = stage_weights(config, weights, layers=layers, first=first, dtype=dtype)
        module.load_state_dict(read, strict=True, assign=True)
    module.tie_head(config)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(device)
    _check_complete(module)
    if dtype == torch.float64:
        module.use_plain_experts()
    return module.train()


def _init_all(
    stage: StageModule, config: "PretrainedConfig", seed: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Allocate and initialize all parameters of a stage; a tied head has none of its own."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, unit in stage.named_units().items():
            if not (config.tie_word_embeddings and name == stage.family.head):
                for inner, module in reversed(list(unit.named_modules(prefix=name))):  # parts first, as transformers
                    _init(stage, inner, module, seed)
                _convert(unit, name, dtype, device)


def _init(stage: StageModule, name: str, module: nn.Module, seed: int) -> None:
    """Allocate a submodule's own parameters and initialize them, and those of its parts that it has a say in."""
    for key, parameter in module.named_parameters(recurse=False):
        values = torch.full(parameter.shape, float("nan"), dtype=INITIAL_DTYPE)
        setattr(module, key, nn.Parameter(values, requires_grad=parameter.requires_grad))
    torch.default_generator.manual_seed(module_seed(seed, name))  # the CPU alone, unlike torch.manual_seed
    stage.init_weights(module)


def module_seed(seed: int, name: str) -> int:
    """Seed of a submodule's initial weights, by its name in the full model: 63 bits of a hash."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1


def _convert(unit: nn.Module, name: str, dtype: torch.dtype, device: torch.device) -> None:
    for key, parameter in unit.named_parameters():
        if parameter.isnan().any():
            raise RuntimeError(f"transformers does not initialize {name}.{key}")
        parameter.data = parameter.data.to(device=device, dtype=dtype)


def rebuild_buffers(stage: StageModule, device: torch.device) -> None:
    """Compute the buffers of a stage whose weights are still on the meta device, in float32 on another one.

    They are no weights and in no file: rotary frequencies, the scale of an embedding.
    """
    with torch.no_grad():
        for module in stage.modules():
            own = dict(module.named_buffers(recurse=False))
            for name, buffer in own.items():
                setattr(module, name, torch.full(buffer.shape, float("nan"), dtype=INITIAL_DTYPE, device=device))
            if own:
                stage.init_weights(module)


def _check_complete(stage: StageModule) -> None:
    missing = [name for name, tensor in stage.state_dict(keep_vars=True).items() if tensor.is_meta]
    missing += [name for name, buffer in stage.named_buffers() if buffer.is_meta]
    assert not missing, f"never given values: {', '.join(missing)}"
