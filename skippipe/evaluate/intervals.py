"""Confidence intervals of mean losses over two kinds of chance: which text, and which layers. Without torch."""

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
"""Neighbouring sequences are often of one document, so that they are resampled in runs of at most `RUN`, of which there
are at least `LEAST_RUNS`."""


@dataclass(frozen=True)
class Interval:
    """An estimate, and the bounds within which 95 % of such intervals hold what is estimated."""

    value: float
    low: float
    high: float

    def exp(self) -> "Interval":
        """Of the exponential: perplexity from a loss, a ratio of perplexities from a difference of losses."""
        with np.errstate(over="ignore"):  # then it is infinite
            value, low, high = np.exp([self.value, self.low, self.high]).tolist()
        return Interval(value, low, high)

    def minus_one(self) -> "Interval":
        """A rise, from a ratio."""
        return Interval(self.value - 1, self.low - 1, self.high - 1)


def mean_interval(losses: Losses, tokens: int, *, complete: bool, seed: int) -> Interval:
    """Mean loss of a token, in nats, with its interval by a crossed bootstrap.

    Draws and text are resampled apart, and their deviations add up: each draw was taken over the same text, so that a
    resampled draw is a row and a resampled text are columns. A bootstrap of few gives intervals that are too narrow;
    deviations are widened to make up for it, as Student's t does.

    Args:
        losses: sums over the tokens of a sequence, shape (draws, sequences); or differences of such.
        tokens: of a sequence.
        complete: the draws are all that there are: they are no source of chance then.
        seed: of the resampling.

    Returns:
        The mean; for a single sequence, a single draw of many possible ones, or a mean that is no finite number, bounds
        are not known, and are minus and plus infinity.

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
    """How far the mean over resampled draws is from that over the draws: `RESAMPLES` times."""
    counts = _counts(len(means), random)
    deviations: Losses = counts @ means / len(means) - means.mean()
    return deviations * widening(len(means))


def _text_deviations(means: Losses, random: np.random.Generator) -> Losses:
    """The same for sequences, in runs of neighbours."""
    run = max(1, min(RUN, len(means) // LEAST_RUNS))
    runs = np.array_split(means, len(means) // run)
    sums, sizes = np.array([part.sum() for part in runs]), np.array([float(len(part)) for part in runs])
    counts = _counts(len(runs), random)
    deviations: Losses = (counts @ sums) / (counts @ sizes) - means.mean()
    return deviations * widening(len(runs))


def _counts(number: int, random: np.random.Generator) -> Losses:
    """How often each of `number` is taken in each resample, shape (`RESAMPLES`, number)."""
    return random.multinomial(number, np.full(number, 1 / number), size=RESAMPLES).astype(np.float64)


def widening(number: int) -> float:
    """By how much deviations of a bootstrap of so many, at least 2, have to be widened."""
    return math.sqrt(number / (number - 1)) * student(number - 1) / NormalDist().inv_cdf((1 + LEVEL) / 2)


def student(degrees: int) -> float:
    """Quantile of Student's t with so many degrees of freedom, at least 1, for intervals of `LEVEL`."""

    def outside(bound: float) -> mpmath.mpf:
        """Probability of a value beyond -bound or bound."""
        return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + bound**2), regularized=True)

    return float(mpmath.findroot(lambda bound: outside(bound) - (1 - LEVEL), (1.9, 13), solver="anderson"))
