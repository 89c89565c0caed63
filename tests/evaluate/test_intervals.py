"""Intervals have their nominal coverage."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from effort import cases

from skippipe.evaluate.intervals import Interval, Losses, mean_interval, student

EXPERIMENTS = cases(200, 100)
TRUE = 3.0


def coverage(make: Callable[[np.random.Generator], Losses], *, complete: bool = False) -> float:
    """Coverage of the interval of a mean whose true value is `TRUE`."""
    random = np.random.Generator(np.random.PCG64(17))
    held = 0
    for experiment in range(EXPERIMENTS):
        interval = mean_interval(make(random), 1, complete=complete, seed=experiment)
        held += interval.low <= TRUE <= interval.high
    return held / EXPERIMENTS


def crossed(draws: int, sequences: int, *, of_draws: float, of_text: float) -> Callable[[np.random.Generator], Losses]:
    """Losses with effects of draw, sequence and their interaction."""

    def make(random: np.random.Generator) -> Losses:
        rows = of_draws * random.standard_normal((draws, 1))
        # As skewed as losses are.
        columns = of_text * (random.exponential(size=(1, sequences)) - 1)
        return TRUE + rows + columns + 0.2 * random.standard_normal((draws, sequences))

    return make


@pytest.mark.parametrize(("of_draws", "of_text"), [(1.0, 0.3), (0.1, 3.0), (0.3, 1.5)])
def test_coverage_over_draws_and_text(of_draws: float, of_text: float) -> None:
    assert 0.91 <= coverage(crossed(10, 60, of_draws=of_draws, of_text=of_text)) <= 0.99


def test_draws_widen_the_interval_unless_complete() -> None:
    make = crossed(10, 60, of_draws=1.0, of_text=0.3)
    assert coverage(make, complete=True) < 0.5
    assert 0.91 <= coverage(crossed(1, 60, of_draws=0.0, of_text=1.0), complete=True) <= 0.99


def test_coverage_with_correlated_neighbours() -> None:
    """Sequences of one document are correlated."""

    def make(random: np.random.Generator) -> Losses:
        lengths = random.integers(1, 8, size=200)
        effects = random.standard_normal(200)
        means = np.repeat(effects, lengths)[None, :512]
        return TRUE + means + 0.3 * random.standard_normal(means.shape)

    assert 0.88 <= coverage(make, complete=True) <= 0.99


def test_width_agrees_with_theory() -> None:
    """A large sample of independent losses: 1.96 standard errors to each side."""
    losses = np.random.Generator(np.random.PCG64(3)).standard_normal((1, 4000))
    interval = mean_interval(losses * 7, 7, complete=True, seed=0)
    half = 1.96 * losses.std() / math.sqrt(4000)
    assert interval.value == pytest.approx(losses.mean())
    assert interval.high - interval.value == pytest.approx(half, rel=0.15)
    assert interval.value - interval.low == pytest.approx(half, rel=0.15)


def test_degenerate_and_unknown_intervals() -> None:
    same = mean_interval(np.full((3, 40), 8.0), 4, complete=False, seed=0)
    assert (same.value, same.low, same.high) == (2.0, 2.0, 2.0)
    for losses, complete in ((np.ones((5, 1)), True), (np.ones((1, 50)), False), (np.full((2, 50), np.nan), False)):
        interval = mean_interval(losses, 1, complete=complete, seed=0)
        assert (interval.low, interval.high) == (-math.inf, math.inf)


def test_same_seed_same_interval() -> None:
    losses = np.random.Generator(np.random.PCG64(1)).standard_normal((4, 50))
    first = mean_interval(losses, 1, complete=False, seed=1)
    assert mean_interval(losses, 1, complete=False, seed=1) == first
    assert mean_interval(losses, 1, complete=False, seed=2) != first


@pytest.mark.parametrize(
    ("freedom", "known"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (9, 2.26216), (19, 2.09302), (30, 2.04227)],
)
def test_student(freedom: int, known: float) -> None:
    assert student(freedom) == pytest.approx(known, rel=3e-6)


def test_from_losses_to_perplexities() -> None:
    ratio = Interval(math.log(1.1), math.log(1.05), math.log(1.2)).exp()
    assert ratio.minus_one().value == pytest.approx(0.1)
    assert ratio.minus_one().low == pytest.approx(0.05)
    assert ratio.minus_one().high == pytest.approx(0.2)
    assert Interval(1e4, -math.inf, math.inf).exp() == Interval(math.inf, 0.0, math.inf)
