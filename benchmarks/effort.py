"""Planning time vs. iteration time, and plan quality vs. search budget, by size.

    python benchmarks/effort.py [--seconds 30] [--sizes 10 30 100 300 1000]
    python benchmarks/effort.py --nodes 10000 --stages 40 --microbatches 1500 [--seconds 60]

Clusters are drawn as the preset `synthetic`, with six stages and a random allocation, under the rules of this project.
The first form plans every number of nodes with every number of microbatches and writes out/effort.json, out/effort.md
and out/effort.png; the second plans one instance and also says how much memory that took (out/effort-large.json).
"""

import argparse
import itertools
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
from output import OUT, Row, markdown, note, save
from synthetic import draw, preset

from skippipe.config import PlannerConfig, ScheduleConfig
from skippipe.errors import NoPlanError
from skippipe.planning import PlanningJob, make_plan

NEAR = (1.05, 1.01)
"""Times to a plan within so much of the best one that was found."""


def measure(nodes: int, stages: int, microbatches: int, planner: PlannerConfig) -> Row:
    """Plan one instance; seconds throughout."""
    config = replace(preset(), nodes=nodes, regions=min(nodes, max(4, nodes // 25)))
    began = time.perf_counter()
    problem = draw(config, stages, microbatches, ScheduleConfig())
    row: Row = {"nodes": nodes, "stages": stages, "microbatches": microbatches}
    stated_s = time.perf_counter() - began
    try:
        plan = make_plan(PlanningJob(problem), "skippipe", planner)
    except NoPlanError as error:
        note(f"{row}: {error}")
        return row | dict.fromkeys(("iteration_s", "lower_bound_s", "gap", "first_s", *_near(), "wall_s", "events"))
    events = plan.solver.events
    plans = [(event.elapsed_s, event.upper_s) for event in events if event.upper_s is not None]
    best = plan.predicted.iteration_s
    row |= {
        "iteration_s": best,
        "lower_bound_s": plan.predicted.lower_bound_s,
        "gap": plan.predicted.gap,
        "first_s": plans[0][0] if plans else None,
        **{
            name: next((elapsed for elapsed, upper_s in plans if upper_s <= near * best), None)
            for name, near in zip(_near(), NEAR, strict=True)
        },
        "wall_s": plan.solver.wall_s,
    }
    note(f"stated in {stated_s:.1f} s, {row}")
    return row | {"events": [(event.elapsed_s, event.upper_s) for event in events]}


def _near() -> list[str]:
    return [f"within_{near - 1:.0%}_s".replace("%", "_percent") for near in NEAR]


def table(rows: list[Row]) -> str:
    """The table, without the curves."""
    return markdown([{key: value for key, value in row.items() if key != "events"} for row in rows])


def draw_figure(rows: list[Row], path: Path) -> None:
    """Planning time vs. iteration time, and the gap to the final plan over time."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    near = _near()[-1]
    for nodes in sorted({row["nodes"] for row in rows}):
        own = [row for row in rows if row["nodes"] == nodes and row[near] is not None]
        left.plot([row["iteration_s"] for row in own], [row[near] for row in own], marker="o", label=f"{nodes} nodes")
    left.set(xscale="log", yscale="log", xlabel="iteration, s", ylabel="planning to within 1 % of the best, s")
    ends = [min(row["iteration_s"] for row in rows), max(row["iteration_s"] for row in rows)]
    left.plot(ends, ends, color="grey", linewidth=0.8, linestyle=":", label="as long as an iteration")
    left.legend()
    for row in rows:
        if row["nodes"] == row["microbatches"] and row["events"]:
            found = [(elapsed_s, upper_s) for elapsed_s, upper_s in row["events"] if upper_s is not None]
            over = [100 * (upper_s / row["lower_bound_s"] - 1) for _, upper_s in found]
            label = f"{row['nodes']} nodes, {row['microbatches']} microbatches"
            right.step(
                [*(elapsed for elapsed, _ in found), row["wall_s"]], [*over, over[-1]], where="post", label=label
            )
    right.set(xscale="log", xlabel="planning, s", ylabel="above the last lower bound, %")
    right.legend()
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each plan")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--nodes", type=int, help="plan one instance of so many nodes")
    parser.add_argument("--stages", type=int, default=6)
    parser.add_argument("--microbatches", type=int, help="of that; six for each source where none are given")
    options = parser.parse_args(arguments)
    planner = PlannerConfig(time_limit_s=options.seconds)
    if options.nodes is None:
        rows = [
            measure(nodes, options.stages, microbatches, planner)
            for nodes, microbatches in itertools.product(options.sizes, repeat=2)
        ]
        save("effort", vars(options), rows, table(rows))
        draw_figure(rows, OUT / "effort.png")
        return 0
    microbatches = options.microbatches or 6 * -(-options.nodes // options.stages)
    row = measure(options.nodes, options.stages, microbatches, planner)
    row["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    save("effort-large", vars(options), [row], table([row]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
