"""Savings from fitting stages to unequal nodes: layers searched with the allocation, or equal.

    python benchmarks/unequal.py [--seconds 5] [--seeds 8]

Clusters are drawn as the preset `synthetic`: 24 nodes whose speeds differ by up to four times, with memory for 2 to 6
microbatches, once with links as slow as between regions and once with fast ones; gradients are averaged as on
`five_clusters`. Every cluster is cut into six stages of four nodes and four layers by the surrogate, and planned from
there: as it is; with nodes exchanged between stages; also with 24 layers to distribute. All have the same number of
microbatches, time, rules and skip ratio. Writes out/unequal.json and out/unequal.md.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence

from heterogeneity import MICROBATCHES, NODES, STAGES
from heterogeneity import cluster_settings as settings_of_speeds
from output import Row, markdown, note, percent, save

from skippipe import _scheduler
from skippipe._scheduler import AllocationScope, Cluster, Plan, PlanRequest, Problem, allocate
from skippipe.allocation import even_sizes
from skippipe.config import ScheduleConfig, SyntheticConfig
from skippipe.planning import saving
from skippipe.presets import preset_spec

LAYERS = 24
GRADIENT_BYTES = 201326592.0
"""Of a stage of four layers."""
ALLOCATION_WORK = 50_000
LINKS = ("slow", "fast")
SCOPES: dict[str, AllocationScope | None] = {
    "as cut": None,
    "nodes": AllocationScope(),
    "nodes, layers": AllocationScope(layers=LAYERS),
}
"""What the planner may change of the allocation."""
EQUAL, FREE = "nodes", "nodes, layers"
"""Equal cuts at their best, and everything."""


def cluster_settings(links: str, seed: int) -> SyntheticConfig:
    """Nodes with speeds within a factor of four and memories within four microbatches."""
    base = settings_of_speeds(links, seed)
    return dataclasses.replace(base, node=dataclasses.replace(base.node, memory=2), memory_spread=4)


def equal_cut(cluster: Cluster) -> Problem:
    """Equal stages, by the surrogate, and the same number of microbatches for each source."""
    stages = allocate(cluster, even_sizes(NODES, STAGES), time_limit_s=None, work_limit=ALLOCATION_WORK).best.stages
    counts = [MICROBATCHES // len(stages[0])] * len(stages[0])
    skip_ratio = ScheduleConfig().skip_ratio
    return Problem(cluster, stages, counts, skip_ratio=skip_ratio, layers=[LAYERS // STAGES] * STAGES)


def problem(links: str, seed: int) -> Problem:
    """One of the clusters, cut into equal stages."""
    config = cluster_settings(links, seed)
    return equal_cut(preset_spec(config).cluster(config, [GRADIENT_BYTES] * STAGES))


def measure(links: str, seed: int, seconds: float) -> list[Row]:
    """Plan one cluster within every scope."""
    cut = problem(links, seed)
    rows = []
    for name, scope in SCOPES.items():
        plan = _scheduler.plan(PlanRequest(cut, "skippipe", time_limit_s=seconds, scope=scope))
        broken = plan.check()
        if broken or len(plan.microbatches) != MICROBATCHES:
            raise RuntimeError(f"{links}, {seed}, {name}: {broken}, {len(plan.microbatches)} microbatches")
        rows.append({"links": links, "seed": seed, "free": name, **described(plan)})
        note(str(rows[-1]))
    return rows


def described(plan: Plan) -> Row:
    """Result of a plan, with its sizes and layers."""
    return {
        "iteration_s": plan.predicted.iteration_s,
        "lower_bound_s": plan.predicted.lower_bound_s,
        "allreduce_s": max(plan.predicted.allreduce_s),
        "sizes": [len(stage) for stage in plan.stages],
        "layers": plan.layers,
        "microbatches": sorted(plan.microbatches_per_source.values(), reverse=True),
        "least_s": None if plan.solver.allocation is None else plan.solver.allocation.lower_bound_s,
    }


def table(rows: list[Row]) -> str:
    """Medians over the clusters, then every cluster."""
    times = {(row["links"], row["seed"], row["free"]): row["iteration_s"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    summary = []
    for links in LINKS:
        for name in SCOPES:
            gains = {
                baseline: [saving(times[links, seed, name], times[links, seed, baseline]) for seed in seeds]
                for baseline in ("as cut", EQUAL)
            }
            summary.append({
                "links": links, "free": name, "clusters": len(seeds),
                "iteration, median, s": statistics.median(times[links, seed, name] for seed in seeds),
                **{f"saved of {what!r}, median": percent(statistics.median(gain)) for what, gain in gains.items()},
                f"saved of {EQUAL!r}, least": percent(min(gains[EQUAL])), "most": percent(max(gains[EQUAL])),
            })  # fmt: skip
    lines = [
        {"links": links, "seed": seed}
        | {f"{name}, s": times[links, seed, name] for name in SCOPES}
        | {f"saved of {EQUAL!r}": percent(saving(times[links, seed, FREE], times[links, seed, EQUAL]))}
        | {what: next(row[what] for row in rows if (row["links"], row["seed"], row["free"]) == (links, seed, FREE))
           for what in ("sizes", "layers", "microbatches")}
        for links in LINKS
        for seed in seeds
    ]  # fmt: skip
    return f"{markdown(summary)}\n{markdown(lines)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each plan")
    parser.add_argument("--seeds", type=int, default=8, help="clusters of each kind")
    options = parser.parse_args(arguments)
    rows = [row for links in LINKS for seed in range(options.seeds) for row in measure(links, seed, options.seconds)]
    save("unequal", vars(options), rows, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
