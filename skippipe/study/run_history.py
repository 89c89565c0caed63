"""The history of a run, from its `metrics.jsonl`."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skippipe.train.observe.events import (
    AttemptStarted,
    Event,
    IterationDone,
    PlanReady,
    RunSummary,
    ValidationDone,
)


class Point(NamedTuple):
    """The full model's losses at a point of a run, in nats per token."""

    tokens: int
    """trained on so far"""
    loss: float
    """validation loss"""
    training_loss: float | None
    """loss on training text, if measured"""


@dataclass
class RunHistory:
    """A run so far; if iterations were repeated after a kill, later events count."""

    plan: PlanReady
    iterations: dict[int, IterationDone] = field(default_factory=dict)
    """by number"""
    validations: dict[int, ValidationDone] = field(default_factory=dict)
    """by the iterations before"""
    summary: RunSummary | None = None
    """reported at the end"""

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens that one iteration trains on."""
        return self.plan.microbatches * self.plan.microbatch_size * self.plan.sequence

    @property
    def tokens(self) -> int:
        """Tokens trained on."""
        return max(self.iterations, default=0) * self.tokens_per_iteration

    @property
    def curve(self) -> list[Point]:
        """Losses over tokens, without non-finite ones of a failing run."""
        return [
            Point(number * self.tokens_per_iteration, event.loss, event.training_loss)
            for number, event in sorted(self.validations.items())
            if math.isfinite(event.loss) and math.isfinite(event.training_loss or 0.0)
        ]

    @property
    def seconds(self) -> float:
        """Spent in iterations."""
        return float(sum(event.iteration_s for event in self.iterations.values()))

    def median(self, name: str) -> float | None:
        """Median of a field over the iterations; None if they do not have it."""
        found = [getattr(event, name) for event in self.iterations.values() if getattr(event, name) is not None]
        return statistics.median(found) if found else None


def read_run_history(events: Iterable[Event]) -> RunHistory | None:
    """Combine the events of a run; None if it has not begun.

    An iteration supersedes everything reported earlier from that iteration on.
    """
    history: RunHistory | None = None
    for event in events:
        if isinstance(event, PlanReady):
            if history is None:
                history = RunHistory(event)
            history.plan, history.summary = event, None
        elif history is not None:
            _add(history, event)
    return history


def _add(history: RunHistory, event: Event) -> None:
    match event:
        case AttemptStarted():  # continues after this iteration: what an earlier one reported of later ones is void
            _forget(history.iterations, event.iteration + 1)
            _forget(history.validations, event.iteration + 1)
            history.summary = None
        case IterationDone():
            _forget(history.iterations, event.iteration)
            _forget(history.validations, event.iteration)
            history.iterations[event.iteration] = event
        case ValidationDone():
            _forget(history.iterations, event.iteration + 1)
            _forget(history.validations, event.iteration)
            history.validations[event.iteration] = event
        case RunSummary():
            history.summary = event


def _forget(reported: dict[int, Any], first: int) -> None:
    """Drop what is reported of iteration `first` and later ones."""
    for number in [number for number in reported if number >= first]:
        del reported[number]
