"""Measured costs of recipes: the loss that a model reaches after so many tokens, by phases and depth."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from skippipe.config import PhaseConfig, PhasesConfig, RouteClass
from skippipe.errors import InputError, in_file, unexpected
from skippipe.files import read_text

FORMAT = "skippipe.costs/1"
FULL = "full"
"""Name of the recipe to which others are compared."""


@dataclass(frozen=True)
class MeasuredRun:
    """One training."""

    arm: str
    """its name in the source"""
    seed: int
    learning_rate: float
    """peak"""
    loss: float
    """of the full model at the end, in nats"""
    quarter: float | None = None
    """the same with a quarter of the stages left out afterwards; None: not evaluated"""
    half: float | None = None
    """the same with half of them left out"""


@dataclass(frozen=True)
class Recipe:
    """A schedule of phases, or a dense model of another depth, and its trainings."""

    name: str
    what: str
    """in words"""
    runs: Sequence[MeasuredRun]
    """at one or several learning rates"""
    depth: int | None = None
    """layers of a dense model; None: of the full depth"""
    phases: PhasesConfig | None = None
    """None: a dense model"""
    left_out: Sequence[float] = ()
    """fraction of the layer executions that each phase left out"""
    new_layers: str | None = None
    """train.new_layers; None: no layers join"""
    tokens: float | None = None
    """of a run; None: as many as the other recipes have"""

    def best(self, tolerance: float) -> list[MeasuredRun]:
        """The runs at the rate with the lowest mean loss; within `tolerance` of it, at that with the most runs."""
        rates = sorted({run.learning_rate for run in self.runs})
        by_rate = [[run for run in self.runs if run.learning_rate == rate] for rate in rates]
        means = [statistics.fmean(run.loss for run in runs) for runs in by_rate]
        close = [(-len(runs), mean, n) for n, (runs, mean) in enumerate(zip(by_rate, means, strict=True))]
        return by_rate[min(each for each in close if each[1] <= min(means) + tolerance)[2]]


@dataclass(frozen=True)
class Regime:
    """Recipes measured for one model and number of tokens."""

    name: str
    layers: int
    hidden: int
    tokens: float
    """of a run"""
    iteration_tokens: int
    """of an iteration"""
    tokens_per_parameter: float
    recipes: Sequence[Recipe]

    @property
    def iterations(self) -> int:
        """Of a run."""
        return round(self.tokens / self.iteration_tokens)

    def iterations_of(self, recipe: Recipe) -> int:
        """Of a run of a recipe."""
        return self.iterations if recipe.tokens is None else round(recipe.tokens / self.iteration_tokens)

    @property
    def full(self) -> Recipe:
        """The full pipeline throughout."""
        return next(recipe for recipe in self.recipes if recipe.name == FULL)


@dataclass(frozen=True)
class CostTable:
    """All that was measured."""

    source: str
    seeds_differ_by: float
    """by how much two seeds of a recipe differ, about, in nats: rates whose losses are as close count as equal"""
    regimes: Sequence[Regime]

    def regimes_of(self, depth: int, tokens: float | None) -> list[Regime]:
        """The regimes for a depth and, if given, a number of tokens.

        Raises:
            InputError: there is none: nothing is extrapolated.

        """
        measured = sorted({regime.layers for regime in self.regimes})
        if depth not in measured:
            hint = "costs are not extrapolated to other depths"
            raise unexpected("depth", depth, f"a measured depth: {', '.join(map(str, measured))}", hint=hint)
        found = [regime for regime in self.regimes if regime.layers == depth]
        if tokens is None:
            return found
        known = sorted({regime.tokens for regime in found})
        if tokens not in known:
            hint = "costs are not extrapolated to other lengths of a run"
            expected = f"null, or a measured number: {', '.join(f'{number:.4g}' for number in known)}"
            raise unexpected("tokens", f"{tokens:.4g}", expected, hint=hint)
        return [regime for regime in found if regime.tokens == tokens]


def load_costs(file: str | None) -> CostTable:
    """Read a `skippipe.costs/1` file; None: the one that ships.

    Raises:
        InputError: it cannot be read, or is no such file.

    """
    if file is None:
        text = resources.files("skippipe.proposal").joinpath("costs.json").read_text(encoding="utf-8")
    else:
        text = read_text(file)
    try:
        return _table(json.loads(text))
    except InputError as error:
        raise in_file(error, file or "costs.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(file=file, expected=f"a file in the format {FORMAT}", found=error) from None


def _table(content: Any) -> CostTable:
    if content["format"] != FORMAT:
        raise unexpected("format", content["format"], FORMAT)
    regimes = [
        Regime(**{**regime, "recipes": [_recipe(recipe) for recipe in regime["recipes"]]})
        for regime in content["regimes"]
    ]
    for regime in regimes:
        if FULL not in {recipe.name for recipe in regime.recipes}:
            raise unexpected("recipes", regime.name, f"a recipe {FULL!r} in every regime")
    return CostTable(content["source"], content["seeds_differ_by"], regimes)


def _recipe(content: dict[str, Any]) -> Recipe:
    phases = content.get("phases")
    runs = [MeasuredRun(**run) for run in content["runs"]]
    if not runs:
        raise unexpected("runs", "an empty list", "at least one run of every recipe")
    return Recipe(
        **{
            **content,
            "runs": runs,
            "phases": None if phases is None else PhasesConfig([_phase(phase) for phase in phases]),
        }
    )


def _phase(content: dict[str, Any]) -> PhaseConfig:
    classes = content.get("classes")
    return PhaseConfig(**{**content, "classes": None if classes is None else [RouteClass(**one) for one in classes]})
