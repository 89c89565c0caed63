"""Links that become slower, or faster, in the middle of a run: how soon another plan is used, and how good it is.

    python benchmarks/replanning.py [--time-scale 0.1] [--iterations 14] [--factors 4] [--work 3000000]

One process per node of geo20, on this machine, as in emulated.py: the product's executor and links, with stages that
sleep, and the closed loop of training, which plans beside the iterations. All times are a tenth of geo20's, for planner
and loop too. Before an iteration in the middle the links between two regions, those that the plan spends most time on,
become slower by a factor, in both directions. The loop knows only what it measures. Beside it the plan that the same
search makes with full knowledge.
Writes out/replanning.json and out/replanning.md.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np
from emulated import NODES, on_cluster, problems
from output import Row, markdown, note, percent, save

from skippipe import Cluster, Plan, Problem
from skippipe.bench.emulation import latest, rank_jobs, run, workers
from skippipe.cluster import scaled_links
from skippipe.config import PlannerConfig, ScheduleConfig
from skippipe.planning import PlanningJob, make_plan
from skippipe.runtime.actions import Program
from skippipe.runtime.deadlock import min_recv_buffers
from skippipe.runtime.lower import lower
from skippipe.train.loop.closed_loop import ClosedLoop
from skippipe.train.loop.replanning import retimed_s
from skippipe.train.loop.timelines import RankTimeline
from skippipe.train.resolve.spec import ReplanSpec

RECV_BUFFERS, SENDS_IN_FLIGHT = 2, 2


@dataclass(frozen=True)
class Running:
    """A plan in use, as the closed loop sees it."""

    plan: Plan
    programs: Sequence[Program]
    recv_buffers: int
    rank_of: Sequence[int] = range(NODES)
    shared: Literal["none"] = "none"

    @property
    def planned_s(self) -> float:
        """Iteration time of the plan."""
        return self.plan.predicted.iteration_s

    @property
    def predicted_s(self) -> float:
        """The same."""
        return self.planned_s

    def prove(self, plan: Plan) -> None:
        """Lower a plan, which raises if it could deadlock."""
        running(plan)


class NoFiles:
    """Nothing is kept."""

    def keep_plan(self, after: int, plan: Plan) -> None:
        """Do nothing."""

    def keep_profile(self, cluster: Cluster) -> None:
        """Do nothing."""


def running(plan: Plan) -> Running:
    """A plan, lowered."""
    programs = lower(plan, range(NODES))
    buffers = min_recv_buffers(programs, RECV_BUFFERS, SENDS_IN_FLIGHT)
    assert buffers is not None, "plans do not deadlock"
    return Running(plan, programs, buffers)


def in_miniature(problem: Problem, scale: float) -> Problem:
    """The problem where everything takes so much less time."""
    content = json.loads(problem.cluster.to_json())
    for node in content["nodes"]:
        node |= {key: scale * seconds for key, seconds in node.items() if key.endswith("_s")}
    content |= {
        "latency_s": (scale * np.array(content["latency_s"])).tolist(),
        "bandwidth": (np.array(content["bandwidth"]) / scale).tolist(),
        "overhead_s": scale * content["overhead_s"],
        "norm_s": scale * content["norm_s"],
    }
    return on_cluster(problem, Cluster.from_json(json.dumps(content)))


def slower(plan: Plan, factor: float) -> tuple[Cluster, str]:
    """The cluster of a plan with slower links between the two regions that it spends most time on; and these."""
    cluster, seconds = plan.cluster, Counter[frozenset[int]]()
    regions = [int(region) for region in cluster.region_of]
    transfer_s = cluster.transfer_matrix()
    for microbatch in plan.microbatches:
        way = [*microbatch.nodes, microbatch.source]
        for i, j in itertools.pairwise(way):
            if regions[i] != regions[j]:
                seconds[frozenset((regions[i], regions[j]))] += float(transfer_s[i, j])
    (pair, _), *_ = seconds.most_common()
    one, other = (np.array(regions) == region for region in sorted(pair))
    factors = np.ones((NODES, NODES))
    factors[np.ix_(one, other)] = factors[np.ix_(other, one)] = factor
    names = [cluster.names[regions.index(region)].rpartition("-")[0] for region in sorted(pair)]
    return scaled_links(cluster, factors), " - ".join(names)


def train(options: argparse.Namespace, pipes: list[Connection], problem: Problem, factor: float) -> Row:
    """Run to the end with the closed loop, then the plan of full knowledge."""
    planner = PlannerConfig(work_limit=options.work)
    plan = make_plan(PlanningJob(problem), "skippipe", planner)
    changed, regions = slower(plan, factor)
    informed = make_plan(PlanningJob(plan.with_cluster(changed).problem()), "skippipe", planner)
    change_at = options.iterations // 2
    loop = ClosedLoop(ReplanSpec("routes", 0.05, 8), NoFiles(), lambda event: note(str(event)))
    now, measured, replanned = running(plan), list[float](), list[int]()
    loop.begin(now, planner, adopted=False)
    for iteration in range(1, options.iterations + 1):
        truth = plan.cluster if iteration < change_at else changed
        jobs = rank_jobs(now.plan.with_cluster(truth), 1.0, RECV_BUFFERS, SENDS_IN_FLIGHT)
        (times,) = run(pipes, jobs, 1)
        measured.append(latest(times, "iteration_s"))
        following = options.iterations - iteration
        wanted = loop.wants_change(iteration, following, lambda _: 0.0)
        timelines = [RankTimeline(t.began_at, t.ends) for t in times]
        compared = loop.after(iteration, timelines, measured[-1], following)
        note(f"iteration {iteration}: {measured[-1]:.2f} s, predicted {now.planned_s:.2f} s, {compared}")
        if wanted:
            now = running(loop.take(iteration).plan)
            loop.begin(now, planner, adopted=True)
            replanned.append(iteration + 1)
    loop.close()
    informed_jobs = rank_jobs(informed.with_cluster(changed), 1.0, RECV_BUFFERS, SENDS_IN_FLIGHT)
    known = [latest(t, "iteration_s") for t in run(pipes, informed_jobs, 4)[1:]]
    first = next((number for number in replanned if number > change_at), options.iterations)
    return {
        "factor": factor, "regions": regions, "changed_at": change_at, "replanned_at": replanned,
        "before_s": statistics.median(measured[1 : change_at - 1]),
        "between_s": statistics.median(measured[change_at - 1 : first - 1]),
        "after_s": statistics.median(measured[first - 1 :]), "informed_s": statistics.median(known),
        "predicted_old_s": retimed_s(plan.with_cluster(changed), range(NODES)),
        "predicted_new_s": retimed_s(now.plan.with_cluster(changed), range(NODES)),
        "predicted_informed_s": informed.predicted.iteration_s, "measured_s": measured,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-scale", type=float, default=0.1, help="factor on all times of geo20")
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--factors", type=float, nargs="+", default=[4.0], help="on transfer times")
    parser.add_argument("--work", type=int, default=3_000_000, help="work limit of each search")
    options = parser.parse_args(arguments)
    with workers(NODES) as pipes:
        problem = in_miniature(problems([0.0], ScheduleConfig())["geo20"], options.time_scale)
        rows = [train(options, pipes, problem, factor) for factor in options.factors]
    table = [
        {
            "factor": row["factor"], "slower links": row["regions"], "slower from iteration": row["changed_at"],
            "other plans from": ", ".join(map(str, row["replanned_at"])) or "-",
            "before, s": row["before_s"], "until re-planned, s": row["between_s"], "after, s": row["after_s"],
            "with full knowledge, s": row["informed_s"], "off by": percent(row["after_s"] / row["informed_s"] - 1),
            "predicted: old, new, full knowledge, s":
                f"{row['predicted_old_s']:.2f}, {row['predicted_new_s']:.2f}, {row['predicted_informed_s']:.2f}",
        }
        for row in rows
    ]  # fmt: skip
    save("replanning", vars(options), rows, f"{markdown(table)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
