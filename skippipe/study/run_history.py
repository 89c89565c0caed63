"""The history of a run, from its `metrics.jsonl`."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from skippipe.train.events import Event


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

    plan: Event
    iterations: dict[int, Event] = field(default_factory=dict)
    """by number"""
    validations: dict[int, Event] = field(default_factory=dict)
    """by the iterations before"""
    summary: Event | None = None
    """reported at the end"""

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens that one iteration trains on."""
        return int(self.plan["microbatches"] * self.plan["microbatch_size"] * self.plan["sequence"])

    @property
    def tokens(self) -> int:
        """Tokens trained on."""
        return max(self.iterations, default=0) * self.tokens_per_iteration

    @property
    def curve(self) -> list[Point]:
        """Losses over tokens, without non-finite ones of a failing run."""
        return [
            Point(number * self.tokens_per_iteration, event["loss"], event.get("training_loss"))
            for number, event in sorted(self.validations.items())
            if "not_finite" not in event
        ]

    @property
    def seconds(self) -> float:
        """Spent in iterations."""
        return float(sum(event["iteration_s"] for event in self.iterations.values()))

    def median(self, name: str) -> float | None:
        """Median of a metric over the iterations; None if not reported."""
        found = [event[name] for event in self.iterations.values() if event.get(name) is not None]
        return statistics.median(found) if found else None


def parse_lines(lines: Iterable[str]) -> list[Event]:
    """Parse events, skipping incomplete lines."""
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def read_run_history(events: Iterable[Event]) -> RunHistory | None:
    """Collect the events of a run; None if it has not started.

    An iteration supersedes everything reported earlier from that iteration on.
    """
    history: RunHistory | None = None
    for event in events:
        kind = event["event"]
        if kind == "plan":
            if history is None:
                history = RunHistory(event)
            history.plan, history.summary = event, None
        elif history is None:
            continue
        elif kind == "attempt":  # resumes after this iteration: earlier events of later iterations are void
            _forget(history.iterations, event["iteration"] + 1)
            _forget(history.validations, event["iteration"] + 1)
            history.summary = None
        elif kind == "iteration":
            _forget(history.iterations, event["iteration"])
            _forget(history.validations, event["iteration"])
            history.iterations[event["iteration"]] = event
        elif kind == "validation":
            _forget(history.iterations, event["iteration"] + 1)
            _forget(history.validations, event["iteration"])
            history.validations[event["iteration"]] = event
        elif kind == "summary":
            history.summary = event
    return history


def _forget(events: dict[int, Event], first: int) -> None:
    """Drop the events of `first` and later."""
    for number in [number for number in events if number >= first]:
        del events[number]
