"""What it is worth to plan for shared processors: against the best of four plans that take all nodes to work at once.

    python benchmarks/shared_processors.py            4 nodes on 2 processors, 8 on 4; 12 clusters each
    python benchmarks/shared_processors.py --seeds 40

Both get the same work. The other way is what training did before the planner knew processors: it searched with four
seeds, each with a quarter of the work, and took the plan that the simulator then found the best on the processors.
"""

import argparse
import statistics
from collections.abc import Sequence
from random import Random

from skippipe import Cluster, Constraints, Plan, Problem
from skippipe._scheduler import PlanRequest, plan

SEARCHES = 4
WORK_LIMIT = 400_000
SHAPES: dict[str, tuple[list[int], int]] = {"4 nodes on 2": ([2, 1, 1], 2), "8 nodes on 4": ([3, 2, 2, 1], 4)}


def random_problem(rng: Random, sizes: Sequence[int], processors: Sequence[int | None]) -> Problem:
    """Nodes of unequal speed, links of 0.1 to 0.6 s, six microbatches of each source, a quarter skipped."""
    nodes = sum(sizes)
    forward_s = [rng.uniform(0.5, 1.5) for _ in range(nodes)]
    cluster = Cluster(
        [f"n{node}" for node in range(nodes)],
        forward_s,
        [2 * time_s for time_s in forward_s],
        [0.3 * time_s for time_s in forward_s],
        [rng.randint(3, 6) for _ in range(nodes)],
        transfer_s=[[rng.uniform(0.1, 0.6) for _ in range(nodes)] for _ in range(nodes)],
        processors=list(processors),
    )
    first = [sum(sizes[:stage]) for stage in range(len(sizes))]
    stages = [list(range(start, start + size)) for start, size in zip(first, sizes, strict=True)]
    return Problem(cluster, stages, [6] * sizes[0], skip_ratio=0.25, constraints=Constraints())


def searched(problem: Problem, seed: int, work_limit: int) -> Plan:
    """The plan of one search."""
    return plan(PlanRequest(problem, "skippipe", seed=seed, work_limit=work_limit, time_limit_s=None))


def main() -> None:
    """Print the ratio of iteration times for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--work", type=int, default=WORK_LIMIT)
    arguments = parser.parse_args()
    for name, (sizes, count) in SHAPES.items():
        ratios, gaps = [], []
        for seed in range(arguments.seeds):
            rng, nodes = Random(seed), sum(sizes)
            processors: list[int | None] = [node % count for node in range(nodes)]
            rng.shuffle(processors)
            state = rng.getstate()
            alone = random_problem(rng, sizes, [None] * nodes)
            rng.setstate(state)
            together = random_problem(rng, sizes, processors)
            part = arguments.work // SEARCHES
            others = [searched(alone, SEARCHES * seed + number, part) for number in range(SEARCHES)]
            other_s = min(other.on_processors(processors).predicted.iteration_s for other in others)
            found = searched(together, SEARCHES * seed, arguments.work)
            ratios.append(found.predicted.iteration_s / other_s)
            gaps.append(found.predicted.gap)
        print(
            f"{name}: iteration {statistics.mean(ratios):.4f} x that of the best of {SEARCHES} on average, "
            f"{min(ratios):.4f} to {max(ratios):.4f} over {len(ratios)} clusters; "
            f"gap to the bound {statistics.mean(gaps):.1%} on average"
        )


if __name__ == "__main__":
    main()
