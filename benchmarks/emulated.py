"""Predicted against measured iteration time, on emulated links with stages that sleep.

    python benchmarks/emulated.py [--time-scale 0.1] [--iterations 3] [--gradient-bytes 0 1e8]

The rig is that of `skippipe bench figure3 measure.iterations=3` (`skippipe/bench/emulation.py`). All strategies run
on one allocation: the published instance's own, and the surrogate's for geo20. The plans know what the exchange of the
norm takes. Writes out/emulated.json and out/emulated.md.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from output import Row, markdown, note, percent, save

from skippipe import Cluster, Plan, Problem
from skippipe._scheduler import is_random
from skippipe.allocation import read_allocation
from skippipe.application import compose
from skippipe.bench import ALLOCATING
from skippipe.bench.emulation import latest, norm_s, rank_jobs, run, with_links, workers
from skippipe.config import STRATEGIES, AllocateConfig, PlannerConfig, ScheduleConfig
from skippipe.planning import RANDOM_SEEDS, PlanningJob, allocated, make_plan, planning_job, state_problem

PUBLISHED = Path(__file__).parents[1] / "tests" / "reference" / "published"
NODES = 20
"""Of every instance."""
WORK_LIMIT = 300_000
TOLERANCE = 0.03
"""Predictions that differ by less may be ranked either way."""


def published() -> Cluster:
    """The published cluster with latency and bandwidth, where it gives whole transfer times."""
    content = json.loads((PUBLISHED / "published20.cluster.json").read_text(encoding="utf-8"))
    table = json.loads((PUBLISHED / "regions12.json").read_text(encoding="utf-8"))
    between = {frozenset((pair["a"], pair["b"])): pair["latency_s"] for pair in table["pairs"]}
    regions = [node["name"].rpartition("-")[0] for node in content["nodes"]]
    within = table["within_region"]["latency_s"]
    latency = [[between.get(frozenset((here, there)), within) for there in regions] for here in regions]
    nodes = range(len(regions))
    overhead_s, size = table["per_message_overhead_s"], content["activation_bytes"]
    transfer = content.pop("transfer_s")
    content |= {
        "latency_s": latency,
        "overhead_s": overhead_s,
        "bandwidth": [
            [size / (transfer[i][j] - latency[i][j] - overhead_s) if i != j else 1.0 for j in nodes] for i in nodes
        ],
    }
    return Cluster.from_json(json.dumps(content))


def problems(gradient_bytes: Sequence[float], schedule: ScheduleConfig) -> dict[str, Problem]:
    """The instances by name, each with its allocation."""
    found = {}
    for size in gradient_bytes:
        config = compose("bench planner", []).instances["geo20"]
        config.gradient_bytes = size
        problem = allocated(planning_job(config, AllocateConfig(), schedule), ALLOCATING)
        found["geo20" + (f", {size:.0e} bytes of gradients" if size else "")] = problem
    allocation = read_allocation(str(PUBLISHED / "published20.json"))
    found["published20"] = state_problem(published(), allocation, schedule)
    return {name: with_norm(problem) for name, problem in found.items()}


def with_norm(problem: Problem) -> Problem:
    """The problem, with the time that the exchange of the norm takes."""
    cluster = problem.cluster
    return on_cluster(problem, with_links(cluster, norm_s=norm_s(cluster, len(problem.stages))))


def on_cluster(problem: Problem, cluster: Cluster) -> Problem:
    """The problem, on a cluster with other times."""
    return Problem(
        cluster,
        problem.stages,
        problem.microbatches,
        skip_ratio=problem.skip_ratio,
        constraints=problem.constraints,
    )


def planned(problem: Problem, strategy: str) -> Plan:
    """The plan of a strategy; of random ones, which vary, that with the median prediction."""
    seeds = RANDOM_SEEDS if is_random(strategy) else 1
    plans = [
        make_plan(PlanningJob(problem), strategy, PlannerConfig(work_limit=WORK_LIMIT, seed=seed))
        for seed in range(seeds)
    ]
    return sorted(plans, key=lambda plan: plan.predicted.iteration_s)[seeds // 2]


def wrong_rankings(rows: Sequence[Row]) -> list[str]:
    """Pairs of strategies of an instance whose order was predicted wrong, though predictions differ enough."""
    wrong = []
    for one, other in itertools.combinations(rows, 2):
        fast, slow = sorted((one, other), key=lambda row: row["predicted_s"])
        clear = slow["predicted_s"] > (1 + TOLERANCE) * fast["predicted_s"]
        if one["instance"] == other["instance"] and clear and fast["measured_s"] >= slow["measured_s"]:
            wrong.append(f"{one['instance']}: {fast['strategy']} and {slow['strategy']}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, run and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-scale", type=float, default=0.1, help="factor on all times")
    parser.add_argument("--iterations", type=int, default=3, help="measured per plan")
    parser.add_argument("--gradient-bytes", type=float, nargs="+", default=[0.0, 1e8], help="per stage of geo20")
    parser.add_argument("--recv-buffers", type=int, default=2)
    parser.add_argument("--sends-in-flight", type=int, default=2)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    options = parser.parse_args(arguments)
    scale, schedule = options.time_scale, ScheduleConfig()
    rows = []
    with workers(NODES) as pipes:
        plans = [
            (name, planned(problem, strategy))
            for name, problem in problems(options.gradient_bytes, schedule).items()
            for strategy in options.strategies
        ]
        for name, plan in plans:
            jobs = rank_jobs(plan, scale, options.recv_buffers, options.sends_in_flight)
            times = run(pipes, jobs, 1 + options.iterations)[1:]  # the first one is for warm-up
            measured = [latest(t, "iteration_s") / scale for t in times]
            predicted = plan.predicted
            rows.append({
                "instance": name, "strategy": plan.strategy,
                "predicted_s": predicted.iteration_s,
                "measured_s": statistics.median(measured),
                "least_s": min(measured), "greatest_s": max(measured),
                "pipeline_predicted_s": predicted.pipeline_s,
                "pipeline_measured_s": statistics.median(latest(t, "pipeline_s") for t in times) / scale,
                "reduced_predicted_s": predicted.iteration_s - plan.cluster.norm_s,
                "reduced_measured_s": statistics.median(latest(t, "reduced_s") for t in times) / scale,
                "recv_buffers": jobs[0].recv_buffers,
            })  # fmt: skip
            note(f"{name}, {plan.strategy}: predicted {predicted.iteration_s:.2f} s, measured {sorted(measured)} s")
    table = [
        {
            "instance": row["instance"], "strategy": row["strategy"],
            "predicted, s": row["predicted_s"], "measured, s": row["measured_s"],
            "range, s": f"{row['least_s']:.2f} to {row['greatest_s']:.2f}",
            "error of the prediction": percent(row["predicted_s"] / row["measured_s"] - 1),
            "without the norm": percent(row["reduced_predicted_s"] / row["reduced_measured_s"] - 1),
            "pipeline": percent(row["pipeline_predicted_s"] / row["pipeline_measured_s"] - 1),
        }
        for row in rows
    ]  # fmt: skip
    verdict = "; ".join(wrong_rankings(rows)) or "none"
    save("emulated", vars(options), rows, f"{markdown(table)}\nWrong rankings: {verdict}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
