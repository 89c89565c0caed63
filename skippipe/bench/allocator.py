"""Benchmark of the node allocator by its surrogate, compared with simpler methods."""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from skippipe import _scheduler
from skippipe._scheduler import Cluster
from skippipe.allocation import choose_sizes
from skippipe.bench.cases import Cases
from skippipe.config import BenchAllocatorJob, ClusterConfig
from skippipe.presets import preset_spec
from skippipe.scheduler import SearchProgress


@dataclass(frozen=True)
class AllocationCase:
    """A cluster to be divided into stages."""

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
    """surrogate score of the best allocation found"""
    lower_bound_s: float
    gap: float
    proved: bool
    greedy_s: float
    """score of the greedy allocation"""
    random_s: float
    """best score of random allocations within the same time"""
    best_s: float
    """time to the best allocation, as precise as the search's progress reports"""
    wall_s: float
    """total wall time"""


def preset_allocation_cases(presets: Mapping[str, ClusterConfig]) -> dict[str, AllocationCase]:
    """The presets' clusters, with their stage sizes, else even ones."""
    cases = {}
    for name, preset in presets.items():
        cluster = preset_spec(preset).cluster(preset)
        cases[name] = AllocationCase(cluster, choose_sizes(None, len(cluster), None, preset.stage_sizes))
    return cases


def allocation_cases_of(cases: Cases) -> dict[str, AllocationCase]:
    """The clusters of instances, with the stage sizes of their allocations."""
    return {
        name: AllocationCase(case.problem.cluster, [len(stage) for stage in case.problem.stages])
        for name, case in cases.items()
    }


def measure_allocator(
    name: str, case: AllocationCase, job: BenchAllocatorJob, progress: SearchProgress | None = None
) -> AllocatorRow:
    """Allocate one cluster with the job's time limit, threads and seed.

    Raises:
        SchedulerError: the allocator fails.

    """
    cluster, sizes = case.cluster, case.sizes
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
        best_random_s(case, job.seconds, job.seed),
        best_s,
        wall_s,
    )


def best_random_s(case: AllocationCase, seconds: float, seed: int) -> float:
    """Best score of at least one random allocation drawn within `seconds`."""
    end = time.perf_counter() + seconds
    drawn = random_stages(len(case.cluster), case.sizes, seed)
    least = _score_s(case.cluster, next(drawn))
    while time.perf_counter() < end:
        least = min(least, _score_s(case.cluster, next(drawn)))
    return least


def _score_s(cluster: Cluster, stages: list[list[int]]) -> float:
    return _scheduler.score_allocation(cluster, stages).score_s


def random_stages(nodes: int, sizes: Sequence[int], seed: int) -> Iterator[list[list[int]]]:
    """Endless random allocations with stages of these sizes."""
    rng = Random(seed)  # noqa: S311 - not for cryptography
    ends = list(itertools.accumulate(sizes))
    while True:
        order = rng.sample(range(nodes), nodes)
        yield [sorted(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
