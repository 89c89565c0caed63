"""Models' settings: what is taken, what is refused, and how it is told."""

import copy
from typing import Any

import pytest
from model.small import MODELS, SIZES, config_of

from skippipe.errors import InputError
from skippipe.model.settings import config_sha256, model_config, plain_settings

LLAMA = {**SIZES, "model_type": "llama"}
QWEN = {**SIZES, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 8}
MIXTRAL = {**SIZES, "model_type": "mixtral", "num_key_value_heads": 2}


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "", None, 3, ["llama"]])
def test_other_architectures_are_refused_by_name(kind: Any) -> None:
    with pytest.raises(InputError) as refusal:
        model_config({**LLAMA, "model_type": kind})
    assert str(refusal.value) == (
        f"model.model_type is {kind!r}, one of llama, qwen2, qwen3, gpt_neox, mixtral is expected"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**LLAMA, "hidden": 3}, "model.hidden is no setting of llama, which has vocab_size, hidden_size, "),
        ({**LLAMA, "use_cache": True}, "model.use_cache is no setting of llama"),
        ({**LLAMA, "layer_types": ["full_attention"] * 4}, "model.layer_types is no setting of llama"),
        ({**LLAMA, "hidden_size": 0}, "model.hidden_size is 0, an integer of at least 1 is expected"),
        ({**LLAMA, "hidden_size": "64"}, "model.hidden_size is '64', an integer of at least 1 is expected"),
        ({**LLAMA, "hidden_size": True}, "model.hidden_size is True, an integer of at least 1 is expected"),
        ({**LLAMA, "num_hidden_layers": 2.0}, "model.num_hidden_layers is 2.0, an integer"),
        ({**LLAMA, "vocab_size": None}, "vocab_size"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({**LLAMA, "attention_dropout": 1.0}, "model.attention_dropout is 1.0, a number of at least 0 and below 1"),
        ({**LLAMA, "attention_dropout": float("nan")}, "model.attention_dropout is nan"),
        ({**LLAMA, "rms_norm_eps": -1e-6}, "model.rms_norm_eps is -1e-06, a finite number of at least 0"),
        ({**LLAMA, "initializer_range": float("inf")}, "model.initializer_range is inf, a finite number"),
        ({**LLAMA, "hidden_act": "swoosh"}, "model.hidden_act is 'swoosh', one of "),
        ({**LLAMA, "num_key_value_heads": 3}, "model.num_key_value_heads is 3, a divisor of num_attention_heads (4)"),
        ({**LLAMA, "num_attention_heads": 3}, "3"),
        ({**LLAMA, "hidden_size": 12}, "a head, which is 3 wide"),
        ({**LLAMA, "pad_token_id": 97}, "model.pad_token_id is 97, a token below vocab_size (97) is expected"),
        ({**LLAMA, "pad_token_id": -1}, "model.pad_token_id is -1"),
        ({**LLAMA, "rope_parameters": 10_000}, "model.rope_parameters is 10000, a mapping is expected"),
        ({**LLAMA, "rope_parameters": {"rope_type": "bent"}}, "model.rope_parameters.rope_type is 'bent', one of "),
        ({**LLAMA, "rope_parameters": {"rope_theta": "1e4"}}, "model.rope_parameters.rope_theta is '1e4'"),
        ({**LLAMA, "rope_parameters": {"rope_theta": 0}}, "model.rope_parameters.rope_theta is 0, a finite number"),
        ({**LLAMA, "rope_parameters": {"rope_type": "linear"}}, "factor"),
        (
            {**LLAMA, "model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": 0.1}},
            "rotary embeddings turn 0 numbers of a head, which is 8 wide",
        ),
        ({**QWEN, "layer_types": ["full_attention"] * 3}, "layer"),
        ({**QWEN, "layer_types": ["linear_attention"] * 4}, "a list of full_attention and sliding_attention"),
        ({**QWEN, "layer_types": ["sliding_attention"] * 4}, "model.sliding_window is None, use_sliding_window=true"),
        ({**MIXTRAL, "num_local_experts": 1}, "model.num_experts_per_tok is 2, at most num_local_experts (1)"),
        ({**MIXTRAL, "router_aux_loss_coef": -1}, "model.router_aux_loss_coef is -1, a finite number of at least 0"),
        ({**MIXTRAL, "router_jitter_noise": 2}, "model.router_jitter_noise is 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_refused_with_its_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        model_config(settings)
    told = str(refusal.value)
    assert message in told
    assert told.startswith("model")
    assert "\n" not in told


@pytest.mark.parametrize("name", MODELS)
def test_plain_settings_make_the_same_model(name: str) -> None:
    config = config_of(name)
    again = model_config(plain_settings(config))
    assert plain_settings(again) == plain_settings(config)
    assert config_sha256(again) == config_sha256(config)
    assert config_sha256(config_of(name, hidden_size=64)) != config_sha256(config)


def test_settings_are_left_as_they_were() -> None:
    settings = {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    before = copy.deepcopy(settings)
    model_config(settings)
    assert settings == before
