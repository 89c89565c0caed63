"""From measured losses and predicted times to the phases that a run should have. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from skippipe.evaluate.intervals import Interval
from skippipe.proposal.costs import MeasuredRun, Recipe, Regime
from skippipe.study.comparison import t_interval


@dataclass(frozen=True)
class Timing:
    """A way to run a recipe on a cluster."""

    how: str
    """which allocation and stages, in words"""
    settings: Sequence[str]
    """what is set for it"""
    iteration_s: float
    """average over the run, in seconds"""
    changes_s: float
    """of all changes of phases"""
    bent_rules: Sequence[str] = ()


@dataclass(frozen=True)
class Candidate:
    """A recipe with what it costs in loss and in time."""

    recipe: Recipe
    seeds: int
    learning_rate: float
    """the recipe's best peak rate"""
    loss: float
    """mean over the seeds at that rate, in nats"""
    above_full: Interval
    """the mean of the differences from the full pipeline over common seeds, with its 95% interval"""
    quarter: float | None
    """mean loss with a quarter of the stages left out afterwards, over the runs that were evaluated so; None: none"""
    half: float | None
    """the same with half of them left out"""
    timing: Timing | None
    """the fastest way; None: the recipe was not measured as the cluster would run it"""
    run_s: float | None
    """seconds of a run of the measured number of iterations"""

    @property
    def reaches(self) -> bool:
        """Whether it ends at the full pipeline's loss or below it, on average."""
        return self.above_full.value <= 0

    @property
    def certain(self) -> bool:
        """Whether it does so outside the interval."""
        return self.above_full.high <= 0


@dataclass(frozen=True)
class Proposal:
    """What follows for one regime."""

    regime: Regime
    candidates: Sequence[Candidate]
    """in the order of the table"""
    chosen: Candidate | None
    """the one with the least time to the full pipeline's loss; None: no time is known"""

    @property
    def full(self) -> Candidate:
        """The full pipeline."""
        return next(each for each in self.candidates if each.recipe is self.regime.full)

    @property
    def faster(self) -> list[Candidate]:
        """Those that end above the full pipeline's loss in less time than the chosen one takes.

        With more tokens they might get there sooner: how many more is not measured.
        """
        if self.chosen is None or self.chosen.run_s is None:
            return []
        limit = self.chosen.run_s
        return [each for each in self.candidates if not each.reaches and each.run_s is not None and each.run_s < limit]


def propose(regime: Regime, timings: Sequence[tuple[Recipe, Timing | None]], tolerance: float) -> Proposal:
    """Compare the recipes of a regime, and choose.

    Args:
        regime: what was measured.
        timings: of its recipes on the cluster, each by its fastest way.
        tolerance: most by which two seeds differ, in nats: rates whose losses are as close as that count as equal.

    """
    candidates = [_candidate(regime, recipe, timing, tolerance) for recipe, timing in timings]
    known = [each for each in candidates if each.reaches and each.run_s is not None]
    chosen = min(known, key=lambda each: each.run_s or 0.0, default=None)
    return Proposal(regime, candidates, chosen)


def _candidate(regime: Regime, recipe: Recipe, timing: Timing | None, tolerance: float) -> Candidate:
    runs = recipe.best(tolerance)
    run_s = None if timing is None else regime.iterations_of(recipe) * timing.iteration_s + timing.changes_s
    return Candidate(
        recipe=recipe,
        seeds=len({run.seed for run in runs}),
        learning_rate=runs[0].learning_rate,
        loss=statistics.fmean(_by_seed(runs).values()),
        above_full=_above(runs, regime.full.best(tolerance)),
        quarter=_known_mean([run.quarter for run in runs]),
        half=_known_mean([run.half for run in runs]),
        timing=timing,
        run_s=run_s,
    )


def _known_mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) if known else None


def _above(runs: Sequence[MeasuredRun], full: Sequence[MeasuredRun]) -> Interval:
    """Differences of common seeds; without one, that of the means, without bounds."""
    ours, theirs = _by_seed(runs), _by_seed(full)
    if ours == theirs:
        return Interval(0.0, 0.0, 0.0)
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return t_interval([statistics.fmean(ours.values()) - statistics.fmean(theirs.values())])
    return t_interval([ours[seed] - theirs[seed] for seed in common])


def _by_seed(runs: Sequence[MeasuredRun]) -> dict[int, float]:
    """Mean loss of each seed."""
    return {
        seed: statistics.fmean(run.loss for run in runs if run.seed == seed) for seed in sorted({r.seed for r in runs})
    }
