"""Plots of a study's records: records in, PNG out."""

from collections.abc import Sequence

from skippipe.evaluate.plot import draw_plot
from skippipe.report.plots import png
from skippipe.study.markdown import CURVES, OMITTED, TIMES
from skippipe.study.records import ArmRecord
from skippipe.study.time_to_loss import Times, loss_over_time

STEEP = 0.1
"""fraction of the tokens before which high losses are cut off"""


def draw_figures(entries: Sequence[ArmRecord], times: Times | None = None) -> dict[str, bytes]:
    """All plots with data, by name."""
    figures = {}
    if any(len(_drawn(entry)) > 1 for entry in entries):
        figures[CURVES] = draw_curves(entries)
    if times is not None and any(len(_drawn(entry)) > 1 for entry in entries):
        figures[TIMES] = draw_times(entries, times)
    evaluated = {entry.key.title: entry.evaluation for entry in entries if entry.evaluation}
    if evaluated:
        figures[OMITTED] = draw_plot(evaluated)
    return figures


def draw_curves(entries: Sequence[ArmRecord]) -> bytes:
    """Validation loss over tokens: a colour for each experiment, the first seed thick; training loss dotted."""
    # Imported late: it takes a second, and only the end of a study plots.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.5, 4.8), dpi=100, layout="constrained")
    axes = figure.subplots()
    colours: dict[str, str] = {}
    for entry in entries:
        points = _drawn(entry)
        if len(points) < 2:
            continue
        first = entry.experiment not in colours
        colour = colours.setdefault(entry.experiment, f"C{len(colours) % 10}")
        axes.plot(
            [tokens for tokens, _, _ in points], [loss for _, loss, _ in points], color=colour,
            linewidth=1.6 if first else 0.7, alpha=1.0 if first else 0.7, label=entry.experiment if first else None,
        )  # fmt: skip
        trained = [(tokens, loss) for tokens, _, loss in points if loss is not None]
        if first and trained:
            axes.plot(*zip(*trained, strict=True), color=colour, linewidth=0.8, linestyle=":")
    axes.plot([], [], color="0.4", linewidth=0.8, linestyle=":", label="on training text")
    low, high = _range_of_losses(entries)
    axes.set_ylim(low, high)
    axes.set_xlim(left=0)
    axes.set_xlabel("training tokens, millions")
    axes.set_ylabel("validation loss of the full model, nats per token")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return png(figure)


def draw_times(entries: Sequence[ArmRecord], times: Times) -> bytes:
    """Validation loss over predicted time: a colour for each experiment, the first seed thick."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.5, 4.8), dpi=100, layout="constrained")
    axes = figure.subplots()
    runs = {run.experiment: run for run in times.runs if not run.how}
    colours: dict[str, str] = {}
    for entry in entries:
        points = loss_over_time(entry, runs[entry.experiment]) if entry.experiment in runs else []
        if len(points) < 2:
            continue
        first = entry.experiment not in colours
        colour = colours.setdefault(entry.experiment, f"C{len(colours) % 10}")
        axes.plot(
            [seconds / 3600 for seconds, _ in points], [loss for _, loss in points], color=colour,
            linewidth=1.6 if first else 0.7, label=entry.experiment if first else None,
        )  # fmt: skip
    axes.set_ylim(*_range_of_losses(entries))
    axes.set_xlim(left=0)
    axes.set_xlabel(f"predicted hours on {times.cluster}")
    axes.set_ylabel("validation loss, nats per token")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return png(figure)


def _range_of_losses(entries: Sequence[ArmRecord]) -> tuple[float, float]:
    """Limits of the axis: without the steep start, where arms are indistinguishable."""
    points = [point for entry in entries for point in _drawn(entry)]
    begin = max(tokens for tokens, _, _ in points) * STEEP
    later = [loss for tokens, *losses in points if tokens >= begin for loss in losses if loss is not None]
    margin = 0.03 * (max(later) - min(later)) or 0.1
    return min(later) - margin, max(later) + margin


def _drawn(entry: ArmRecord) -> list[tuple[float, float, float | None]]:
    """Points of a curve, tokens in millions, without the one before training."""
    return [(point.tokens / 1e6, point.loss, point.training_loss) for point in entry.curve if point.tokens]
