"""The table of an evaluation, as Markdown and for a terminal."""

import math
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from skippipe.evaluate.intervals import Interval
from skippipe.evaluate.summary import Row
from skippipe.report.format import markdown_table, percent
from skippipe.report.terminal import plain_table

HEADINGS = (
    "omission", "layers skipped", "draws", "perplexity", "95% CI", "increase", "95% CI", "FLOPs saved", "time saved",
)  # fmt: skip
MODEL = "model"
"""heading of the column of model names, if there are several models"""
Rows = Mapping[str, Sequence[Row]]
"""rows of each model by its name; the name of a single model is not shown"""


def cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table, grouped by omission."""
    omissions = list(dict.fromkeys(row.omission for own in rows.values() for row in own))
    several = len(rows) > 1
    lines = [
        [row.omission, *([name] if several else []), *_figures(row)]
        for omission in omissions
        for name, own in rows.items()
        for row in own
        if row.omission == omission
    ]
    return [HEADINGS[0], *([MODEL] if several else []), *HEADINGS[1:]], lines


def markdown(rows: Rows, notes: Sequence[str]) -> str:
    """The table with notes, as Markdown."""
    headings, lines = cells(rows)
    table = markdown_table(headings, lines, texts=2 if len(rows) > 1 else 1)
    return table + "\n\n" + "".join(f"- {note}\n" for note in notes)


def console_table(rows: Rows) -> Table:
    """The table for a terminal."""
    headings, lines = cells(rows)
    table = plain_table()
    table.padding = (0, 2, 0, 0)
    for heading in headings:
        table.add_column(
            heading.replace(" saved", "\nsaved"), justify="left" if heading in (HEADINGS[0], MODEL) else "right"
        )
    for line in lines:
        table.add_row(*line)
    return table


def _figures(row: Row) -> list[str]:
    return [
        f"{row.omitted_layers:g} of {row.layers}"
        if row.omitted_layers.is_integer()
        else f"{row.omitted_layers:.1f} of {row.layers}",
        f"all {row.draws}" if row.complete and row.draws > 1 else str(row.draws),
        _number(row.perplexity.value),
        _bounds(row.perplexity, _number),
        "-" if row.increase is None else _increase(row.increase.value),
        "-" if row.increase is None else _bounds(row.increase, _increase),
        percent(row.saved),
        "-" if row.time_ratio is None else percent(1 - row.time_ratio),
    ]


def _bounds(interval: Interval, show: Callable[[float], str]) -> str:
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return "unknown"
    return f"{show(interval.low)} to {show(interval.high)}"


def _number(value: float) -> str:
    """Four significant digits, or all digits of a larger number."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:#.4g}"


def _increase(value: float) -> str:
    return f"{value:+,.0%}" if abs(value) >= 1 else f"{value:+.1%}"
