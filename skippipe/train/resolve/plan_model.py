"""The part `model` of a plan: which model it was made for, and whether that is the one to be trained."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skippipe._scheduler import Plan
from skippipe.allocation import even_shares
from skippipe.devices import wire_bytes
from skippipe.errors import shown, unexpected


@dataclass(frozen=True)
class PlanModel:
    """What a plan says about the model that it was made for."""

    config_sha256: str
    hidden: int
    layers: int
    microbatch_size: int
    sequence: int
    wire_dtype: str

    @property
    def message_bytes(self) -> int:
        """Bytes of one message, activations or gradients of a microbatch."""
        return self.microbatch_tokens * wire_bytes(self.wire_dtype, self.hidden)

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.microbatch_size * self.sequence


SETTING_OF = {
    "hidden": "model.hidden_size",
    "layers": "model.num_hidden_layers",
    "microbatch_size": "train.microbatch_size",
    "sequence": "data.sequence",
    "wire_dtype": "runtime.wire_dtype",
    "config_sha256": "model",
}
"""The setting behind each field; those that are easiest to understand first."""


def check_model(plan: Plan, model: Mapping[str, Any], origin: str) -> None:
    """Raise `InputError` if a plan was made for another model; it may say nothing of its model.

    Args:
        plan: as read from a file.
        model: fields of `PlanModel` of the model to be trained, as far as they are known.
        origin: the file.

    """
    if plan.model is None:
        return
    stated: Mapping[str, Any] = json.loads(plan.model)
    for name, key in SETTING_OF.items():
        ours = model.get(name)
        if name in stated and ours is not None and stated[name] != ours:
            raise unexpected(key, ours, shown(stated[name]), origin, "the plan is for another model")


def partition(stated: Sequence[int], asked: Sequence[int] | None, stages: int, layers: int, origin: str) -> list[int]:
    """Decoder layers of each stage: those asked for, else those of the plan, else as even as possible.

    Args:
        stated: by the plan; empty: it does not say.
        asked: `train.layers`.
        stages: how many.
        layers: of the model.
        origin: the plan, for messages.

    Raises:
        InputError: they do not fit the model or the plan.

    """
    if asked is not None:
        if stated and list(asked) != list(stated):
            raise unexpected("train.layers", list(asked), f"{list(stated)} as in {origin}")
        if len(asked) != stages or sum(asked) != layers or min(asked) < 1:
            expected = f"{stages} positive numbers that add up to the model's {layers} layers"
            raise unexpected("train.layers", list(asked), expected)
        return list(asked)
    if stated:
        if sum(stated) != layers:
            expected, hint = f"the {sum(stated)} layers of the plan's stages", "the plan is for another model"
            raise unexpected("model.num_hidden_layers", layers, expected, origin, hint)
        return list(stated)
    if stages > layers:
        raise unexpected("model.num_hidden_layers", layers, f"at least the number of stages, {stages}")
    return even_shares(layers, stages)
