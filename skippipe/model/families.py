"""What differs between the architectures that can be partitioned into stages.

All are decoder-only models of transformers: an embedding, a list of decoder layers with one hidden state between them,
a final norm and a head. Masks, rotary embeddings and whatever else a layer is given are left to the model class itself,
which is run on one stage's layers alone; so an architecture needs only a few names here. docs/models.md is the guide.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from skippipe.errors import unexpected

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

GUIDE = "docs/models.md says how to add one"


@dataclass(frozen=True)
class Family:
    """One architecture, under its `model_type` in transformers."""

    model_type: str
    """its name in a configuration"""
    body: str
    """the part of the model that holds embedding, layers and final norm; parameter names begin with it"""
    embedding: str
    """the embedding's name within the body"""
    norm: str
    """the final norm's name within the body"""
    layers: str = "layers"
    """name of the list of decoder layers within the body"""
    head: str = "lm_head"
    """name of the head, a sibling of the body"""
    rotary: str | None = "rotary_emb"
    """the rotary embedding's name within the body, where there is one"""
    positions: str | None = None
    """learned absolute positions, added to the embedding, where there are any"""
    embedding_dropout: str | None = None
    """dropout between the embedding and the first layer, where there is one"""
    logit_cap: str | None = None
    """setting that limits the logits softly, cap x tanh(logits / cap), where the architecture has it"""
    router: str | None = None
    """routes tokens to experts within a layer, in mixtures of experts; such layers have a load-balancing loss"""
    own_names: Mapping[str, str] = field(default_factory=dict)
    """settings that it has under names of its own, with the names that other architectures have for them"""
    off: Mapping[str, str] = field(default_factory=dict)
    """settings that must be false, each with the reason"""

    def config_class(self) -> "type[PretrainedConfig]":
        """The class of its configurations."""
        from transformers import CONFIG_MAPPING  # noqa: PLC0415 - slow

        return CONFIG_MAPPING[self.model_type]

    def model_class(self) -> "type[PreTrainedModel]":
        """The class of the full model with a language-modelling head."""
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: PLC0415 - slow

        return cast("type[PreTrainedModel]", MODEL_FOR_CAUSAL_LM_MAPPING[self.config_class()])

    def with_common_names(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The same settings, all by the names that other architectures have for them."""
        return {self.own_names.get(key, key): value for key, value in settings.items()}

    def layer_of(self, name: str) -> int | None:
        """Number of the decoder layer that a tensor belongs to, by its name; None: it is in none."""
        match = self._layer_name(name)
        return None if match is None else int(match[2])

    def renumbered(self, name: str, number: Callable[[int], int]) -> str:
        """Name of a tensor when layer n is called `number(n)`."""
        match = self._layer_name(name)
        return name if match is None else f"{match[1]}{number(int(match[2]))}{match[3]}"

    def _layer_name(self, name: str) -> re.Match[str] | None:
        """Prefix, number and rest of the name of a layer's tensor; older files leave out the body's name."""
        return re.fullmatch(rf"((?:.*?\.)?{self.layers}\.)(\d+)(\..+)", name)


_CAUSAL = {"use_bidirectional_attention": "a token is predicted from those before it"}
_NAMES_OF_GPT2 = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
_OFF_IN_GPT2 = {
    "add_cross_attention": "there is no encoder to attend to",
    "scale_attn_by_inverse_layer_idx": "a stage numbers its layers from 0",
}

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", "model", "embed_tokens", "norm"),
        Family("mistral", "model", "embed_tokens", "norm"),
        Family("qwen2", "model", "embed_tokens", "norm"),
        Family("qwen3", "model", "embed_tokens", "norm"),
        Family("phi3", "model", "embed_tokens", "norm"),
        Family("olmo2", "model", "embed_tokens", "norm"),
        Family("gemma2", "model", "embed_tokens", "norm", logit_cap="final_logit_softcapping", off=_CAUSAL),
        Family("gemma3_text", "model", "embed_tokens", "norm", logit_cap="final_logit_softcapping", off=_CAUSAL),
        Family("gpt_neox", "gpt_neox", "embed_in", "final_layer_norm", embedding_dropout="emb_dropout"),
        Family(
            "gpt2", "transformer", "wte", "ln_f", "h",
            rotary=None, positions="wpe", embedding_dropout="drop", own_names=_NAMES_OF_GPT2, off=_OFF_IN_GPT2,
        ),
        Family("mixtral", "model", "embed_tokens", "norm", router="mlp.gate"),
    )
}  # fmt: skip


def family_of(model_type: object) -> Family:
    """Look up an architecture.

    Raises:
        InputError: it cannot be partitioned into stages; the message lists those that can, and names the guide.

    """
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise unexpected("model.model_type", model_type, f"one of {', '.join(FAMILIES)}", hint=GUIDE)
    return family
