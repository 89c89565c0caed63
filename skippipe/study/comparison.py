"""Loss differences between an experiment and its baseline: by seed, and the mean over seeds with its interval."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skippipe.evaluate.intervals import Interval, student
from skippipe.study.records import ArmRecord


@dataclass(frozen=True)
class LossDifference:
    """An arm and the baseline with the same seed, after the same number of tokens."""

    seed: int
    tokens: int
    """the largest number after which both were validated"""
    complete: bool
    """whether both trainings are complete"""
    loss: float
    """validation loss of the arm, in nats"""
    baseline: float
    """validation loss of the baseline"""

    @property
    def value(self) -> float:
        """The arm's loss minus the baseline's, in nats."""
        return self.loss - self.baseline


def loss_differences(entries: Iterable[ArmRecord], experiment: str, baseline: str) -> list[LossDifference]:
    """Compare an experiment with the baseline for every common seed, on the same corpus only."""
    of_seed = {entry.key: entry for entry in entries}
    found = []
    for (name, seed), entry in sorted(of_seed.items()):
        other = of_seed.get(type(entry.key)(baseline, seed))
        if name != experiment or other is None or entry.text != other.text:
            continue
        ours = {point.tokens: point.loss for point in entry.curve}
        theirs = {point.tokens: point.loss for point in other.curve}
        tokens = max(ours.keys() & theirs.keys() - {0}, default=None)
        if tokens is not None:
            complete = tokens == entry.tokens == other.tokens
            found.append(LossDifference(seed, tokens, complete, ours[tokens], theirs[tokens]))
    return found


def t_interval(values: Sequence[float]) -> Interval:
    """Mean with its 95% interval by Student's t; without bounds for fewer than two values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
