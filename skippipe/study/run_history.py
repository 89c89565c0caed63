"""What the lines of a run's `metrics.jsonl` come to."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from skippipe.train.events import Event


class Point(NamedTuple):
    """The whole model's losses at some point of a run, in nats."""

    tokens: int
    """trained on before"""
    loss: float
    """on the validation text"""
    training_loss: float | None
    """on training text, where that was taken"""


@dataclass
class RunHistory:
    """A run so far. Of what was done twice, after a process was killed, the later lines count."""

    plan: Event
    iterations: dict[int, Event] = field(default_factory=dict)
    """by number"""
    validations: dict[int, Event] = field(default_factory=dict)
    """by the iterations before"""
    summary: Event | None = None
    """told at the end"""

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
        """Losses over tokens; those that are not finite, of a run that is about to fail, are left out."""
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
        """Of a figure of the iterations; None where they do not tell it."""
        found = [event[name] for event in self.iterations.values() if event.get(name) is not None]
        return statistics.median(found) if found else None


def parse_lines(lines: Iterable[str]) -> list[Event]:
    """Parse lines; those that are torn are passed over."""
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
    """Put together what the events of a run come to; None where it has not begun.

    A line of an iteration takes the place of everything from there on that was told before.
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
        elif kind == "attempt":  # goes on after this iteration: what an earlier one has told of later ones is void
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


def _forget(told: dict[int, Event], first: int) -> None:
    """Drop what is told of `first` and later."""
    for number in [number for number in told if number >= first]:
        del told[number]
