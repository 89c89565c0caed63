"""The tables of the figure, for a terminal and as Markdown. Pure functions."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from skippipe.bench.figure3.rows import Row, best_saving, optimum, wrong_rankings
from skippipe.bench.figure3.search import OWN, SAME, bar_name
from skippipe.console.output import plain_table
from skippipe.report.format import markdown_table, percent

NONE = "-"
TOLERANCE = 0.03
"""Predictions that differ by less may be ranked either way."""
COMPARED = {
    OWN: "each strategy with its own best allocation",
    SAME: "all strategies on the allocation of full",
}


@dataclass(frozen=True)
class FigureTable:
    """A table with its title."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int
    """columns of text; the others are numbers"""
    below: str = ""

    def markdown(self) -> str:
        """As a section of a page."""
        table = markdown_table(self.headings, self.rows, texts=self.texts)
        return "\n\n".join(part for part in (f"## {self.title}", table, self.below) if part)

    def console(self) -> Table:
        """For a terminal."""
        table = plain_table(self.headings, self.rows, left=range(self.texts), unbroken=range(len(self.headings)))
        table.title, table.caption = self.title, self.below or None
        table.title_justify = table.caption_justify = "left"
        return table


def tables(rows: Sequence[Row], straight: Sequence[Row], ratios: Sequence[Row]) -> list[FigureTable]:
    """All tables.

    Args:
        rows: of the figure.
        straight: of the companion with nothing skipped.
        ratios: of the companion over skip ratios.

    """
    found = [_summary(rows, allocation) for allocation in (OWN, SAME)]
    for all_reduce in dict.fromkeys(row.all_reduce for row in rows):
        found += [_figure(rows, allocation, all_reduce=all_reduce) for allocation in (OWN, SAME)]
    found.append(_tc2(rows))
    found += [_straight(straight)] if straight else []
    found += [_ratios(ratios)] if ratios else []
    measured = [row for row in (*rows, *straight, *ratios) if row.measured_s is not None]
    found += [_measured(measured)] if measured else []
    return [table for table in found if table.rows]


def _summary(rows: Sequence[Row], allocation: str) -> FigureTable:
    headings = (
        "network",
        "all-reduce",
        "best setting",
        "skipped",
        "saved vs full",
        "saved vs full-routed",
        "saved by TC2",
    )
    lines = [
        [
            row.network, _yes(row.all_reduce), f"{row.model}, {row.tokens:,} tokens", percent(row.skip_ratio),
            percent(row.saved_vs_full), percent(row.saved_vs_full_routed), percent(row.saved_by_tc2),
        ]
        for row in best_saving(rows, allocation)
    ]  # fmt: skip
    return FigureTable(f"What skippipe saves at best, {COMPARED[allocation]}", headings, lines, 3)


def _figure(rows: Sequence[Row], allocation: str, *, all_reduce: bool) -> FigureTable:
    """Seconds of an iteration: a line for each setting, a column for each bar."""
    shown = [row for row in rows if (row.allocation, row.all_reduce) == (allocation, all_reduce)]
    bars = list(dict.fromkeys((row.strategy, row.skip_ratio) for row in shown))
    by_key = {(row.setting, row.strategy, row.skip_ratio): row for row in shown}
    lines = []
    for setting in dict.fromkeys(row.setting for row in shown):
        times = [_time(by_key.get((setting, *bar))) for bar in bars]
        ours = [row for row in shown if row.setting == setting and row.strategy == "skippipe"]
        best = max(ours, key=lambda row: row.saved_vs_full or 0.0, default=None)
        saved = [NONE, NONE] if best is None else [percent(best.saved_vs_full), percent(best.saved_vs_full_routed)]
        lines.append([setting[0], setting[1], f"{setting[2]:,}", *times, *saved])
    with_or_without = "with all-reduce" if all_reduce else "without all-reduce"
    title = f"Seconds per iteration {with_or_without}, {COMPARED[allocation]}"
    headings = [
        "network",
        "model",
        "tokens",
        *(bar_name(*bar) for bar in bars),
        "saved vs full",
        "saved vs full-routed",
    ]
    return FigureTable(title, headings, lines, 2)


def _tc2(rows: Sequence[Row]) -> FigureTable:
    """What TC2 saves, over all models and tokens."""
    groups: dict[tuple[str, bool, str, float], list[float]] = {}
    for row in rows:
        if row.saved_by_tc2 is not None:
            groups.setdefault((row.network, row.all_reduce, row.allocation, row.skip_ratio), []).append(
                row.saved_by_tc2
            )
    lines = [
        [network, _yes(all_reduce), allocation, percent(ratio), percent(statistics.median(saved)), percent(min(saved)),
         percent(max(saved))]
        for (network, all_reduce, allocation, ratio), saved in groups.items()
    ]  # fmt: skip
    headings = ("network", "all-reduce", "allocation", "skipped", "saved by TC2: median", "least", "most")
    return FigureTable(
        "TC2 on and off", headings, lines, 3, "Over models and tokens, skippipe against skippipe-no-tc2."
    )


def _straight(rows: Sequence[Row]) -> FigureTable:
    """Straight pipelines against routed ones."""
    by_key = {(row.setting, row.allocation, row.strategy): row for row in rows}
    lines = [
        [
            *_where(setting), allocation, _time(by_key.get((setting, allocation, "full"))),
            _time(routed := by_key.get((setting, allocation, "full-routed"))),
            NONE if routed is None else percent(routed.saved_vs_full),
        ]
        for setting, allocation in dict.fromkeys((row.setting, row.allocation) for row in rows)
    ]  # fmt: skip
    count, stages = rows[0].nodes, rows[0].stages
    title = f"Nothing skipped: routed against straight pipelines, {count} nodes in {stages} stages"
    headings = ("network", "model", "tokens", "all-reduce", "allocation", "full, s", "full-routed, s", "saved")
    return FigureTable(title, headings, lines, 5)


def _ratios(rows: Sequence[Row]) -> FigureTable:
    """Iteration time over skip ratio, each with an allocation of its own."""
    own = [row for row in rows if row.allocation == OWN]
    by_key = {(row.strategy, row.skip_ratio): row for row in own}
    lines = []
    for ratio in sorted({row.skip_ratio for row in own}):
        ours = by_key.get(("skippipe" if ratio else "full-routed", ratio))
        no_tc2 = by_key.get(("skippipe-no-tc2", ratio))
        saved = [NONE, NONE] if ours is None else [percent(ours.saved_vs_full), percent(ours.saved_vs_full_routed)]
        lines.append([percent(ratio), _time(ours), _time(no_tc2), *saved])
    best = optimum(own)
    below = "" if best is None else (
        f"Shortest with {percent(best.skip_ratio)} skipped: {best.iteration_s:.2f} s, by time alone: what skipping "
        f"costs in loss is not counted. Straight pipelines (full): {_time(by_key.get(('full', 0.0)))} s."
    )  # fmt: skip
    network, model, tokens, all_reduce = _where(own[0].setting)
    title = f"Iteration time over skip ratio: {network}, {model}, {tokens} tokens, all-reduce: {all_reduce}"
    headings = ("skipped", "skippipe, s", "skippipe-no-tc2, s", "saved vs full", "saved vs full-routed")
    return FigureTable(title, headings, lines, 1, below)


def _measured(rows: Sequence[Row]) -> FigureTable:
    lines = [
        [
            *_where(row.setting), bar_name(row.strategy, row.skip_ratio), f"{row.predicted_s:.2f}",
            f"{row.measured_s:.2f}", f"{row.least_s:.2f} to {row.greatest_s:.2f}", percent(row.error),
            f"{row.time_scale:.3g}",
        ]
        for row in rows
    ]  # fmt: skip
    wrong = [
        f"{bar_name(fast.strategy, fast.skip_ratio)} and {bar_name(slow.strategy, slow.skip_ratio)} "
        f"({fast.network}, {fast.model}, {fast.tokens:,} tokens)"
        for fast, slow in wrong_rankings(rows, TOLERANCE)
    ]
    headings = (
        "network", "model", "tokens", "all-reduce", "strategy", "predicted, s", "measured, s", "range, s",
        "error of the prediction", "time scale",
    )  # fmt: skip
    below = f"Predictions include the exchange of the gradient norm. Wrong rankings: {'; '.join(wrong) or 'none'}."
    return FigureTable("Predicted and measured on emulated links", headings, lines, 5, below)


def _where(setting: tuple[str, str, int, bool, int]) -> list[str]:
    network, model, tokens, all_reduce, _ = setting
    return [network, model, f"{tokens:,}", _yes(all_reduce)]


def _yes(value: bool) -> str:  # noqa: FBT001
    return "yes" if value else "no"


def _time(row: Row | None) -> str:
    return NONE if row is None or row.iteration_s is None else f"{row.iteration_s:.2f}"
