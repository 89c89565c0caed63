"""Summary of results: perplexity, its relative increase and savings of each omission, with intervals."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skippipe.evaluate.intervals import Interval, mean_interval
from skippipe.evaluate.omission import Draws, LayerPath
from skippipe.evaluate.results import Result

NONE = "none"


@dataclass(frozen=True)
class Row:
    """Results of one omission."""

    omission: str
    omitted_layers: float
    """layers skipped, averaged over the draws"""
    layers: int
    """of the model"""
    saved: float
    """fraction of the decoder layers' FLOPs saved"""
    draws: int
    complete: bool
    """whether these are all possible draws"""
    perplexity: Interval
    """exponential of the mean loss over draws and tokens"""
    increase: Interval | None
    """relative to the full model on the same corpus; None for the full model itself"""
    time_ratio: float | None
    """forward time relative to the full model's; median over draws"""
    each: tuple[tuple[LayerPath, float], ...]
    """layer path and perplexity of every draw"""


def summarise(
    omissions: Mapping[str, Draws], known: Mapping[LayerPath, Result], flops: Sequence[float], tokens: int, seed: int
) -> list[Row]:
    """Summarise results.

    Args:
        omissions: with their draws; `none` among them.
        known: results of all their paths.
        flops: operations of each layer.
        tokens: tokens per sequence.
        seed: of the bootstrap.

    """
    full = known[omissions[NONE].paths[0]].losses
    return [_row(omission, draws, known, full, flops, tokens, seed) for omission, draws in omissions.items()]


def _row(  # noqa: PLR0913, PLR0917 - what a row is made of
    omission: str,
    draws: Draws,
    known: Mapping[LayerPath, Result],
    full: "np.ndarray[Any, np.dtype[np.float64]]",
    flops: Sequence[float],
    tokens: int,
    seed: int,
) -> Row:
    results = [known[path] for path in draws.paths]
    losses = np.stack([result.losses for result in results])
    ratios = [result.time_ratio for result in results if result.time_ratio is not None]
    perplexity = mean_interval(losses, tokens, complete=draws.complete, seed=seed).exp()
    increase = mean_interval(losses - full, tokens, complete=draws.complete, seed=seed).exp().minus_one()
    return Row(
        omission=omission,
        omitted_layers=len(flops) - statistics.fmean(len(path) for path in draws.paths),
        layers=len(flops),
        saved=1 - statistics.fmean(sum(flops[layer] for layer in path) for path in draws.paths) / sum(flops),
        draws=len(draws.paths),
        complete=draws.complete,
        perplexity=perplexity,
        increase=None if omission == NONE else increase,
        time_ratio=statistics.median(ratios) if ratios else None,
        each=tuple((r.path, Interval(float(r.losses.mean()) / tokens, 0.0, 0.0).exp().value) for r in results),
    )


def row_json(row: Row) -> dict[str, Any]:
    """A row as JSON; non-finite numbers become null."""
    return {
        "word": row.omission,
        "layers_left_out": row.omitted_layers,
        "layers": row.layers,
        "flops_saved": row.saved,
        "draws": row.draws,
        "all_draws": row.complete,
        "perplexity": _interval_json(row.perplexity),
        "rise": None if row.increase is None else _interval_json(row.increase),
        "time_ratio": row.time_ratio,
        "each_draw": [{"layers": list(path), "perplexity": _finite(value)} for path, value in row.each],
    }


def row_from_json(content: Mapping[str, Any]) -> Row:
    """Parse the result of `row_json`; raises `KeyError`, `TypeError` or `ValueError`."""
    increase = content["rise"]
    return Row(
        omission=str(content["word"]),
        omitted_layers=float(content["layers_left_out"]),
        layers=int(content["layers"]),
        saved=float(content["flops_saved"]),
        draws=int(content["draws"]),
        complete=bool(content["all_draws"]),
        perplexity=_interval(content["perplexity"]),
        increase=None if increase is None else _interval(increase),
        time_ratio=None if content["time_ratio"] is None else float(content["time_ratio"]),
        each=tuple(
            (tuple(int(layer) for layer in one["layers"]), _number(one["perplexity"], math.inf))
            for one in content["each_draw"]
        ),
    )


def _interval_json(interval: Interval) -> dict[str, float | None]:
    return {"value": _finite(interval.value), "low": _finite(interval.low), "high": _finite(interval.high)}


def _interval(content: Mapping[str, Any]) -> Interval:
    return Interval(
        _number(content["value"], math.inf), _number(content["low"], -math.inf), _number(content["high"], math.inf)
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: Any, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def table_json(about: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The complete table as JSON."""
    return json.dumps({**about, "rows": [row_json(row) for row in rows]}, indent=1, allow_nan=False) + "\n"
