"""Build one stage's part of a model, never the whole, with weights that do not depend on how the model is cut."""

import hashlib
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from skippipe.errors import InputError
from skippipe.model.families import family_of
from skippipe.model.part import IGNORED_LABEL, StageModule
from skippipe.model.settings import config_sha256, model_config, part_config, plain_settings
from skippipe.model.weights import stage_weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = [
    "IGNORED_LABEL",
    "StageModule",
    "build_part",
    "config_sha256",
    "empty_part",
    "model_config",
    "plain_settings",
    "stage_layers",
]

INITIAL_DTYPE = torch.float32
"""weights are drawn in it, on the CPU, and then converted"""


def stage_layers(sizes: Sequence[int], config: "PretrainedConfig") -> list[range]:
    """Deal a model's layers to stages.

    Args:
        sizes: number of decoder layers of each stage, as a plan's `layers` has them.
        config: the model's.

    Returns:
        The numbers of each stage's layers.

    Raises:
        InputError: a stage has no layer, or the sizes do not add up to the model's layers.

    """
    total = int(config.num_hidden_layers)
    if min(sizes, default=0) < 1 or sum(sizes) != total:
        raise InputError(
            f"layers per stage are {list(sizes)}, numbers of at least 1 are expected whose sum is the model's {total}"
        )
    return [range(begin, end) for begin, end in pairwise(accumulate(sizes, initial=0))]


def build_part(  # noqa: PLR0913 - what a part is
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
    """Build one stage's part of a model.

    Without `weights`, every module's are drawn as transformers draws them, from a generator seeded by `seed` and the
    module's name in the whole model: whatever the cut, the same weights. One module at a time is held in float32 on
    the CPU.

    Args:
        config: the model's, by `model_config`.
        stage: number of the stage, for messages.
        layers: the numbers of its layers in the whole model.
        first: whether it is stage 0, with embedding, final norm and head.
        seed: of the weights, where they are drawn.
        dtype: of the weights.
        device: where they go.
        weights: a folder whose safetensors files hold them; of these, the tensors of this part alone are read.

    Returns:
        The part, in training mode.

    Raises:
        InputError: the weights in the folder cannot be used, or do not fit the configuration.

    """
    part = empty_part(config, stage=stage, layers=layers, first=first)
    if weights is None:
        _draw_all(part, config, seed, dtype, torch.device(device))
    else:
        read = stage_weights(config, weights, layers=layers, first=first, dtype=dtype)
        part.load_state_dict(read, strict=True, assign=True)
    _tie(part, config)
    for parameter in part.parameters():
        parameter.data = parameter.data.to(device)
    rebuild_buffers(part, torch.device(device))
    _check_complete(part)
    if dtype == torch.float64:
        part.use_plain_experts()
    return part.train()


def empty_part(config: "PretrainedConfig", *, stage: int, layers: range, first: bool) -> StageModule:
    """Build one stage's part on the meta device: every shape, no memory, no weights."""
    family = family_of(config.model_type)
    assert layers.step == 1, "a stage is a run of layers"
    assert 0 <= layers.start <= layers.stop <= config.num_hidden_layers, f"no layers {layers}"
    with torch.device("meta"):
        model: PreTrainedModel = family.model_class()(part_config(config, layers))
    part = StageModule(model, family, stage=stage, layers=layers, first=first)
    part.watch_routers(config)
    _tie(part, config)
    return part


def _draw_all(
    part: StageModule, config: "PretrainedConfig", seed: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Give all parameters of a part memory and first values; a tied head has none of its own."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, module in part.named_modules():
            if not (config.tie_word_embeddings and name == part.family.head):
                _draw(part, name, module, seed)
                _convert(module, dtype, device)


def _draw(part: StageModule, name: str, module: nn.Module, seed: int) -> None:
    """Give a module's own parameters memory and values."""
    own = dict(module.named_parameters(recurse=False))
    if not own:
        return
    for key, parameter in own.items():
        values = torch.full(parameter.shape, float("nan"), dtype=INITIAL_DTYPE)
        setattr(module, key, nn.Parameter(values, requires_grad=parameter.requires_grad))
    torch.default_generator.manual_seed(module_seed(seed, name))  # the CPU alone, unlike torch.manual_seed
    part.draw(module)
    for key, parameter in module.named_parameters(recurse=False):
        if parameter.isnan().any():
            raise RuntimeError(f"transformers gives {name}.{key} no first value")


def module_seed(seed: int, name: str) -> int:
    """Seed of the weights of one module, by its name in the whole model: 63 bits of a hash."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1


def _convert(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(device=device, dtype=dtype)


def _tie(part: StageModule, config: "PretrainedConfig") -> None:
    """Let the head share the embedding's weights, where the model has it so; both are on stage 0."""
    if part.first and config.tie_word_embeddings:
        part.head.weight = part.embedding.weight


def rebuild_buffers(part: StageModule, device: torch.device) -> None:
    """Compute what is no weight, the frequencies of the rotary embedding, in float32 where the layers are."""
    rotary, config = part.rotary, part.config
    rebuilt = type(rotary)(config=config)
    for name, buffer in rebuilt.named_buffers():
        setattr(rotary, name, buffer.to(device))


def _check_complete(part: StageModule) -> None:
    missing = [name for name, tensor in part.state_dict(keep_vars=True).items() if tensor.is_meta]
    missing += [name for name, buffer in part.named_buffers() if buffer.is_meta]
    assert not missing, f"never given values: {', '.join(missing)}"
