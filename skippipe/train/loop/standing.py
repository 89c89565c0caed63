"""What a rank has done when a generation of a job ends, and what all that are left take as done. Pure.

The exchange of the norm is the vote: whoever has the norm of an iteration knows that all of its gradients are summed.
So if any rank that is left has stepped, all others can, and do; otherwise the iteration is dropped and done again.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Standing:
    """How far one rank is."""

    stepped: int
    """iterations whose optimizer step it has taken"""
    norm: str | None = None
    """norm of the latest of them, as `float.hex` writes it; None: it has taken no step in this process"""
    latest: str | None = None
    """the latest iteration whose loss it knows, as the JSON of an event"""
    latest_iteration: int = 0
    """its number"""
    validation: str | None = None
    """the latest validation, as the JSON of an event"""
    newest: int = -1
    """iteration of the newest checkpoint that it knows to be complete"""
    validated: int = -1
    """iteration after which it has last completed a validation"""
    phase: int = -1
    """iterations before the phase whose weights it has"""

    def to_json(self) -> str:
        """As text for the other ranks."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Standing":
        """Read what another rank has written."""
        return Standing(**json.loads(text))


@dataclass(frozen=True)
class CommonStanding:
    """How far all ranks are that go on."""

    iteration: int
    """iterations done; ranks that have done one less still take that step"""
    norm: float | None
    """of the latest of them"""
    latest: str | None
    """its event, if any rank knows its loss"""
    validation: str | None
    """the event of the validation after it, if all have completed one"""
    newest: int
    validated: int
    phase: int


def common_standing(standings: Sequence[Standing]) -> CommonStanding:
    """What all ranks take as done, from how far each of them is.

    No rank begins an iteration before all have stepped in the one before, so they are at most one step apart.
    """
    done = max(standing.stepped for standing in standings)
    assert min(standing.stepped for standing in standings) >= done - 1, "ranks are at most one step apart"
    norms = [standing.norm for standing in standings if standing.stepped == done and standing.norm is not None]
    latest = [standing.latest for standing in standings if standing.latest_iteration == done and standing.latest]
    validated = min(standing.validated for standing in standings)
    return CommonStanding(
        iteration=done,
        norm=float.fromhex(norms[0]) if norms else None,
        latest=latest[0] if latest else None,
        validation=standings[0].validation if validated == done else None,
        newest=max(standing.newest for standing in standings),
        validated=validated,
        phase=min(standing.phase for standing in standings),
    )
