"""The shapes of the figure's models against the models themselves."""

import pytest
from transformers import LlamaConfig

from skippipe.bench.figure3.shapes import MODELS, SEQUENCE
from skippipe.model.flops import head_flops, layer_flops
from skippipe.model.stage_module import empty_stage_module


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_operations_are_those_of_the_model(name: str) -> None:
    shape = MODELS[name]
    head_width = 128 if name != "500m" else 64
    config = LlamaConfig(
        hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // head_width, num_key_value_heads=shape.key_width // head_width,
        vocab_size=shape.vocabulary, tie_word_embeddings=False,
    )  # fmt: skip
    assert shape.head_flops == head_flops(config)
    first = empty_stage_module(config, stage=0, layers=range(2), first=True)
    later = empty_stage_module(config, stage=1, layers=range(2), first=False)
    assert layer_flops(later, SEQUENCE) == pytest.approx([shape.layer_flops] * 2)
    assert sum(each.numel() for each in later.parameters()) == 2 * shape.layer_parameters
    outer = sum(each.numel() for each in first.parameters()) - 2 * shape.layer_parameters
    assert outer == shape.outer_parameters
