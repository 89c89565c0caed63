"""Predicted against measured iteration time, on emulated links with stages that sleep.

    OPENBLAS_NUM_THREADS=1 python benchmarks/emulated.py [--time-scale 0.1] [--iterations 3] [--gradient-bytes 0 1e8]

One process per node, on this machine: the product's executor, programs and links, over Gloo and an emulated network;
only the stages' compute sleeps. All strategies run on one allocation: the published instance's own,
and the surrogate's for geo20. The plans know what the exchange of the norm
takes. Messages are small, and the emulated bandwidth is in proportion, so that the machine's own links do not matter.
Writes out/emulated.json and out/emulated.md.
"""

import argparse
import contextlib
import gc
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from output import Row, markdown, note, percent, save
from torch import Tensor
from torch import distributed as dist

from skippipe import Cluster, Plan, Problem
from skippipe.allocation import read_allocation
from skippipe.application import compose
from skippipe.benchmark import ALLOCATING
from skippipe.config import AllocateConfig, PlannerConfig, ScheduleConfig
from skippipe.planning import RANDOM_SEEDS, PlanningJob, allocated, constraints, make_plan, planning_job, state_problem
from skippipe.runtime.actions import Norm, Program, Task
from skippipe.runtime.deadlock import min_recv_buffers
from skippipe.runtime.executor import Executor
from skippipe.runtime.links.collectives import TREE_WIDTH
from skippipe.runtime.links.emulated import EmulatedLink, Uplink, uplink_of
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.lower import lower
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import ReadyGradients
from skippipe.runtime.timeline import HostTimeline

PUBLISHED = Path(__file__).parents[1] / "tests" / "reference" / "published"
NODES = 20
"""Of every instance; workers are forked before the planner starts threads."""
STRATEGIES = ("full", "full-routed", "random-skip", "skippipe-no-tc2", "skippipe")
MESSAGE_SPEC = MessageSpec(1, 64, 256)
WORK_LIMIT = 300_000
TIMEOUT_S = 120.0
START_AFTER_S = 0.2
"""Seconds from an iteration's announcement to its start."""
TOLERANCE = 0.03
"""Predictions that differ by less may be ranked either way."""


@dataclass(frozen=True)
class SleepingStage:
    """A node's stage that only takes time."""

    forward_s: float
    backward_s: float
    loss_s: float
    parameters: list[Tensor]

    def embed(self, microbatch: int, tokens: Tensor) -> Tensor:
        """Return a hidden state at once."""
        del microbatch, tokens
        return torch.zeros(MESSAGE_SPEC.shape)

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        """Sleep."""
        del microbatch
        time.sleep(self.forward_s)
        return hidden

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        """Sleep."""
        del microbatch, labels
        time.sleep(self.loss_s)
        return hidden

    def backward(self, microbatch: int, gradient: Tensor, ready: ReadyGradients | None = None) -> Tensor:
        """Sleep."""
        del microbatch, ready
        time.sleep(self.backward_s)
        return gradient

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        """Do nothing."""

    def gradient_parts(self) -> list[list[Tensor]]:
        """Give the same as `gradients`."""
        return [self.gradients()]

    def gradients(self) -> list[Tensor]:
        """Return the parameters themselves."""
        return self.parameters


# --- one rank


@dataclass(frozen=True)
class RankJob:
    """What one rank runs: its program, its only stage, and its links."""

    program: Program
    stages: dict[int, SleepingStage]
    uplink: Uplink
    recv_buffers: int
    sends_in_flight: int


@dataclass(frozen=True)
class RankTimes:
    """When a rank's parts of an iteration ended, in seconds since its start."""

    pipeline_s: float
    """its last task"""
    reduced_s: float
    """its all-reduce"""
    iteration_s: float
    began_at: float
    """reading of the clock at which the rank itself began"""
    ends: Sequence[float]
    """of its actions, in seconds from then"""


def serve(rank: int, world: int, store: str, pipe: Connection) -> None:
    """In a worker: run jobs until one is None, and iterations of each until their start is None."""
    gc.freeze()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    link = GlooLink()
    while (job := pipe.recv()) is not None:
        executor = Executor(
            job.program,
            job.stages,
            EmulatedLink(link, job.uplink),
            buffers=MessageBuffers(MESSAGE_SPEC),
            recv_buffers=job.recv_buffers,
            sends_in_flight=job.sends_in_flight,
            timeline=HostTimeline(time.monotonic),
        )
        pipe.send(None)
        while (begin := pipe.recv()) is not None:
            pipe.send(iterate(executor, begin))
    dist.destroy_process_group()


TOKENS = torch.zeros(MESSAGE_SPEC.shape[:2], dtype=torch.int64)


def iterate(executor: Executor, begin: float) -> RankTimes:
    """Run one iteration that starts at a reading of the clock."""
    gc.collect()
    time.sleep(max(0.0, begin - time.monotonic()))
    timings = executor.run(lambda _: (TOKENS, TOKENS), lambda _: None, TIMEOUT_S)
    began_at = time.monotonic() - (time.perf_counter() - timings.began_at)
    late_s = began_at - begin
    tasks = [end for action, end in zip(timings.actions, timings.ends, strict=True) if isinstance(action, Task)]
    (norm,) = (start for action, start in zip(timings.actions, timings.starts, strict=True) if isinstance(action, Norm))
    return RankTimes(late_s + max(tasks, default=0.0), late_s + norm, late_s + timings.ends[-1], began_at, timings.ends)


@contextlib.contextmanager
def workers(world: int) -> Iterator[list[Connection]]:
    """Fork one worker per rank; none imports anything."""
    context = multiprocessing.get_context("fork")
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise SystemExit("a process with threads must not fork: set OPENBLAS_NUM_THREADS=1, for numpy")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, world, f"{folder}/store", there), daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        try:
            yield pipes
            for pipe in pipes:
                pipe.send(None)
            for process in processes:
                process.join(TIMEOUT_S)
        finally:
            for process in processes:
                process.kill()


def exchange(pipes: Sequence[Connection], values: Sequence[Any]) -> list[Any]:
    """Send each worker a value, and wait for all answers."""
    for pipe, value in zip(pipes, values, strict=True):
        pipe.send(value)
    return [pipe.recv() for pipe in pipes]


def run(pipes: Sequence[Connection], jobs: Sequence[RankJob], iterations: int) -> list[list[RankTimes]]:
    """Run iterations; for each the times of all ranks."""
    exchange(pipes, jobs)
    times = [exchange(pipes, [time.monotonic() + START_AFTER_S] * len(pipes)) for _ in range(iterations)]
    for pipe in pipes:
        pipe.send(None)
    return times


def latest(times: Sequence[RankTimes], name: str) -> float:
    """When the last rank was done with a part of an iteration, in seconds since its start."""
    return max(float(getattr(rank, name)) for rank in times)


# --- from plans to jobs


def rank_jobs(plan: Plan, time_scale: float, recv_buffers: int, sends_in_flight: int) -> list[RankJob]:
    """Jobs of all ranks, one per node."""
    cluster, ranks = plan.cluster, range(len(plan.cluster))
    programs = lower(plan, ranks)
    buffers = min_recv_buffers(programs, recv_buffers, sends_in_flight)
    assert buffers is not None, "plans do not deadlock"
    shrinking = MESSAGE_SPEC.payload_bytes / cluster.activation_bytes
    network = with_links(cluster, bandwidth_factor=shrinking)
    jobs = []
    for stage, nodes in enumerate(plan.stages):
        stage_bytes = cluster.gradient_bytes[stage] if cluster.gradient_bytes else 0.0
        numbers = len(nodes) * round(stage_bytes * shrinking / 4 / len(nodes))  # the ring's chunks are equal
        for node in nodes:
            times = (cluster.forward_s[node], cluster.backward_s[node], cluster.loss_s[node])
            sleeping = SleepingStage(
                *(time_scale * float(seconds) for seconds in times), [torch.zeros(numbers)] if numbers else []
            )
            uplink = uplink_of(network, ranks, node, time_scale)
            jobs.append(RankJob(programs[node], {stage: sleeping}, uplink, buffers, sends_in_flight))
    return sorted(jobs, key=lambda job: job.program.rank)


def with_links(cluster: Cluster, *, bandwidth_factor: float = 1.0, norm_s: float = 0.0) -> Cluster:
    """The cluster with faster or slower links, and the time that an exchange of the norm takes."""
    content = json.loads(cluster.to_json())
    content["bandwidth"] = [[rate and rate * bandwidth_factor for rate in row] for row in content["bandwidth"]]
    content["norm_s"] = norm_s
    return Cluster.from_json(json.dumps(content))


def norm_s(cluster: Cluster, stages: int) -> float:
    """Seconds of `tree_sum` over all nodes, if they begin at once."""
    seconds = cluster.transfer_matrix(8.0 * stages)
    count = len(cluster)
    parent = [(node - 1) // TREE_WIDTH for node in range(count)]
    up, down = [0.0] * count, [0.0] * count
    for node in range(count - 1, 0, -1):
        up[parent[node]] = max(up[parent[node]], up[node] + float(seconds[node, parent[node]]))
    for node in range(1, count):
        down[node] = down[parent[node]] + float(seconds[parent[node], node])
    return up[0] + max(down)


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
    return {name: with_norm(problem, schedule) for name, problem in found.items()}


def with_norm(problem: Problem, schedule: ScheduleConfig) -> Problem:
    """The problem, with the time that the exchange of the norm takes."""
    cluster = problem.cluster
    stated = with_links(cluster, norm_s=norm_s(cluster, len(problem.stages)))
    return Problem(
        stated,
        problem.stages,
        problem.microbatches,
        skip_ratio=schedule.skip_ratio,
        constraints=constraints(schedule),
    )


def planned(problem: Problem, strategy: str) -> Plan:
    """The plan of a strategy; of random ones, which vary, that with the median prediction."""
    seeds = RANDOM_SEEDS if strategy == "random-skip" else 1
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
    torch.set_num_threads(1)
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
