"""Counted operations against those that torch counts while a model runs."""

import pytest
import torch
from model.small import LAYERS, MODELS, config_of, parts_of, tokens
from torch.utils.flop_counter import FlopCounterMode

from skippipe.model.flops import head_flops, layer_flops

SEQUENCE, BATCH = 24, 3


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixtral"])
@torch.no_grad()
def test_layers_and_head_take_what_torch_counts(name: str) -> None:
    """Which takes attention for full: what lies above the diagonal is counted off."""
    config = config_of(name)
    (full_model,) = parts_of(config, [LAYERS])
    with FlopCounterMode(display=False) as counted:
        full_model.logits(full_model(full_model.embed(tokens(BATCH, SEQUENCE)))[0])
    width = config.num_attention_heads * (getattr(config, "head_dim", None) or 32 // config.num_attention_heads)
    above = LAYERS * 2 * 2 * width * (SEQUENCE - (SEQUENCE + 1) / 2)
    ours = sum(layer_flops(full_model, SEQUENCE)) + head_flops(config)
    assert ours + above == pytest.approx(counted.get_total_flops() / (BATCH * SEQUENCE), rel=1e-12)


def test_only_the_experts_that_a_token_goes_to_count() -> None:
    stages = [parts_of(config_of("mixtral", num_experts_per_tok=count), [LAYERS])[0] for count in (2, 4)]
    two, four = (layer_flops(stage, SEQUENCE)[0] for stage in stages)
    experts = 3 * 2 * 32 * 48
    assert four - two == pytest.approx(2 * experts)
