"""The bar chart like the paper's Figure 3, and iteration time over skip ratio, as SVG."""

import io
from collections.abc import Sequence
from typing import Any

from skippipe.bench.figure3.rows import Row, optimum
from skippipe.bench.figure3.search import OWN, bar_name

COLOURS = {
    "full": "#6e6e6e", "full-routed": "#bdbdbd", "random-skip": "#f0a53a", "skippipe-no-tc2": "#a9d3ee",
    "skippipe": "#1f5f99",
}  # fmt: skip
HATCHES = ("", "////", "....", "xxxx")
"""by skip ratio, the smallest first"""


def draw_bars(rows: Sequence[Row], allocation: str = OWN) -> str:
    """Iteration times relative to `full`: a panel for each model and network, a group for each number of tokens."""
    shown = [row for row in rows if row.allocation == allocation]
    networks, models = _unique(row.network for row in shown), _unique(row.model for row in shown)
    bars = _unique((row.strategy, row.skip_ratio) for row in shown)
    ratios = sorted({ratio for _, ratio in bars if ratio})
    figure = _figure(3.6 * len(networks) + 0.6, 2.3 * len(models) + 0.7)
    panels = figure.subplots(len(models), len(networks), squeeze=False, sharey=True)
    for model, line in zip(models, panels, strict=True):
        for network, axes in zip(networks, line, strict=True):
            own = [row for row in shown if (row.network, row.model) == (network, model)]
            _draw_panel(axes, own, bars, ratios)
            axes.set_title(f"{network}, {model}", fontsize=9, loc="left")
    for axes in panels[:, 0]:
        axes.set_ylabel("iteration / full")
    for axes in panels[-1]:
        axes.set_xlabel("tokens per microbatch (seconds of full)")
    handles = {bar_name(*bar): _patch(bar, ratios) for bar in bars}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(len(bars), 1 + len(networks)),
        fontsize=8,
        frameon=False,
    )
    return _svg(figure)


def _draw_panel(axes: Any, rows: Sequence[Row], bars: Sequence[tuple[str, float]], ratios: Sequence[float]) -> None:
    tokens = sorted({row.tokens for row in rows})
    times = {(row.tokens, row.strategy, row.skip_ratio): row.iteration_s for row in rows}
    full = {count: times.get((count, "full", 0.0)) for count in tokens}
    width = 0.86 / len(bars)
    for number, (strategy, ratio) in enumerate(bars):
        drawn = [
            (index, seconds / whole)
            for index, count in enumerate(tokens)
            if (whole := full[count]) and (seconds := times.get((count, strategy, ratio)))
        ]
        axes.bar(
            [index + (number - (len(bars) - 1) / 2) * width for index, _ in drawn],
            [height for _, height in drawn],
            width,
            **_style((strategy, ratio), ratios),
        )
    axes.axhline(1.0, color="0.4", linewidth=0.6)
    labels = [f"{count:,}\n({whole:.3g} s)" if (whole := full[count]) else f"{count:,}" for count in tokens]
    axes.set_xticks(range(len(tokens)), labels, fontsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _style(bar: tuple[str, float], ratios: Sequence[float]) -> dict[str, Any]:
    strategy, ratio = bar
    hatch = HATCHES[ratios.index(ratio) % len(HATCHES)] if ratio else ""
    return {"facecolor": COLOURS[strategy], "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}


def _patch(bar: tuple[str, float], ratios: Sequence[float]) -> Any:
    from matplotlib.patches import Patch  # noqa: PLC0415

    return Patch(**_style(bar, ratios))


def draw_ratios(rows: Sequence[Row]) -> str:
    """Iteration time over skip ratio, with TC2 and without, and the optimum marked."""
    own = [row for row in rows if row.allocation == OWN and row.iteration_s is not None]
    figure = _figure(6.0, 3.4)
    axes = figure.subplots()
    for strategy, straight in (("skippipe", "full-routed"), ("skippipe-no-tc2", None)):
        points = sorted((row.skip_ratio, row.iteration_s) for row in own if row.strategy in {strategy, straight})
        axes.plot(*zip(*points, strict=True), marker="o", color=COLOURS[strategy], label=strategy)
    full = [row.iteration_s for row in own if row.strategy == "full"]
    axes.plot([0.0] * len(full), full, "s", color=COLOURS["full"], label="full")
    best = optimum(own)
    if best is not None:
        axes.annotate(
            f"{best.skip_ratio:.1%}: {best.iteration_s:.2f} s", (best.skip_ratio, best.iteration_s),
            xytext=(0, -16), textcoords="offset points", ha="right", fontsize=8,
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("stage visits skipped")
    axes.set_ylabel("seconds per iteration (simulated)")
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:.0%}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return _svg(figure)


def _figure(width: float, height: float) -> Any:
    # Imported late: it takes a second, and rows and tables do without.
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Any) -> str:
    """The figure as SVG, with text as text, and the same from the same rows."""
    import matplotlib as mpl  # noqa: PLC0415

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "skippipe"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
