"""Plot of an evaluation: perplexity over the fraction of operations skipped, with draws as dots."""

import math
from collections.abc import Mapping, Sequence

from skippipe.evaluate.summary import NONE, Row
from skippipe.report.plots import png

MARKERS = {
    "random": "o", "every": "s", "last": "v", "stages": "D", "layers": "D", "lost": "X", "swap": "^", "swaps": "^",
}  # fmt: skip
"""by the kind of omission"""
MAX_LOG = 700.0
"""logarithm of the largest perplexity shown"""
KINDS = {
    "random": "random", "every": "every k-th", "last": "last (early exit)", "stages": "selected",
    "layers": "selected", "lost": "lost node", "swap": "swapped neighbours", "swaps": "swapped neighbours",
}  # fmt: skip


def draw_plot(rows: Mapping[str, Sequence[Row]]) -> bytes:
    """Plot the rows of each model as PNG."""
    # Imported late: it takes a second, and tables do without.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.lines import Line2D  # noqa: PLC0415

    figure = Figure(figsize=(7.5, 4.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.set_yscale("log")
    axes.set_ylim(*_limits([row for own in rows.values() for row in own]))
    legend = {name: Line2D([], [], color=f"C{number % 10}", linewidth=3) for number, name in enumerate(rows)}
    for number, own in enumerate(rows.values()):
        colour = f"C{number % 10}"
        shown = [row for row in own if math.isfinite(row.perplexity.value)]
        line = sorted((row.saved, row.perplexity.value) for row in shown if _kind(row) in (NONE, "random"))
        axes.plot([x for x, _ in line], [y for _, y in line], color=colour, linewidth=1.2, alpha=0.8)
        for row in shown:
            kind, marker, y = _kind(row), MARKERS.get(_kind(row)), row.perplexity.value
            if kind == NONE:
                axes.axhline(y, color=colour, linewidth=0.8, linestyle=":")
                continue
            each = [value for _, value in row.each]
            axes.scatter([row.saved] * len(each), each, color=colour, s=7, alpha=0.3, linewidths=0)
            axes.errorbar(row.saved, y, yerr=_bars(row), color=colour, marker=marker, markersize=6, capsize=3)
            legend.setdefault(KINDS[kind], Line2D([], [], color="0.3", marker=marker, linestyle="none"))
    axes.set_xlabel("fraction of the decoder layers' operations skipped")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("perplexity (bars: 95% CI of the increase on this corpus)")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.5g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:,.5g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.grid(alpha=0.25)
    axes.legend(list(legend.values()), list(legend), fontsize=8, frameon=False)
    return png(figure)


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Lowest and highest perplexity shown; never equal, which matplotlib's limits cannot handle."""
    known = [row for row in rows if math.isfinite(row.perplexity.value)]
    values = [value for row in known for value in (row.perplexity.value, *(one for _, one in row.each))]
    for row in known:
        ((down,), (up,)) = _bars(row)
        values += [row.perplexity.value - down, row.perplexity.value + up]
    shown = [math.log(value) for value in values if math.isfinite(value) and value > 0] or [0.0]
    margin = max(0.05 * (max(shown) - min(shown)), 0.01)
    return math.exp(min(shown) - margin), math.exp(min(max(shown) + margin, MAX_LOG))


def _kind(row: Row) -> str:
    return row.omission.partition(":")[0]


def _bars(row: Row) -> list[list[float]]:
    """Lower and upper error of the increase, as perplexity; zero if unknown."""
    if row.increase is None or not (math.isfinite(row.increase.low) and math.isfinite(row.increase.high)):
        return [[0.0], [0.0]]
    full = row.perplexity.value / (1 + row.increase.value)
    down, up = row.increase.value - row.increase.low, row.increase.high - row.increase.value
    return [[max(down, 0.0) * full], [max(up, 0.0) * full]]
