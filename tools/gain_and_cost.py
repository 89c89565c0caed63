"""Draw docs/gain_and_cost.svg: what skipping gains in time per iteration, and what it costs in loss.

    python tools/gain_and_cost.py          half a minute; needs matplotlib

Left: iterations planned for the cluster of the study `llama30m`, each strategy with its own allocation and equal work.
Right: validation losses of that study, from docs/studies/llama30m.json, relative to the full pipeline of the same seed.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import skippipe
from skippipe.application import compose
from skippipe.planning import planning_job

DOCS = Path(__file__).parent.parent / "docs"
WORK = 2_000_000
RATIOS = (0.25, 1 / 3, 0.5)
THROUGHOUT = {"llama30m_25": 0.25, "llama30m_33": 1 / 3, "llama30m_50": 0.5}
FULL_AT_THE_END = {"llama30m_33_then_0": 1 / 3 * 0.8, "llama30m_50_to_0": 0.5 * 0.4 + 0.25 * 0.4}
"""Skip ratio on average over the run."""
MANY, FEW, OTHER = "#1f5f99", "#a9d3ee", "#b3005e"


def main() -> None:
    """Plan, read the losses, draw."""
    # Text as text, and the same file from the same figures.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "skippipe", "font.family": "sans-serif"}):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        time, loss = figure.subplots(1, 2)
        draw_times(time)
        draw_losses(loss)
        for axes in (time, loss):
            axes.set_xlabel("stage visits skipped")
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(DOCS / "gain_and_cost.svg", metadata={"Date": None, "Creator": None})


def draw_times(axes: Any) -> None:
    """Planned iterations by skip ratio."""
    settings = compose("plan", ["cluster=five_clusters", "allocate.sizes=[6,2,2,2,2,2,2,2]"])
    cluster = planning_job(settings.cluster, settings.allocate, settings.schedule).first.cluster

    def seconds(strategy: str, skip_ratio: float) -> float:
        problem = skippipe.Problem(cluster, sizes=settings.allocate.sizes, microbatches=4, skip_ratio=skip_ratio)
        predicted = skippipe.plan(problem, strategy=strategy, work_limit=WORK).predicted
        print(f"{strategy} {skip_ratio:.3f}: {predicted.iteration_s:.3f} s")  # noqa: T201
        return predicted.iteration_s

    routed = seconds("full-routed", 0.0)
    axes.plot(
        [0.0],
        [seconds("full", 0.0)],
        "s",
        color=OTHER,
        markersize=9,
        fillstyle="none",
        label="full: straight pipelines",
    )
    axes.plot([0.0], [routed], "o", color=FEW, markeredgecolor=MANY, label="full-routed: nothing skipped")
    times = [seconds("skippipe", ratio) for ratio in RATIOS]
    axes.plot([0.0, *RATIOS], [routed, *times], "-", color=MANY, zorder=0)
    axes.plot(RATIOS, times, "o", color=MANY, label="skippipe")
    axes.set_ylim(bottom=0)
    axes.set_title("gain: seconds per iteration (simulated)", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="lower left")


def draw_losses(axes: Any) -> None:
    """Final validation losses by skip ratio, relative to the full pipeline with the same seed."""
    final: dict[str, dict[int, float]] = defaultdict(dict)
    for entry in json.loads((DOCS / "studies" / "llama30m.json").read_text(encoding="utf-8"))["entries"]:
        final[entry["experiment"]][entry["seed"]] = entry["curve"][-1][1]

    def points(arms: dict[str, float]) -> list[tuple[float, float]]:
        losses = ((ratio, seed, final[arm][seed]) for arm, ratio in arms.items() for seed in final[arm])
        return [(ratio, loss - final["llama30m_0"][seed]) for ratio, seed, loss in losses]

    axes.plot([0.0], [0.0], "o", color=FEW, markeredgecolor=MANY)
    axes.plot(*zip(*points(THROUGHOUT), strict=True), "o", color=MANY, label="throughout, as published")
    axes.plot(*zip(*points(FULL_AT_THE_END), strict=True), "^", color=OTHER, label="all stages in the last fifth")
    axes.set_ylim(bottom=-0.02)
    axes.set_title("cost: validation loss above full, nats (measured)", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper left")


if __name__ == "__main__":
    main()
