"""Savings from knowing speed and memory of every node, if they differ by up to a factor of four.

    python benchmarks/heterogeneity.py [--seconds 5] [--seeds 10]

Clusters are drawn as the preset `synthetic`, 24 nodes in six stages with a random allocation, once with links as slow
as between regions and once with fast ones, under the rules of this project. Every cluster is planned as it is, and as
if its nodes were equal; that plan is then executed on the cluster as it is, in its own order and under the dispatch
rule, and the shorter time counts. Equal means: the mean speed, and either the least memory of all (which never
overcommits) or the mean, rounded (which may: its order is then refused, and dispatch has to do). Writes
out/heterogeneity.json, out/heterogeneity.md and out/heterogeneity.png.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from output import OUT, Row, markdown, note, percent, save
from synthetic import draw, preset

from skippipe import Cluster, Plan, simulate
from skippipe.allocation import allocation_of
from skippipe.config import ORDERS, LinkProfile, PlannerConfig, ScheduleConfig, SyntheticConfig
from skippipe.errors import DeadlockError, SchedulerError
from skippipe.planning import PlanningJob, make_plan, saving, state_problem

NODES, STAGES, MICROBATCHES = 24, 6, 24
SPREAD = 4.0
VIEWS = {
    "speed and memory": (True, "true"),
    "memory alone": (False, "true"),
    "speed alone": (True, "least"),
    "neither": (False, "least"),
    "neither, mean memory": (False, "mean"),
}
"""What the planner knows: the true speeds or their mean; and which memory it takes each node to have."""

Json = dict[str, Any]


def cluster_settings(links: str, seed: int) -> SyntheticConfig:
    """Nodes whose speeds and memories differ by up to a factor of four."""
    base = preset()
    return dataclasses.replace(
        base,
        seed=seed,
        nodes=NODES,
        speed_spread=SPREAD,
        node=dataclasses.replace(base.node, memory=1),
        memory_spread=3,
        farthest=base.farthest if links == "slow" else LinkProfile(latency_s=0.002, bandwidth=1.25e9),
    )


def seen(cluster: Json, *, speed: bool, memory: str) -> Json:
    """The cluster as the planner sees it."""
    nodes = [dict(node) for node in cluster["nodes"]]
    for key in () if speed else ("forward_s", "backward_s", "loss_s"):
        mean = statistics.harmonic_mean([node[key] for node in nodes])
        for node in nodes:
            node[key] = mean
    memories = [node["memory"] for node in nodes]
    equal = {"least": min(memories), "mean": round(statistics.mean(memories))}
    for node in nodes:
        node["memory"] = equal.get(memory, node["memory"])
    return cluster | {"nodes": nodes}


def executed(plan: Plan, cluster: Cluster) -> dict[str, float | None]:
    """Seconds that the routes of a plan take on another cluster, in the plan's order and under the dispatch rule."""
    moved = plan.with_cluster(cluster)
    times: dict[str, float | None] = {}
    for order in ORDERS:
        try:
            done = simulate(moved, order=order)
            times[order] = None if done.check() else done.predicted.iteration_s
        except DeadlockError:
            times[order] = None
    return times


def measure(links: str, seed: int, planner: PlannerConfig) -> list[Row]:
    """Plan one cluster with each view of it, and execute the result."""
    schedule = ScheduleConfig()
    problem = draw(cluster_settings(links, seed), STAGES, MICROBATCHES, schedule)
    true: Json = json.loads(problem.cluster.to_json())
    asked = dataclasses.replace(schedule, microbatches_per_source=MICROBATCHES // len(problem.stages[0]))
    rows = []
    for view, (speed, memory) in VIEWS.items():
        cluster = Cluster.from_json(json.dumps(seen(true, speed=speed, memory=memory)))
        row: Row = {"links": links, "seed": seed, "view": view}
        try:
            plan = make_plan(PlanningJob(state_problem(cluster, allocation_of(problem), asked)), "skippipe", planner)
        except SchedulerError as error:
            rows.append(row | {"planned_s": None, "plan_s": None, "dispatch_s": None, "iteration_s": None})
            note(f"{row}: {error}")
            continue
        times = executed(plan, problem.cluster)
        reached = [time for time in times.values() if time is not None]
        row |= {"planned_s": plan.predicted.iteration_s, "plan_s": times["plan"], "dispatch_s": times["dispatch"]}
        rows.append(row | {"iteration_s": min(reached, default=None)})
        note(str(rows[-1]))
    return rows


def gains(rows: list[Row], links: str, view: str) -> list[float]:
    """Share of the iteration that knowing everything saves against a view, for each cluster where both have one."""
    times = {(row["seed"], row["view"]): row["iteration_s"] for row in rows if row["links"] == links}
    seeds = sorted({seed for seed, _ in times})
    found = (saving(times[seed, "speed and memory"], times[seed, view]) for seed in seeds)
    return [gain for gain in found if gain is not None]


def table(rows: list[Row]) -> str:
    """Median times, and what knowing everything saves."""
    lines = []
    for links in dict.fromkeys(row["links"] for row in rows):
        for view in VIEWS:
            own = [row for row in rows if row["links"] == links and row["view"] == view]
            reached = [row["iteration_s"] for row in own if row["iteration_s"] is not None]
            saved = gains(rows, links, view)
            lines.append({
                "links": links, "planned with": view, "clusters": len(own),
                "its order cannot be kept": sum(row["plan_s"] is None for row in own),
                "deadlocks": len(own) - len(reached),
                "iteration, median, s": statistics.median(reached) if reached else None,
                "saved against it, median": percent(statistics.median(saved) if saved else None),
                "least": percent(min(saved, default=None)), "most": percent(max(saved, default=None)),
            })  # fmt: skip
    return markdown(lines)


def draw_figure(rows: list[Row], path: Path) -> None:
    """Savings over all clusters."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    for axis, links in zip(axes, dict.fromkeys(row["links"] for row in rows), strict=True):
        views = list(VIEWS)[1:]
        axis.boxplot(
            [[100 * gain for gain in gains(rows, links, view)] for view in views],
            tick_labels=[view.replace(", ", ",\n") for view in views],
        )
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_title(f"{links} links")
    axes[0].set_ylabel("saved by knowing speed and memory, %")
    figure.supxlabel("against planning with")
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each plan")
    parser.add_argument("--seeds", type=int, default=10, help="clusters of each kind")
    options = parser.parse_args(arguments)
    planner = PlannerConfig(time_limit_s=options.seconds)
    rows = [row for links in ("slow", "fast") for seed in range(options.seeds) for row in measure(links, seed, planner)]
    save("heterogeneity", vars(options), rows, table(rows))
    draw_figure(rows, OUT / "heterogeneity.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
