"""Folders of small models, as transformers itself writes them."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from model.small import config_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.families import family_of
from skippipe.model.settings import model_config
from skippipe.model.stage_module import StageModule
from skippipe.model.weights import quiet

WEIGHTS = "model.safetensors"


def write_model(
    name: str, folder: Path, *, dtype: torch.dtype = torch.float32, shard: str = "5GB", **more: Any
) -> dict[str, Tensor]:
    """Have transformers draw a model of `MODELS` and write it; give its state dict."""
    config = config_of(name, **more)
    make: Any = family_of(config.model_type).model_class()
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(11)
        model = make(copy.deepcopy(config)).to(dtype)
        for parameter in model.parameters():  # tensors initialised as ones or zeros have to differ, too
            parameter.data += 0.01 * torch.randn_like(parameter)
        model.save_pretrained(folder, max_shard_size=shard)
    state: dict[str, Tensor] = model.state_dict()
    return state


def read_full_model(folder: Path) -> Any:
    """The model, as anybody reads it."""
    from transformers import AutoModelForCausalLM

    with quiet():
        return AutoModelForCausalLM.from_pretrained(folder).train()


def parts_in(
    folder: Path, sizes: Sequence[int] = (4,), dtype: torch.dtype = torch.float32, **own: Any
) -> list[StageModule]:
    """All parts of the model in a folder."""
    config = model_config({"folder": str(folder), **own})
    return [
        build_stage_module(config, stage=stage, layers=layers, first=stage == 0, seed=0, dtype=dtype, weights=folder)
        for stage, layers in enumerate(stage_layers(sizes, config))
    ]


def change_weights(folder: Path, changes: dict[str, Tensor | None]) -> None:
    """Replace, add or (None) take out tensors of a folder's one file."""
    state = load_file(folder / WEIGHTS) | changes
    kept = {name: tensor for name, tensor in state.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    """Change keys of a folder's `config.json`; None takes one out."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
