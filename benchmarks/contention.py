"""What it is worth to plan for messages that take turns: against plans that take them to be free.

    python benchmarks/contention.py                 the presets and the published cluster, three seeds each
    python benchmarks/contention.py --work 2000000 --seeds 10

Both plans get the same work, the allocation is searched too, and both are simulated with messages that take turns: on
their link, or on the uplink of their sender. Writes out/contention.json and out/contention.md.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from output import Row, markdown, note, percent, save

from skippipe import Cluster
from skippipe.allocation import read_allocation
from skippipe.application import compose
from skippipe.config import AllocateConfig, PlannerConfig, ScheduleConfig
from skippipe.planning import PlanningJob, make_plan, planning_job, state_problem

PUBLISHED = Path(__file__).parents[1] / "tests" / "reference" / "published"
PRESETS = ("geo20", "five_clusters")
CONTENTIONS = ("link", "uplink")
MESSAGE_BYTES = 1e6
"""In the published cluster, which gives whole transfer times: any size does, bandwidths follow from it."""


def published() -> Cluster:
    """The published cluster, its transfer times split into latency and bandwidth by the table that they come from."""
    content = json.loads((PUBLISHED / "published20.cluster.json").read_text(encoding="utf-8"))
    table = json.loads((PUBLISHED / "regions12.json").read_text(encoding="utf-8"))
    latency_s = {frozenset((pair["a"], pair["b"])): pair["latency_s"] for pair in table["pairs"]}
    regions = [node["name"].rpartition("-")[0] for node in content["nodes"]]
    transfer_s = content.pop("transfer_s")
    within_s = table["within_region"]["latency_s"]
    fixed = [
        [latency_s.get(frozenset((a, b)), within_s) + table["per_message_overhead_s"] for b in regions] for a in regions
    ]
    content["latency_s"] = fixed
    content["bandwidth"] = [
        [MESSAGE_BYTES / (transfer_s[i][j] - fixed[i][j]) if i != j else 1.0 for j in range(len(regions))]
        for i in range(len(regions))
    ]
    content["activation_bytes"] = MESSAGE_BYTES
    return Cluster.from_json(json.dumps(content))


def jobs(contention: str) -> Iterable[tuple[str, PlanningJob]]:
    """The questions: skip ratio 1/3, default rules; the published cluster on its published allocation."""
    presets, schedule = compose("bench planner", []).instances, ScheduleConfig()
    for name in PRESETS:
        config = presets[name]
        config.contention = contention
        yield name, planning_job(config, AllocateConfig(), schedule)
    cluster, allocation = published().with_contention(contention), read_allocation(str(PUBLISHED / "published20.json"))
    yield "published20", PlanningJob(state_problem(cluster, allocation, schedule))


def measure(seeds: int, work: int) -> list[Row]:
    """Plan everything twice."""
    rows: list[Row] = []
    for contention in CONTENTIONS:
        for (name, knowing), (_, other) in zip(jobs(contention), jobs("none"), strict=True):
            ratios, known_s, unknown_s = [], [], []
            for seed in range(seeds):
                planner = PlannerConfig(time_limit_s=None, work_limit=work, seed=seed)
                known_s.append(make_plan(knowing, "skippipe", planner).predicted.iteration_s)
                unknown = make_plan(other, "skippipe", planner).with_contention(contention)
                unknown_s.append(unknown.predicted.iteration_s)
                ratios.append(known_s[-1] / unknown_s[-1])
            rows.append({
                "instance": name, "contention": contention,
                "not knowing it (s)": statistics.median(unknown_s), "knowing it (s)": statistics.median(known_s),
                "difference": percent(statistics.mean(ratios) - 1),
                "least": percent(max(ratios) - 1), "greatest": percent(min(ratios) - 1),
            })  # fmt: skip
            note(str(rows[-1]))
    return rows


def main() -> None:
    """Plan, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=int, default=1_000_000)
    arguments = parser.parse_args()
    rows = measure(arguments.seeds, arguments.work)
    save("contention", vars(arguments), rows, markdown(rows))


if __name__ == "__main__":
    main()
