"""Confidence intervals of mean losses over two sources of variance: text and skipped layers. No torch."""

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import mpmath
import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float64]
LEVEL = 0.95
RESAMPLES = 2000
RUN, LEAST_RUNS = 8, 32
"""Neighbouring sequences often belong to one document, so they are resampled in runs of at most `RUN`, and at least
`LEAST_RUNS` of them."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its 95% confidence interval."""

    value: float
    low: float
    high: float

    def exp(self) -> "Interval":
        """Of the exponential: perplexity from a loss, a ratio of perplexities from a difference of losses."""
        with np.errstate(over="ignore"):  # then it is infinite
            value, low, high = np.exp([self.value, self.low, self.high]).tolist()
        return Interval(value, low, high)

    def minus_one(self) -> "Interval":
        """A relative increase, from a ratio."""
        return Interval(self.value - 1, self.low - 1, self.high - 1)


def mean_interval(losses: Losses, tokens: int, *, complete: bool, seed: int) -> Interval:
    """Mean token loss in nats, with its interval by a crossed bootstrap.

    Draws and text are resampled independently, and their deviations added: every draw was evaluated on the same text,
    so draws are rows and sequences are columns. A bootstrap of few items gives too narrow intervals; deviations are
    widened to compensate, as with Student's t.

    Args:
        losses: sums over the tokens of a sequence, or differences of such sums, shape (draws, sequences).
        tokens: per sequence.
        complete: whether these are all possible draws, which then add no variance.
        seed: of the resampling.

    Returns:
        The mean; the bounds are unknown, minus and plus infinity, for a single sequence, a single draw of several
        possible ones, or a non-finite mean.

    """
    means = losses / tokens
    value = float(means.mean())
    if means.shape[1] < 2 or (len(means) < 2 and not complete) or not math.isfinite(value):
        return Interval(value, -math.inf, math.inf)
    random = np.random.Generator(np.random.PCG64(seed))
    deviations = _text_deviations(means.mean(axis=0), random)
    if not complete:
        deviations = deviations + _draw_deviations(means.mean(axis=1), random)
    low, high = np.quantile(deviations, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, value + float(low), value + float(high))


def _draw_deviations(means: Losses, random: np.random.Generator) -> Losses:
    """Deviations of the mean over resampled draws from the mean over all draws, shape (`RESAMPLES`,)."""
    counts = _counts(len(means), random)
    deviations: Losses = counts @ means / len(means) - means.mean()
    return deviations * widening(len(means))


def _text_deviations(means: Losses, random: np.random.Generator) -> Losses:
    """The same for sequences, resampled in runs of neighbours."""
    run = max(1, min(RUN, len(means) // LEAST_RUNS))
    runs = np.array_split(means, len(means) // run)
    sums, sizes = np.array([part.sum() for part in runs]), np.array([float(len(part)) for part in runs])
    counts = _counts(len(runs), random)
    deviations: Losses = (counts @ sums) / (counts @ sizes) - means.mean()
    return deviations * widening(len(runs))


def _counts(number: int, random: np.random.Generator) -> Losses:
    """How often each of `number` items is drawn in each resample, shape (`RESAMPLES`, number)."""
    return random.multinomial(number, np.full(number, 1 / number), size=RESAMPLES).astype(np.float64)


def widening(number: int) -> float:
    """Factor by which deviations of a bootstrap of `number` items, at least 2, are widened."""
    return math.sqrt(number / (number - 1)) * student(number - 1) / NormalDist().inv_cdf((1 + LEVEL) / 2)


@functools.cache
def student(degrees: int) -> float:
    """Quantile of Student's t with at least 1 degree of freedom, for intervals of `LEVEL`."""

    def outside(bound: float) -> mpmath.mpf:
        """Probability of a value beyond -bound or bound."""
        return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + bound**2), regularized=True)

    return float(mpmath.findroot(lambda bound: outside(bound) - (1 - LEVEL), (1.9, 13), solver="anderson"))
