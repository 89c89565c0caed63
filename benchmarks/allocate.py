"""The node allocator vs. greedy and random allocations, METIS, KaHyPar and OR-Tools' CP-SAT, by the same score.

    python benchmarks/allocate.py [--seconds 0.2 1 10 60] [--instances published20 ...] [--methods ours metis ...]

Instances are clusters drawn as the preset `synthetic` and those of tests/reference/published, with the sizes of their
stages. Every method has one thread; `CP-SAT, 8 workers` has as many as this machine.
Whatever a method proposes is scored by `score_allocation`, which finds the best tour itself; its time counts, that of
building graphs and models too. The methods that make one allocation after the other run once, for the longest time,
and their best after each time is reported; ours and CP-SAT, which may use the time in another way, run anew for each.
METIS and KaHyPar are in no dependency group: `pip install pymetis kahypar`. Those not installed are skipped.
Writes out/allocate.json and out/allocate.md.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import allocate_cp_sat
import numpy as np
from output import Row, markdown, note, save
from partitioners import kahypar_partitions, metis_partitions
from synthetic import preset

from skippipe._scheduler import allocate, greedy_allocation, score_allocation
from skippipe.allocation import even_sizes, read_allocation
from skippipe.bench import AllocationCase, random_stages
from skippipe.cluster import load_cluster
from skippipe.presets import preset_spec

PUBLISHED = Path(__file__).parents[1] / "tests" / "reference" / "published"
FILES = ("published20", "fresh20", "scale100", "scale1000")
DRAWN = {"synthetic24": (24, 4, 6), "synthetic100": (100, 8, 10)}
"""Nodes, regions and stages."""
WORKERS = 8

Stages = list[list[int]]


@dataclass
class Best:
    """Best allocation of a method so far, and when it was found."""

    case: AllocationCase
    started: float = dataclasses.field(default_factory=time.perf_counter)
    events: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    """seconds, and the score from then on"""
    tried: int = 0

    def elapsed_s(self) -> float:
        """Seconds since the method began."""
        return time.perf_counter() - self.started

    def offer(self, stages: Stages) -> None:
        """Score an allocation."""
        score_s = score_allocation(self.case.cluster, stages).score_s
        self.tried += 1
        if not self.events or score_s < self.events[-1][1]:
            self.events.append((self.elapsed_s(), score_s))

    def score_s(self, seconds: float) -> float | None:
        """Return the best score that there was after so many seconds."""
        return min((score for when, score in self.events if when <= seconds), default=None)


Rows = Iterator[Row]


def anytime(method: str, case: AllocationCase, limits: Sequence[float], made: Iterator[Stages]) -> Rows:
    """Score allocations one after another until the longest time limit."""
    best = Best(case)
    for stages in made:
        best.offer(stages)
        if best.elapsed_s() >= max(limits):
            break
    for seconds in limits:
        yield {"method": method, "seconds": seconds, "score_s": best.score_s(seconds), "tried": best.tried}


def ours(case: AllocationCase, limits: Sequence[float]) -> Rows:
    """The allocator itself."""
    for seconds in limits:
        best = Best(case)
        found = allocate(case.cluster, case.sizes, time_limit_s=seconds)
        wall_s = best.elapsed_s()
        best.offer(found.best.stages)
        yield {
            "method": "ours", "seconds": seconds, "score_s": best.events[0][1], "lower_bound_s": found.lower_bound_s,
            "proved": found.optimal, "wall_s": wall_s,
        }  # fmt: skip


def cp_sat(method: str, case: AllocationCase, limits: Sequence[float], workers: int) -> Rows:
    """Solve the exact model; it may exceed its time limit slightly, which is ignored."""
    for seconds in limits:
        best = Best(case)
        try:
            bound_s, proved = allocate_cp_sat.solve(case.cluster, case.sizes, seconds, workers, best.offer)
        except ValueError as error:
            note(f"{method}: {error}")
            return
        yield {
            "method": method, "seconds": seconds, "score_s": best.score_s(1.05 * seconds), "lower_bound_s": bound_s,
            "proved": proved, "wall_s": best.elapsed_s(),
        }  # fmt: skip


def greedy(case: AllocationCase, limits: Sequence[float]) -> Rows:
    """The baseline, which takes no time."""
    best = Best(case)
    best.offer(greedy_allocation(case.cluster, case.sizes))
    for seconds in limits:
        yield {"method": "greedy", "seconds": seconds, "score_s": best.score_s(math.inf)}


def slower(case: AllocationCase) -> np.ndarray:
    """Transfer time of the slower direction of each pair of nodes, in seconds, shape (N, N)."""
    transfer = case.cluster.transfer_matrix()
    return np.maximum(transfer, transfer.T)


METHODS: dict[str, Callable[[AllocationCase, Sequence[float]], Rows]] = {
    "ours": ours,
    "greedy": greedy,
    "random": lambda case, limits: anytime("random", case, limits, random_stages(len(case.cluster), case.sizes, 0)),
    "METIS": lambda case, limits: anytime("METIS", case, limits, metis_partitions(slower(case), case.sizes, 0)),
    "KaHyPar": lambda case, limits: anytime("KaHyPar", case, limits, kahypar_partitions(slower(case), case.sizes, 0)),
    "CP-SAT": lambda case, limits: cp_sat("CP-SAT", case, limits, 1),
    "CP-SAT, 8 workers": lambda case, limits: cp_sat("CP-SAT, 8 workers", case, limits, WORKERS),
}
NEEDS = {"METIS": "pymetis", "KaHyPar": "kahypar"}


def allocation_cases() -> dict[str, AllocationCase]:
    """Every instance by name."""
    found = {}
    for name, (nodes, regions, stages) in DRAWN.items():
        config = dataclasses.replace(preset(), nodes=nodes, regions=regions)
        found[name] = AllocationCase(preset_spec(config).cluster(config), even_sizes(nodes, stages))
    for name in FILES:
        sizes = [len(stage) for stage in read_allocation(str(PUBLISHED / f"{name}.json")).stages]
        found[name] = AllocationCase(load_cluster(str(PUBLISHED / f"{name}.cluster.json")), sizes)
    return found


def measure(name: str, case: AllocationCase, methods: Sequence[str], limits: Sequence[float]) -> list[Row]:
    """Run every method on one instance."""
    rows = []
    for method in methods:
        if method in NEEDS and importlib.util.find_spec(NEEDS[method]) is None:
            note(f"{method} is skipped: {NEEDS[method]} is not installed")
            continue
        for row in METHODS[method](case, limits):
            rows.append({
                "instance": name, "nodes": len(case.cluster), "stages": len(case.sizes), "lower_bound_s": None,
                "proved": False, **row,
            })  # fmt: skip
            note(str(rows[-1]))
    return rows


def table(rows: Sequence[Row]) -> str:
    """A line for each instance and time: scores and bounds of all methods."""
    lines = []
    methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
    for (name, seconds), group in itertools.groupby(
        sorted(rows, key=lambda row: ([*DRAWN, *FILES].index(row["instance"]), row["seconds"])),
        key=lambda row: (row["instance"], row["seconds"]),
    ):
        own = {row["method"]: row for row in group}
        bounds = {method: row["lower_bound_s"] for method, row in own.items() if row["lower_bound_s"]}
        line = {"instance": name, "nodes": next(iter(own.values()))["nodes"], "time, s": seconds}
        line |= {method: _shown(own.get(method)) for method in methods}
        line |= {f"bound, {method}": f"{bound:.3f}" for method, bound in bounds.items()}
        lines.append(line)
    keys = list(dict.fromkeys(key for line in lines for key in line))
    return markdown([{key: line.get(key) for key in keys} for line in lines])


def _shown(row: Row | None) -> str | None:
    if row is None or row["score_s"] is None:
        return None
    return f"{row['score_s']:.4f}{' (proved)' if row['proved'] else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    names = [*DRAWN, *FILES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.2, 1.0, 10.0, 60.0])
    parser.add_argument("--instances", nargs="+", choices=names, default=names)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options = parser.parse_args(arguments)
    rows = [
        row
        for name, case in allocation_cases().items()
        if name in options.instances
        for row in measure(name, case, options.methods, sorted(options.seconds))
    ]
    save("allocate", vars(options), rows, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
