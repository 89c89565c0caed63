"""What `skippipe churn` shows and writes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from skippipe.churn.simulation import Progress, goodput
from skippipe.console.output import Console, plain_table
from skippipe.report.format import percent, seconds

HEADINGS = ("policy", "iterations", "goodput", "undone", "recoveries", "restarts", "redone", "waiting", "restarting")


def show_runs(console: Console, runs: Mapping[str, Progress], undisturbed_s: float, horizon_s: float) -> None:
    """A line for each policy."""
    rows = []
    for name, run in runs.items():
        spent = run.account
        done = f"{run.iterations:,}"
        share = percent(goodput(run, undisturbed_s, horizon_s))
        times = [percent(part / horizon_s) for part in (spent.redone, spent.waiting, spent.restarting)]
        rows.append((name, done, share, f"{run.undone:,}", str(run.losses), str(run.restarts), *times))
    console.print(plain_table(HEADINGS, rows))
    console.write_line(
        f"Goodput: iterations done, as a fraction of those of a run that loses nobody ({seconds(undisturbed_s)} each)."
    )


def document(
    runs: Mapping[str, Progress], undisturbed_s: float, horizon_s: float, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The results as JSON."""
    return {
        "format": "skippipe.churn-results/1",
        "settings": dict(settings),
        "undisturbed_s": undisturbed_s,
        "horizon_s": horizon_s,
        "policies": {
            name: {
                "iterations": run.iterations,
                "goodput": goodput(run, undisturbed_s, horizon_s),
                "undone": run.undone,
                "recoveries": run.losses,
                "restarts": run.restarts,
                "seconds": dataclasses.asdict(run.account),
                "points": run.points,
            }
            for name, run in runs.items()
        },
    }


def draw_runs(runs: Mapping[str, Progress], undisturbed_s: float, horizon_s: float) -> Any:
    """Iterations over time for each policy, as a figure of matplotlib."""
    # Imported late: it takes a second.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 5), dpi=100, layout="constrained")
    axes = figure.subplots()
    hours = horizon_s / 3600
    axes.plot([0, hours], [0, horizon_s / undisturbed_s], color="0.7", linestyle="--", label="undisturbed")
    for name, run in runs.items():
        axes.plot([moment / 3600 for moment, _ in run.points], [done for _, done in run.points], label=name)
    axes.set_xlabel("hours")
    axes.set_ylabel("iterations")
    axes.set_xlim(0, hours)
    axes.set_ylim(0)
    axes.legend(frameon=False)
    return figure
