"""What the lines of a run's `metrics.jsonl` come to."""

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
    """The whole model's losses at some point of a run, in nats."""

    tokens: int
    """trained on before"""
    loss: float
    """on the validation text"""
    training_loss: float | None
    """on training text, where that was taken"""


@dataclass
class Progress:
    """A run so far. Of what was done twice, after a process was killed, the later lines count."""

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
        """Losses over tokens; those that are not finite, of a run that is about to fail, are left out."""
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
        """Of a field of the iterations; None where they do not have it."""
        found = [getattr(event, name) for event in self.iterations.values() if getattr(event, name) is not None]
        return statistics.median(found) if found else None


def read_progress(events: Iterable[Event]) -> Progress | None:
    """Put together what the events of a run come to; None where it has not begun.

    A line of an iteration takes the place of everything from there on that was told before.
    """
    progress: Progress | None = None
    for event in events:
        if isinstance(event, PlanReady):
            if progress is None:
                progress = Progress(event)
            progress.plan, progress.summary = event, None
        elif progress is not None:
            _add(progress, event)
    return progress


def _add(progress: Progress, event: Event) -> None:
    match event:
        case AttemptStarted():  # continues after this iteration: what an earlier one reported of later ones is void
            _forget(progress.iterations, event.iteration + 1)
            _forget(progress.validations, event.iteration + 1)
            progress.summary = None
        case IterationDone():
            _forget(progress.iterations, event.iteration)
            _forget(progress.validations, event.iteration)
            progress.iterations[event.iteration] = event
        case ValidationDone():
            _forget(progress.iterations, event.iteration + 1)
            _forget(progress.validations, event.iteration)
            progress.validations[event.iteration] = event
        case RunSummary():
            progress.summary = event


def _forget(reported: dict[int, Any], first: int) -> None:
    """Drop what is reported of iteration `first` and later ones."""
    for number in [number for number in reported if number >= first]:
        del reported[number]
