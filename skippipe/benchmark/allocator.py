"""What the node allocator reaches by its surrogate, and what simpler ways of cutting a cluster into stages do."""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from skippipe import _scheduler
from skippipe._scheduler import Cluster
from skippipe.allocation import choose_sizes
from skippipe.benchmark.cases import Cases
from skippipe.cluster import preset_parts
from skippipe.config import BenchAllocatorJob, ClusterConfig
from skippipe.planning import Progress


@dataclass(frozen=True)
class Division:
    """A cluster to be cut into stages."""

    cluster: Cluster
    sizes: list[int]
    """nodes of each stage"""


@dataclass(frozen=True)
class AllocatorRow:
    """One line of the table; times in seconds."""

    instance: str
    nodes: int
    stages: int
    score_s: float
    """of the best allocation found, by the surrogate"""
    lower_bound_s: float
    gap: float
    proved: bool
    greedy_s: float
    """score of the greedy allocation"""
    random_s: float
    """best score of random allocations, drawn for the same time"""
    best_s: float
    """until the best allocation was there; as exact as the search tells of itself"""
    wall_s: float
    """in all"""


def preset_divisions(presets: Mapping[str, ClusterConfig]) -> dict[str, Division]:
    """The clusters of the presets, with the sizes that these bring, else as even as can be."""
    divisions = {}
    for name, preset in presets.items():
        cluster = preset_parts(preset).cluster(preset)
        divisions[name] = Division(cluster, choose_sizes(None, len(cluster), None, preset.stage_sizes))
    return divisions


def case_divisions(cases: Cases) -> dict[str, Division]:
    """The clusters of instances that have an allocation, with the sizes of its stages."""
    return {
        name: Division(case.problem.cluster, [len(stage) for stage in case.problem.stages])
        for name, case in cases.items()
    }


def measure_allocator(
    name: str, division: Division, job: BenchAllocatorJob, progress: Progress | None = None
) -> AllocatorRow:
    """Allocate one cluster with the time, threads and seed of the job.

    Raises:
        SchedulerError: the allocator fails.

    """
    cluster, sizes = division.cluster, division.sizes
    least, best_s = math.inf, 0.0

    def follow(elapsed_s: float, score_s: float, lower_bound_s: float, work: int) -> None:
        nonlocal least, best_s
        if score_s < least:
            least, best_s = score_s, elapsed_s
        if progress is not None:
            progress(elapsed_s, score_s, lower_bound_s, work)

    start = time.perf_counter()
    found = _scheduler.allocate(
        cluster, sizes, time_limit_s=job.seconds, threads=job.threads, seed=job.seed, progress=follow
    )
    wall_s = time.perf_counter() - start
    score_s = found.best.score_s
    if score_s < least:
        best_s = wall_s
    return AllocatorRow(
        name,
        len(cluster),
        len(sizes),
        score_s,
        found.lower_bound_s,
        (score_s - found.lower_bound_s) / found.lower_bound_s if found.lower_bound_s > 0 else 0.0,
        found.optimal,
        _score_s(cluster, _scheduler.greedy_allocation(cluster, sizes)),
        best_random(division, job.seconds, job.seed),
        best_s,
        wall_s,
    )


def best_random(division: Division, seconds: float, seed: int) -> float:
    """Least score of the random allocations that can be drawn in so many seconds; of one at least."""
    end = time.perf_counter() + seconds
    drawn = random_stages(len(division.cluster), division.sizes, seed)
    least = _score_s(division.cluster, next(drawn))
    while time.perf_counter() < end:
        least = min(least, _score_s(division.cluster, next(drawn)))
    return least


def _score_s(cluster: Cluster, stages: list[list[int]]) -> float:
    return _scheduler.score_allocation(cluster, stages).score_s


def random_stages(nodes: int, sizes: Sequence[int], seed: int) -> Iterator[list[list[int]]]:
    """Random allocations with stages of these sizes, one after the other without end."""
    rng = Random(seed)  # noqa: S311 - a benchmark keeps no secrets
    ends = list(itertools.accumulate(sizes))
    while True:
        order = rng.sample(range(nodes), nodes)
        yield [sorted(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
