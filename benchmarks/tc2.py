"""Savings of TC2 (routing knows that a node runs one task at a time), and of swaps.

    python benchmarks/tc2.py [--seconds 5] [--samples 2 4 8 16] [--swaps 0 1 2]

`skippipe` vs. `skippipe-no-tc2` and `random-skip` (the median of 20 seeds), all on one allocation (the surrogate's,
so differences are due to the constraint), on the presets and the published instance; under the rules of this project
and those of the reference. A microbatch has so many samples of 1,024 tokens; times of tasks and bytes of messages are
in proportion, gradients are not. Writes out/tc2.json, out/tc2.md and out/tc2.png.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from output import OUT, Row, markdown, note, percent, save

from skippipe import Cluster, Problem
from skippipe.allocation import read_allocation
from skippipe.application import compose
from skippipe.bench import ALLOCATING
from skippipe.config import AllocateConfig, ClusterConfig, PlannerConfig, RegionsConfig, ScheduleConfig, SitesConfig
from skippipe.planning import PlanningJob, allocated, evaluate_strategy, planning_job, saving, state_problem

PUBLISHED = Path(__file__).parents[1] / "tests" / "reference" / "published"
PRESETS = ("geo20", "five_clusters", "single_cluster")
STRATEGIES = ("random-skip", "skippipe-no-tc2", "skippipe")
PRESET_SAMPLES = 2
"""Samples of a microbatch for which the presets and the published instance stand."""
RULE_SETS = {
    "ours": ScheduleConfig(),
    "reference": ScheduleConfig(tc1="routes", waves=2, max_swaps=2, max_stage_jump=4),
}

Maker = Callable[[int, ScheduleConfig], Problem]


def scaled_preset(config: ClusterConfig, samples: int) -> ClusterConfig:
    """Scale a preset to another size of microbatch."""
    assert isinstance(config, (SitesConfig, RegionsConfig))
    share = samples / PRESET_SAMPLES
    node = config.node
    node = dataclasses.replace(
        node, forward_s=node.forward_s * share, backward_s=node.backward_s * share, loss_s=node.loss_s * share
    )
    return dataclasses.replace(config, node=node, activation_bytes=config.activation_bytes * share)


def published(samples: int) -> Cluster:
    """Scale the published cluster, which gives whole transfer times, by the table of links that it comes from."""
    content = json.loads((PUBLISHED / "published20.cluster.json").read_text(encoding="utf-8"))
    table = json.loads((PUBLISHED / "regions12.json").read_text(encoding="utf-8"))
    share = samples / PRESET_SAMPLES
    latency_s = {frozenset((pair["a"], pair["b"])): pair["latency_s"] for pair in table["pairs"]}
    regions = [node["name"].rpartition("-")[0] for node in content["nodes"]]
    for i, here in enumerate(regions):
        for j, there in enumerate(regions):
            within = table["within_region"]["latency_s"]
            fixed = latency_s.get(frozenset((here, there)), within) + table["per_message_overhead_s"]
            if i != j:
                content["transfer_s"][i][j] = fixed + (content["transfer_s"][i][j] - fixed) * share
    for node in content["nodes"]:
        node.update({key: node[key] * share for key in ("forward_s", "backward_s", "loss_s")})
    return Cluster.from_json(json.dumps(content))


def instances() -> dict[tuple[str, str], tuple[Maker, ScheduleConfig]]:
    """For every instance and rule set, how it is made for a number of samples, and the rules."""

    def of_preset(config: ClusterConfig) -> Maker:
        return lambda samples, schedule: allocated(
            planning_job(scaled_preset(config, samples), AllocateConfig(), schedule), ALLOCATING
        )

    def of_published(samples: int, schedule: ScheduleConfig) -> Problem:
        cluster, allocation = published(samples), read_allocation(str(PUBLISHED / "published20.json"))
        return state_problem(cluster, allocation, schedule)

    presets = compose("bench planner", []).instances
    makers = {name: of_preset(presets[name]) for name in PRESETS}
    makers["published20"] = of_published
    return {(name, rules): (make, RULE_SETS[rules]) for rules in RULE_SETS for name, make in makers.items()}


def measure(samples: Iterable[int], swaps: Iterable[int], planner: PlannerConfig) -> list[Row]:
    """Plan everything."""
    rows = []
    for (name, rules), (make, own) in instances().items():
        for count in samples:
            for most in sorted({*swaps, own.max_swaps}):
                job = PlanningJob(make(count, dataclasses.replace(own, max_swaps=most)))
                times = {}
                for strategy in STRATEGIES:
                    reached = evaluate_strategy(job, strategy, planner)
                    times[strategy] = reached.iteration_s
                    rows.append({
                        "instance": name, "rules": rules, "samples": count, "max_swaps": most,
                        "own": most == own.max_swaps,
                        "strategy": strategy, "iteration_s": reached.iteration_s,
                        "lower_bound_s": reached.lower_bound_s, "note": reached.note,
                    })  # fmt: skip
                note(f"{name}, {rules}, {count} samples, {most} swaps: {times}")
    return rows


def faster(slow_s: float | None, fast_s: float | None) -> float | None:
    """Relative increase of throughput."""
    return None if slow_s is None or not fast_s else slow_s / fast_s - 1


def tables(rows: list[Row]) -> str:
    """One table for strategies, one for swaps."""
    key_of = itemgetter("instance", "rules", "samples")
    times = {(*key_of(row), row["max_swaps"], row["strategy"]): row["iteration_s"] for row in rows}
    own_swaps = {key_of(row): row["max_swaps"] for row in rows if row["own"]}
    swaps = sorted({row["max_swaps"] for row in rows})
    first, second = [], []
    for key, own in own_swaps.items():
        where: Row = dict(zip(("instance", "rules", "samples"), key, strict=True))
        random, without, best = (times[*key, own, strategy] for strategy in STRATEGIES)
        first.append(where | {
            "random-skip, s": random, "skippipe-no-tc2, s": without,
            "skippipe, s": best, "saved of random-skip": percent(saving(best, random)),
            "saved of skippipe-no-tc2": percent(saving(best, without)),
            "throughput against skippipe-no-tc2": percent(faster(without, best)),
        })  # fmt: skip
        by_swaps = {most: times.get((*key, most, "skippipe")) for most in swaps}
        line = where | {f"{most} swaps, s": time for most, time in by_swaps.items()}
        line |= {f"saved by {most}": percent(saving(by_swaps[most], by_swaps[swaps[0]])) for most in swaps[1:]}
        second.append(line)
    return f"TC2\n\n{markdown(first)}\nSwaps (`skippipe`)\n\n{markdown(second)}"


def draw(rows: list[Row], path: Path) -> None:
    """Throughput increase by TC2 over microbatch size, one plot per set of constraints."""
    figure, axes = plt.subplots(1, len(RULE_SETS), figsize=(11, 4), layout="constrained")
    counts = sorted({row["samples"] for row in rows})
    for axis, rules in zip(axes, RULE_SETS, strict=True):
        own = [row for row in rows if row["own"] and row["rules"] == rules]
        for name in dict.fromkeys(row["instance"] for row in own):
            times = {(row["samples"], row["strategy"]): row["iteration_s"] for row in own if row["instance"] == name}
            gains = [faster(times[count, "skippipe-no-tc2"], times[count, "skippipe"]) for count in counts]
            axis.plot(counts, [None if x is None else 100 * x for x in gains], marker="o", label=name)
        axis.set(xscale="log", xlabel="samples in a microbatch", title=f"rule set: {rules}")
        axis.set_xticks(counts, labels=counts)
        axis.minorticks_off()
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.legend()
    axes[0].set_ylabel("throughput gained by TC2, %")
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each plan")
    parser.add_argument("--samples", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--swaps", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    planner = PlannerConfig(time_limit_s=options.seconds)
    rows = measure(options.samples, options.swaps, planner)
    settings: dict[str, Any] = vars(options)
    save("tc2", settings, rows, tables(rows))
    draw(rows, OUT / "tc2.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
