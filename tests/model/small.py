"""Small models of every architecture, and the full models of transformers that their parts are held against."""

import copy
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.families import family_of
from skippipe.model.settings import model_config
from skippipe.model.stage_module import StageModule

VOCABULARY, LAYERS = 97, 4
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2, "num_key_value_heads": 2}
GEMMA = {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 8}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 2},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, "attention_bias": True, "pad_token_id": 3},
    "llama-linear-rotary": {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "qwen2": {"model_type": "qwen2", **WINDOW},
    "qwen3": {"model_type": "qwen3", **WINDOW, "head_dim": 16, "tie_word_embeddings": True},
    "qwen3-mixed": {
        "model_type": "qwen3",
        **WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    },
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 5},
    "phi3": {
        "model_type": "phi3",
        "num_key_value_heads": 2,
        "pad_token_id": None,
        "sliding_window": 5,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
    },
    "olmo2": {"model_type": "olmo2", "num_key_value_heads": 2, "pad_token_id": None},
    "gemma2": {"model_type": "gemma2", **GEMMA, "attn_logit_softcapping": 0.1, "final_logit_softcapping": 0.2},
    "gemma2-untied": {"model_type": "gemma2", **GEMMA, "tie_word_embeddings": False, "final_logit_softcapping": None},
    "gemma3_text": {
        "model_type": "gemma3_text",
        **GEMMA,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "gemma3_text-untied": {"model_type": "gemma3_text", **GEMMA, "tie_word_embeddings": False},
    "gpt2": {"model_type": "gpt2", "n_inner": 48, **NO_DROPOUT},
    "gpt2-untied": {"model_type": "gpt2", "n_inner": 48, **NO_DROPOUT, "tie_word_embeddings": False},
    "gpt_neox": {"model_type": "gpt_neox"},
    "gpt_neox-serial": {"model_type": "gpt_neox", "use_parallel_residual": False, "tie_word_embeddings": True},
    "mixtral": {
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "sliding_window": 6,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.5,
    },
}
"""at least one of every architecture"""

CUTS = [
    [end - begin for begin, end in zip((0, *ends), (*ends, LAYERS), strict=True)]
    for count in range(LAYERS)
    for ends in combinations(range(1, LAYERS), count)
]
"""layers per stage, for every partition"""


def config_of(name: str, **more: Any) -> PretrainedConfig:
    """Configuration of one of `MODELS`, changed by `more`."""
    own = {key: value for key, value in SIZES.items() if key != "intermediate_size" or not name.startswith("gpt2")}
    return model_config({**own, **MODELS[name], **more})


TIED = [name for name in MODELS if config_of(name).tie_word_embeddings]
"""those whose head is the embedding"""


def parts_of(
    config: PretrainedConfig, sizes: Sequence[int], *, seed: int = 5, dtype: torch.dtype = torch.float32
) -> list[StageModule]:
    """All parts of a model."""
    return [
        build_stage_module(config, stage=stage, layers=layers, first=stage == 0, seed=seed, dtype=dtype)
        for stage, layers in enumerate(stage_layers(sizes, config))
    ]


def state_of(parts: Sequence[StageModule]) -> dict[str, Tensor]:
    """What the parts hold together, by name."""
    state: dict[str, Tensor] = {}
    for part in parts:
        own = part.state_dict()
        assert not state.keys() & own.keys()
        state.update(own)
    return state


def full_model_of(config: PretrainedConfig, parts: Sequence[StageModule], dtype: torch.dtype = torch.float32) -> Any:
    """The full model, as transformers builds it, with the parts' weights."""
    make: Any = family_of(config.model_type).model_class()
    model = make(copy.deepcopy(config)).to(dtype)
    if dtype == torch.float64:
        model.set_experts_implementation("eager")  # the other one has no float64
    model.load_state_dict(state_of(parts), strict=True)
    return model.train()


def tokens(batch: int, sequence: int, seed: int = 1) -> Tensor:
    """Random tokens, (b, s)."""
    return torch.randint(0, VOCABULARY, (batch, sequence), generator=torch.Generator().manual_seed(seed))


def logits_of(parts: Sequence[StageModule], given: Tensor, route: Sequence[int] | None = None) -> Tensor:
    """Logits of the parts run one after the other, or along a route."""
    hidden = parts[0].embed(given)
    for stage in range(len(parts)) if route is None else route:
        hidden, _ = parts[stage](hidden)
    return parts[0].logits(hidden)


def run_along(model: Any, numbers: Sequence[int], given: Tensor, **asked: Any) -> Any:
    """Outputs of a model of transformers that has these of its layers, in this order."""
    body, name = model.base_model, family_of(model.config.model_type).layers
    layers, config = getattr(body, name), body.config
    kinds = getattr(config, "layer_types", None)
    setattr(body, name, nn.ModuleList(layers[number] for number in numbers))
    body.config = copy.deepcopy(config)
    body.config.num_hidden_layers = len(numbers)
    if kinds is not None:
        body.config.layer_types = [kinds[number] for number in numbers]
    try:
        return model(given, use_cache=False, **asked)
    finally:
        setattr(body, name, layers)
        body.config = config
