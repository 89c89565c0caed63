"""A rig that executes plans on this machine: the product's executor, programs and links, and stages that sleep.

One process per node, over Gloo and an emulated network; only the stages' compute sleeps. Messages are small, and the
emulated bandwidth is in proportion, so that the machine's own links do not matter. Needs torch.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from skippipe._scheduler import Cluster, Plan
from skippipe.ranks import NO_RANK
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

MESSAGE_SPEC = MessageSpec(1, 64, 256)
TIMEOUT_S = 120.0
START_AFTER_S = 0.2
"""Seconds from an iteration's announcement to its start."""
RECV_BUFFERS, SENDS_IN_FLIGHT = 2, 2
"""As in training."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment of workers: a process with threads must not fork."""


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
    torch.set_num_threads(1)
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
    """Start one worker per rank, as forks of a process that has imported torch once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        with _environment(ONE_THREAD):
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


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Variables that processes started meanwhile inherit."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


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


def rank_jobs(
    plan: Plan, time_scale: float, recv_buffers: int = RECV_BUFFERS, sends_in_flight: int = SENDS_IN_FLIGHT
) -> list[RankJob]:
    """Jobs of all ranks, one per node that serves a stage, in the order of their numbers."""
    cluster, rank_of = plan.cluster, ranks_of(plan)
    programs = lower(plan, rank_of)
    buffers = min_recv_buffers(programs, recv_buffers, sends_in_flight)
    assert buffers is not None, "plans do not deadlock"
    shrinking = MESSAGE_SPEC.payload_bytes / cluster.activation_bytes
    network = with_links(cluster, bandwidth_factor=shrinking)
    jobs = []
    for stage, nodes in enumerate(plan.stages):
        stage_bytes = cluster.gradient_bytes[stage] if cluster.gradient_bytes else 0.0
        numbers = len(nodes) * round(stage_bytes * shrinking / 4 / len(nodes))  # the ring's chunks are equal
        for node in nodes:
            sleeping = SleepingStage(
                time_scale * float(cluster.forward_s[node]),
                time_scale * float(cluster.backward_s[node]),
                time_scale * float(cluster.loss_s[node]),
                [torch.zeros(numbers)] if numbers else [],
            )
            rank = rank_of[node]
            uplink = uplink_of(network, rank_of, rank, time_scale)
            jobs.append(RankJob(programs[rank], {stage: sleeping}, uplink, buffers, sends_in_flight))
    return sorted(jobs, key=lambda job: job.program.rank)


def ranks_of(plan: Plan) -> list[int]:
    """The rank of each node: ranks are numbered as the nodes that serve a stage."""
    numbers = iter(range(len(plan.cluster)))
    absent = set(plan.absent_nodes)
    return [NO_RANK if node in absent else next(numbers) for node in range(len(plan.cluster))]


def with_links(cluster: Cluster, *, bandwidth_factor: float = 1.0, norm_s: float = 0.0) -> Cluster:
    """The cluster with faster or slower links, and the time that an exchange of the norm takes."""
    content = json.loads(cluster.to_json())
    content["bandwidth"] = [[rate and rate * bandwidth_factor for rate in row] for row in content["bandwidth"]]
    content["norm_s"] = norm_s
    return Cluster.from_json(json.dumps(content))


def norm_s(cluster: Cluster, stages: int, absent_nodes: Sequence[int] = ()) -> float:
    """Seconds of `tree_sum` over all nodes that are not absent, if they begin at once."""
    present = [node for node in range(len(cluster)) if node not in absent_nodes]
    seconds = cluster.transfer_matrix(8.0 * stages)[np.ix_(present, present)]
    count = len(present)
    parent = [(rank - 1) // TREE_WIDTH for rank in range(count)]
    up, down = [0.0] * count, [0.0] * count
    for rank in range(count - 1, 0, -1):
        up[parent[rank]] = max(up[parent[rank]], up[rank] + float(seconds[rank, parent[rank]]))
    for rank in range(1, count):
        down[rank] = down[parent[rank]] + float(seconds[parent[rank], rank])
    return up[0] + max(down)
