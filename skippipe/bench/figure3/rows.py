"""The rows of the figure: what JSON, CSV, tables and charts are made of."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skippipe.bench.figure3.search import Cell
from skippipe.planning import saving


@dataclass(frozen=True)
class Measured:
    """Iterations of a plan on emulated links, in seconds of the emulated cluster."""

    predicted_s: float
    """exchange of the gradient norm included, which the runtime has and the figure's iterations have not"""
    iterations_s: tuple[float, ...]
    """measured"""
    time_scale: float
    """factor on all times"""


@dataclass(frozen=True)
class Row:
    """One strategy in one setting; times in seconds, None where there is none."""

    network: str
    model: str
    tokens: int
    all_reduce: bool
    nodes: int
    stages: int
    skip_ratio: float
    strategy: str
    allocation: str
    """own, or same: that of `full`"""
    iteration_s: float | None
    lower_bound_s: float | None = None
    """for the plan's allocation"""
    saved_vs_full: float | None = None
    """fraction of the iteration time of `full` in the same setting and comparison"""
    saved_vs_full_routed: float | None = None
    saved_by_tc2: float | None = None
    """of `skippipe`: fraction of the iteration time of `skippipe-no-tc2` with the same skip ratio"""
    absent_nodes: int | None = None
    """nodes that the plan leaves out"""
    taken_from: str | None = None
    """the strategy whose plan was shorter than that of any search"""
    measured_s: float | None = None
    """median of the iterations on emulated links"""
    least_s: float | None = None
    greatest_s: float | None = None
    predicted_s: float | None = None
    """what `measured_s` is to be: `iteration_s` and the exchange of the norm"""
    error: float | None = None
    """of the prediction, relative to `measured_s`"""
    time_scale: float | None = None
    note: str = ""

    @property
    def setting(self) -> tuple[str, str, int, bool, int]:
        """What rows have in common that can be compared."""
        return self.network, self.model, self.tokens, self.all_reduce, self.stages


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """The rows of all settings, with savings."""
    return [row for setting in dict.fromkeys(cell.setting for cell in cells) for row in _of_setting(cells, setting)]


def _of_setting(cells: Iterable[Cell], setting: object) -> list[Row]:
    own = [cell for cell in cells if cell.setting == setting]
    times = {(cell.allocation, cell.strategy, cell.skip_ratio): cell.iteration_s for cell in own}
    return [_row(cell, times) for cell in own]


def _row(cell: Cell, times: dict[tuple[str, str, float], float | None]) -> Row:
    setting, plan, iteration_s = cell.setting, cell.plan, cell.iteration_s
    no_tc2_s = times.get((cell.allocation, "skippipe-no-tc2", cell.skip_ratio))
    return Row(
        setting.network, setting.model, setting.tokens, setting.all_reduce, sum(setting.sizes), len(setting.sizes),
        cell.skip_ratio, cell.strategy, cell.allocation, iteration_s,
        lower_bound_s=None if plan is None else plan.predicted.lower_bound_s,
        saved_vs_full=saving(iteration_s, times.get((cell.allocation, "full", 0.0))),
        saved_vs_full_routed=saving(iteration_s, times.get((cell.allocation, "full-routed", 0.0))),
        saved_by_tc2=saving(iteration_s, no_tc2_s) if cell.strategy == "skippipe" else None,
        absent_nodes=None if plan is None else len(plan.absent_nodes),
        taken_from=cell.taken_from,
        note=cell.note,
    )  # fmt: skip


def with_measured(row: Row, measured: Measured) -> Row:
    """The row with what was measured."""
    times = sorted(measured.iterations_s)
    median_s = (times[len(times) // 2] + times[(len(times) - 1) // 2]) / 2
    return dataclasses.replace(
        row,
        measured_s=median_s,
        least_s=times[0],
        greatest_s=times[-1],
        predicted_s=measured.predicted_s,
        error=measured.predicted_s / median_s - 1,
        time_scale=measured.time_scale,
    )


def best_saving(rows: Iterable[Row], allocation: str) -> list[Row]:
    """For each network, with and without all-reduce, the row of skippipe that saves most of the time of `full`."""
    best: dict[tuple[bool, str], Row] = {}
    for row in rows:
        if row.strategy != "skippipe" or row.allocation != allocation or row.saved_vs_full is None:
            continue
        key = (row.all_reduce, row.network)
        if key not in best or row.saved_vs_full > (best[key].saved_vs_full or 0.0):
            best[key] = row
    return list(best.values())


def optimum(rows: Iterable[Row]) -> Row | None:
    """The row of skippipe with the shortest iteration; of equal ones that which skips least."""
    found = [row for row in rows if row.strategy in {"skippipe", "full-routed"} and row.iteration_s is not None]
    return min(found, key=lambda row: (row.iteration_s, row.skip_ratio), default=None)


def wrong_rankings(rows: Sequence[Row], tolerance: float) -> list[tuple[Row, Row]]:
    """Pairs of measured rows of one setting of which the one predicted faster, by more than `tolerance`, was slower."""
    measured = [row for row in rows if row.measured_s is not None]
    return [
        (fast, slow)
        for fast in measured
        for slow in measured
        if fast.setting == slow.setting and _is_wrong(fast, slow, tolerance)
    ]


def _is_wrong(fast: Row, slow: Row, tolerance: float) -> bool:
    predicted = (fast.predicted_s or 0.0) * (1 + tolerance) < (slow.predicted_s or 0.0)
    return predicted and (fast.measured_s or 0.0) >= (slow.measured_s or 0.0)


def csv_text(rows: Sequence[Row]) -> str:
    """The rows as CSV, with a heading."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
    return buffer.getvalue()
