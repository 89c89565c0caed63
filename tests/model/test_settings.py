"""Models' settings: what is accepted, what is refused, and the messages."""

import copy
import re
from typing import Any

import pytest
from conftest import ROOT
from model.small import MODELS, SIZES, config_of

from skippipe.commands.groups import options
from skippipe.errors import InputError, unexpected
from skippipe.model.families import FAMILIES
from skippipe.model.settings import config_sha256, model_config, plain_settings

LLAMA = {**SIZES, "model_type": "llama"}
QWEN = {**SIZES, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 8}
GEMMA = {**SIZES, "model_type": "gemma3_text"}
GPT2 = {"model_type": "gpt2", "vocab_size": 97, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
MIXTRAL = {**SIZES, "model_type": "mixtral", "num_key_value_heads": 2}


@pytest.mark.parametrize("kind", ["gemma3", "bert", "", None, 3, ["llama"]])
def test_other_architectures_are_refused_with_the_page_to_read(kind: Any) -> None:
    with pytest.raises(InputError) as refusal:
        model_config({**LLAMA, "model_type": kind})
    expected = "one of llama, mistral, qwen2, qwen3, phi3, olmo2, gemma2, gemma3_text, gpt_neox, gpt2, mixtral"
    hint = "docs/models.md says how to add one"
    assert str(refusal.value) == str(unexpected("model.model_type", kind, expected, hint=hint))


def test_the_guide_lists_every_family_with_its_presets() -> None:
    rows = [line for line in (ROOT / "docs" / "models.md").read_text().splitlines() if line.startswith("| `")]
    families, presets = (" ".join(row.split(" | ")[column] for row in rows) for column in (0, 2))
    assert set(re.findall(r"`(\w+)`", families)) == FAMILIES.keys() | {"model_type"}
    assert set(re.findall(r"`(\w+)`", presets)) == options("model").keys() - {"pretrained"}


def test_settings_go_by_their_common_names() -> None:
    own = {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": 97}
    config = model_config(own)
    common = plain_settings(config)
    assert SIZES.items() - {("intermediate_size", 48)} <= common.items()
    assert not own.keys() & common.keys() - {"model_type", "vocab_size"}
    assert config_sha256(model_config(common)) == config_sha256(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**LLAMA, "hidden": 3}, "model.hidden: unknown setting of llama; choose from vocab_size, hidden_size, "),
        ({**LLAMA, "use_cache": True}, "model.use_cache: unknown setting of llama"),
        ({**LLAMA, "layer_types": ["full_attention"] * 4}, "model.layer_types: unknown setting of llama"),
        ({**LLAMA, "hidden_size": 0}, "model.hidden_size: expected an integer of at least 1, got 0"),
        ({**LLAMA, "hidden_size": "64"}, "model.hidden_size: expected an integer of at least 1, got '64'"),
        ({**LLAMA, "hidden_size": True}, "model.hidden_size: expected an integer of at least 1, got True"),
        ({**LLAMA, "num_hidden_layers": 2.0}, "model.num_hidden_layers: expected an integer"),
        ({**LLAMA, "vocab_size": None}, "vocab_size"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({**LLAMA, "attention_dropout": 1.0}, "model.attention_dropout: expected a number of at least 0 and below 1"),
        (
            {**LLAMA, "attention_dropout": float("nan")},
            "model.attention_dropout: expected a number of at least 0 and below 1, got nan",
        ),
        ({**LLAMA, "rms_norm_eps": -1e-6}, "model.rms_norm_eps: expected a finite number of at least 0, got -1e-06"),
        ({**LLAMA, "initializer_range": float("inf")}, "model.initializer_range: expected a finite number"),
        ({**LLAMA, "hidden_act": "swoosh"}, "model.hidden_act: expected one of "),
        (
            {**LLAMA, "num_key_value_heads": 3},
            "model.num_key_value_heads: expected a divisor of num_attention_heads (4)",
        ),
        ({**LLAMA, "num_attention_heads": 3}, "3"),
        ({**GPT2, "n_head": 3}, "model.num_attention_heads: expected a divisor of hidden_size (32), got 3"),
        ({**GPT2, "n_layer": 0}, "model.num_hidden_layers: expected an integer of at least 1, got 0"),
        (
            {**GPT2, "summary_type": "first"},
            "model.summary_type: unknown setting of gpt2; choose from vocab_size, max_po",
        ),
        ({**GPT2, "activation_function": "swoosh"}, "model.activation_function: expected one of "),
        ({**GPT2, "resid_pdrop": 1}, "model.resid_pdrop: expected a number of at least 0 and below 1, got 1"),
        ({**GPT2, "add_cross_attention": True}, "model.add_cross_attention: expected false, got True; there is no enc"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "model.scale_attn_by_inverse_layer_idx: expected false"),
        ({**GEMMA, "use_bidirectional_attention": True}, "model.use_bidirectional_attention: expected false, got True"),
        (
            {**GEMMA, "final_logit_softcapping": 0.0},
            "model.final_logit_softcapping: expected a finite number of more th",
        ),
        ({**GEMMA, "sliding_window": None}, "model.sliding_window: expected a number for layers of sliding attention"),
        ({**GEMMA, "hidden_activation": "swoosh"}, "model.hidden_activation: expected one of "),
        (
            {**GEMMA, "rope_parameters": {"sliding_attention": {"rope_type": "bent"}}},
            "model.rope_parameters.sliding_attention.rope_type: expected one of ",
        ),
        ({**LLAMA, "hidden_size": 12}, "dimensions of a head, got 3 of 3"),
        ({**LLAMA, "pad_token_id": 97}, "model.pad_token_id: expected a token below vocab_size (97), got 97"),
        ({**LLAMA, "pad_token_id": -1}, "model.pad_token_id: expected a token below vocab_size (97), got -1"),
        ({**LLAMA, "rope_parameters": 10_000}, "model.rope_parameters: expected a mapping, got 10000"),
        ({**LLAMA, "rope_parameters": {"rope_type": "bent"}}, "model.rope_parameters.rope_type: expected one of "),
        (
            {**LLAMA, "rope_parameters": {"rope_theta": "1e4"}},
            "model.rope_parameters.rope_theta: expected a finite number of more than 0, got '1e4'",
        ),
        ({**LLAMA, "rope_parameters": {"rope_theta": 0}}, "model.rope_parameters.rope_theta: expected a finite number"),
        ({**LLAMA, "rope_parameters": {"rope_type": "linear"}}, "factor"),
        (
            {**LLAMA, "model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": 0.1}},
            "dimensions of a head, got 0 of 8",
        ),
        ({**QWEN, "layer_types": ["full_attention"] * 3}, "layer"),
        ({**QWEN, "layer_types": ["linear_attention"] * 4}, "a list of full_attention and sliding_attention"),
        ({**QWEN, "layer_types": ["sliding_attention"] * 4}, "model.sliding_window: expected use_sliding_window=true"),
        ({**MIXTRAL, "num_local_experts": 1}, "model.num_experts_per_tok: expected at most num_local_experts (1)"),
        (
            {**MIXTRAL, "router_aux_loss_coef": -1},
            "model.router_aux_loss_coef: expected a finite number of at least 0, got -1",
        ),
        (
            {**MIXTRAL, "router_jitter_noise": 2},
            "model.router_jitter_noise: expected a number of at least 0 and below 1, got 2",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_refused_with_its_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        model_config(settings)
    text = str(refusal.value)
    assert message in text
    assert text.startswith("model")
    assert "\n" not in text


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
