"""What differs between the architectures that can be partitioned into stages.

All are decoder-only models of transformers: an embedding, a list of decoder layers with one hidden state between them,
a final norm and a head. Masks, positions and rotary embeddings are left to the model class itself, which is run on one
stage's layers alone; so an architecture needs only a few names here.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from skippipe.errors import unexpected

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Family:
    """One architecture, under its `model_type` in transformers."""

    model_type: str
    """its name in a configuration"""
    prefix: str
    """prefix of its class names"""
    body: str
    """the part of the model that holds embedding, layers and final norm; parameter names begin with it"""
    embedding: str
    """the embedding's name within the body"""
    norm: str
    """the final norm's name within the body"""
    head: str = "lm_head"
    """name of the head, a sibling of the body"""
    embedding_dropout: str | None = None
    """dropout between the embedding and the first layer, where there is one"""
    router: str | None = None
    """routes tokens to experts within a layer, in mixtures of experts; such layers have a load-balancing loss"""

    def config_class(self) -> "type[PretrainedConfig]":
        """The class of its configurations."""
        module = importlib.import_module(f"transformers.models.{self.model_type}.configuration_{self.model_type}")
        return cast("type[PretrainedConfig]", getattr(module, f"{self.prefix}Config"))

    def model_class(self) -> "type[PreTrainedModel]":
        """The class of the full model with a language-modelling head."""
        module = importlib.import_module(f"transformers.models.{self.model_type}.modeling_{self.model_type}")
        return cast("type[PreTrainedModel]", getattr(module, f"{self.prefix}ForCausalLM"))


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", "Llama", "model", "embed_tokens", "norm"),
        Family("qwen2", "Qwen2", "model", "embed_tokens", "norm"),
        Family("qwen3", "Qwen3", "model", "embed_tokens", "norm"),
        Family("gpt_neox", "GPTNeoX", "gpt_neox", "embed_in", "final_layer_norm", embedding_dropout="emb_dropout"),
        Family("mixtral", "Mixtral", "model", "embed_tokens", "norm", router="mlp.gate"),
    )
}


def family_of(model_type: object) -> Family:
    """Look up an architecture.

    Raises:
        InputError: it cannot be partitioned into stages; the message lists those that can.

    """
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise unexpected("model.model_type", model_type, f"one of {', '.join(FAMILIES)}")
    return family
