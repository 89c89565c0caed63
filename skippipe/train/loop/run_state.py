"""What all ranks know of a run: how far it is, and what the ranks of a generation go on with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from skippipe.allocation import Allocation
from skippipe.moves import Holding
from skippipe.train.loop.loss_scale import LossScale


@dataclass(frozen=True)
class RunProgress:
    """How far a run is when the loop starts."""

    iteration: int = 0
    """iterations done"""
    tokens: int = 0
    """tokens trained on"""
    position: int = 0
    """sequences of text used"""
    newest: int = -1
    """iteration of the newest checkpoint in the run's own folder; -1: there is none"""
    layers: frozenset[int] = frozenset()
    """decoder layers that have joined"""
    loss_scale: LossScale | None = None
    """of the next iteration; None: the initial one, if losses are scaled"""


@dataclass(frozen=True)
class RunMetadata:
    """What all ranks know of text and model."""

    text_sha256: str
    """of the training text"""
    training_tokens: int
    validation_microbatches: int
    """per validation"""
    tokenizer: str | None
    """tokenizer.json; None: on ranks other than 0"""
    model: dict[str, Any]
    """every setting of the model, by the names of transformers"""


@dataclass(frozen=True)
class PlanInForce:
    """The plan of a phase."""

    after: int
    """iterations before the phase"""
    plan: str
    """as JSON"""
    predicts: bool
    """whether its times hold for the run"""


@dataclass(frozen=True)
class RunState:
    """What the ranks of a new generation go on with: as its rank 0 sees it, so the same for all of them.

    One that was interrupted while a generation before this one got ready may see it otherwise.
    """

    progress: RunProgress
    holding: Holding
    """who has which weights, by rank of the new generation"""
    allocation: Allocation
    """of the run, so far"""
    phases: tuple[Allocation, ...]
    """of its phases, so far"""
    plans: tuple[PlanInForce, ...]
    """of the phases that are left, so far"""
    metadata: RunMetadata
    losses: tuple[float, ...]
    """of validations"""
    validated: int
    """iteration after which all have last completed a validation"""
    norm: str | None
    """of the latest iteration, as `float.hex` writes it"""
    latest: str | None
    """the event of the latest iteration, if its loss is known, as JSON"""
    validation: str | None
    """the event of the latest validation, as JSON"""

    def to_json(self) -> str:
        """As text for the other ranks; without the tokenizer."""
        current = {stage: sorted(ranks) for stage, ranks in self.holding.current.items()}
        progress, metadata = replace(self.progress, layers=frozenset()), replace(self.metadata, tokenizer=None)
        content = asdict(replace(self, holding=Holding({}, frozenset()), progress=progress, metadata=metadata))
        content["progress"]["layers"] = sorted(self.progress.layers)
        content["holding"] = {"current": current, "joined": sorted(self.holding.joined)}
        return json.dumps(content)

    @staticmethod
    def from_json(text: str) -> "RunState":
        """Read what rank 0 has written."""
        content: dict[str, Any] = json.loads(text)
        progress, holding = content.pop("progress"), content.pop("holding")
        scale = progress.pop("loss_scale")
        return RunState(
            progress=RunProgress(
                **progress | {"layers": frozenset(progress["layers"])},
                loss_scale=None if scale is None else LossScale(**scale),
            ),
            holding=Holding(
                {int(stage): frozenset(ranks) for stage, ranks in holding["current"].items()},
                frozenset(holding["joined"]),
            ),
            allocation=_allocation(content.pop("allocation")),
            phases=tuple(map(_allocation, content.pop("phases"))),
            plans=tuple(PlanInForce(**plan) for plan in content.pop("plans")),
            metadata=RunMetadata(**content.pop("metadata")),
            losses=tuple(content.pop("losses")),
            **content,
        )


def _allocation(content: Mapping[str, Sequence[Any]]) -> Allocation:
    return Allocation(
        [list(nodes) for nodes in content["stages"]], tuple(content["absent_stages"]), tuple(content["layers"]),
        tuple(content["absent_nodes"]), tuple(content["lost_stages"]),
    )  # fmt: skip
