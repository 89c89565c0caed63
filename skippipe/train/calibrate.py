"""Times this machine's stages and messages, so that the plan's prediction is one: a cluster out of measurements.

All ranks run their stages at the same time, since that is what they will do; of the transfers, each rank times one at a
time.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skippipe._scheduler import Cluster
from skippipe.ranks import NOBODY
from skippipe.runtime.executor import MessageSpec
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import tree_sum
from skippipe.runtime.stage import Stage
from skippipe.train.layout import Layout
from skippipe.train.loop import Engine, Station
from skippipe.train.optimizer import take_step
from skippipe.train.team import Team
from skippipe.train.times import TaskTimes, merged
from skippipe.workload import Workload

Floats = NDArray[np.float64]

STAGE_S = 0.6
"""How long each stage is timed."""
HEAD_S = 0.2
"""How long head and loss are timed, on every rank: a later plan may make any node a source."""
LEAST_RUNS = 3
REHEARSALS = 2
"""Iterations of a first plan, to time tasks while others run."""
MESSAGES = 4
"""Messages of each size over each link; the fastest counts for latency and bandwidth alike."""
HANDED_OVER = 1e12
"""Bytes per second between two nodes of one rank, where nothing is sent."""


@dataclass(frozen=True)
class StageTimes:
    """Seconds that a stage takes on one rank for one microbatch, and for its step."""

    forward_s: float
    backward_s: float
    step_s: float
    gradient_bytes: int


def time_stage(stage: Stage, boundary: MessageSpec, vocabulary: int) -> StageTimes:
    """Run random microbatches through a stage; weights and random state stay as they are.

    Args:
        stage: one that this rank serves.
        boundary: what messages look like.
        vocabulary: tokens are drawn below it.

    """
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, boundary.shape[:2], generator=random)
    hidden = torch.randn(boundary.shape, generator=random).to(boundary.dtype)
    taken: dict[str, list[float]] = {"F": [], "B": []}

    def timed(what: str, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        begin = time.perf_counter()
        result = run()
        taken[what].append(time.perf_counter() - begin)
        return result

    def home() -> torch.Tensor:
        gradient = stage.backward(0, hidden)
        if stage.module.first:
            stage.embed_backward(0, gradient)
        return gradient

    end = time.perf_counter() + STAGE_S
    with torch.random.fork_rng(devices=[]):
        stage.begin(tokens.numel())
        while len(taken["F"]) <= LEAST_RUNS or time.perf_counter() < end:
            if stage.module.first:
                timed("F", lambda: stage.forward(0, stage.embed(0, tokens)))
            else:
                timed("F", lambda: stage.forward(0, hidden))
            timed("B", home)
    gradients = stage.gradients()
    step_s = _time_step(stage)
    stage.begin(1)
    # The first run of each is the slow one.
    medians = {what: statistics.median(times[1:]) for what, times in taken.items()}
    return StageTimes(medians["F"], medians["B"], step_s, sum(g.nbytes for g in gradients))


def time_head(head: Stage, boundary: MessageSpec, vocabulary: int) -> float:
    """Time head and loss; the gradients of the stage are dropped.

    Args:
        head: a stage with the head, whatever decoder layers it has.
        boundary: what messages look like.
        vocabulary: tokens are drawn below it.

    Returns:
        Seconds for one microbatch, forward and backward together.

    """
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, boundary.shape[:2], generator=random)
    hidden = torch.randn(boundary.shape, generator=random).to(boundary.dtype)
    taken: list[float] = []
    head.begin(tokens.numel())
    end = time.perf_counter() + HEAD_S
    while len(taken) <= LEAST_RUNS or time.perf_counter() < end:
        begin = time.perf_counter()
        head.loss(0, hidden, tokens)
        taken.append(time.perf_counter() - begin)
    head.begin(1)
    return statistics.median(taken[1:])


def _time_step(stage: Stage) -> float:
    """Seconds of a step of an optimizer that changes nothing: without rate and decay."""
    optimizer = torch.optim.AdamW(stage.parameters, lr=0.0, weight_decay=0.0, foreach=False)
    for gradient in stage.gradients():
        gradient.zero_()
    begin = time.perf_counter()
    take_step(optimizer, 0.0)
    return time.perf_counter() - begin


def time_links(team: Team, link: Link, boundary: MessageSpec) -> tuple[Floats, Floats]:
    """Time messages between any two ranks: in rounds, in each of which a rank is of one pair at most.

    Returns:
        Latency in seconds and bandwidth in bytes per second, each (ranks, ranks), row = sender, the same everywhere.

    """
    world = team.world
    small = torch.zeros(1, dtype=boundary.dtype)
    large = torch.zeros(boundary.shape, dtype=boundary.dtype)
    mine: dict[str, tuple[float, float]] = {}
    for number, pairs in enumerate(rounds(world)):
        for a, b in pairs:
            if team.rank in (a, b):
                short = _round_trip(link, small, a, b, team)
                long = _round_trip(link, large, a, b, team)
                if team.rank == a:
                    mine[f"{a} {b}"] = (short / 2, large.nbytes / max(long / 2 - short / 2, 1e-9))
        team.exchange(f"timed {number}", "")
    latency, bandwidth = np.zeros((world, world)), np.full((world, world), HANDED_OVER)
    for text in team.exchange("links", json.dumps(mine)):
        for pair, (seconds, rate) in json.loads(text).items():
            a, b = map(int, pair.split())
            latency[a, b] = latency[b, a] = seconds
            bandwidth[a, b] = bandwidth[b, a] = rate
    return latency, bandwidth


def rounds(world: int) -> list[list[tuple[int, int]]]:
    """Deal all pairs `(a, b)`, a < b, of ranks to as few rounds as can be, each rank once in a round at most."""
    # As in a tournament: one seat stays, the others move on by one; with an odd number one seat is empty.
    seats = list(range(world + world % 2))
    found = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < world])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _round_trip(link: Link, tensor: torch.Tensor, a: int, b: int, team: Team) -> float:
    """Seconds of the fastest trip from `a` to `b` and back."""
    peer = b if team.rank == a else a
    arrived = torch.empty_like(tensor)
    times = []
    with team.transferring("messages to be timed", (a, b)):
        for _ in range(MESSAGES):
            begin = time.perf_counter()
            receive = link.irecv(arrived, peer, 0)
            if team.rank == a:
                link.isend(tensor, peer, 0).wait(team.timeout_s)
            receive.wait(team.timeout_s)
            if team.rank == b:
                link.isend(tensor, peer, 0).wait(team.timeout_s)
            times.append(time.perf_counter() - begin)
    return min(times)


def calibrated(station: Station, layout: Layout, workload: Workload, build_head: Callable[[], Stage]) -> Cluster:
    """Measure: the cluster of `layout` with the times of this job's stages, messages and steps. All ranks call it.

    Args:
        station: what the rank works with.
        layout: nodes and stages.
        workload: what is trained, and how many layers each node serves.
        build_head: builds a stage of the head alone, on ranks that do not serve the first stage.

    """
    team, link, boundary, rank_of = station.team, station.link, station.boundary, station.rank_of
    latency, bandwidth = time_links(team, link, boundary)
    norm_s = _time_norm(team, link, len(layout.stages))
    own = {number: asdict(time_stage(stage, boundary, station.vocabulary)) for number, stage in station.stages.items()}
    by_rank: list[dict[str, dict[str, Any]]] = [json.loads(x) for x in team.exchange("stage times", json.dumps(own))]
    stage_of = {node: stage for stage, nodes in enumerate(layout.stages) for node in nodes}
    nodes = [
        _stated(layout.cluster, node) if rank == NOBODY else StageTimes(**by_rank[rank][str(stage_of[node])])
        for node, rank in enumerate(rank_of)
    ]
    head = station.stages.get(0) or build_head()
    team.exchange("heads built", "")  # so that all of them are timed at once
    loss_s = time_head(head, boundary, station.vocabulary)
    losses = [float(text) for text in team.exchange("loss times", str(loss_s))]
    # Nothing is sent to a node that nobody serves: what stands for its links is of no account.
    ends = [max(rank, 0) for rank in rank_of]
    pairs = np.ix_(ends, ends)
    return Cluster(
        layout.cluster.names,
        [node.forward_s for node in nodes],
        [node.backward_s for node in nodes],
        [losses[rank] if rank != NOBODY else float(layout.cluster.loss_s[n]) for n, rank in enumerate(rank_of)],
        [int(memory) for memory in layout.cluster.memory],
        latency_s=latency[pairs],
        bandwidth=bandwidth[pairs],
        activation_bytes=math.prod(boundary.shape) * boundary.dtype.itemsize,
        gradient_bytes=[max((nodes[n].gradient_bytes for n in served), default=0) for served in layout.stages],
        step_s=[node.step_s for node in nodes],
        norm_s=norm_s,
        source="measured by skippipe train before training",
        workload=workload.to_json(),
    )


def _stated(cluster: Cluster, node: int) -> StageTimes:
    """Times of a node that no process serves, as the cluster has them."""
    return StageTimes(float(cluster.forward_s[node]), float(cluster.backward_s[node]), step_s=0.0, gradient_bytes=0)


def rehearsed(station: Station, engine: Engine) -> dict[int, dict[str, float]]:
    """Seconds of each kind of task on each node in iterations that change nothing. All ranks call it."""
    boundary = station.boundary
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(station.vocabulary, boundary.shape[:2], generator=random)
    times = TaskTimes()
    with torch.random.fork_rng(devices=[]):
        for _ in range(REHEARSALS):
            times.add(engine.iterate(lambda _: (tokens, tokens), "exact", lambda _: None).timings)
    return merged(station.team.exchange("rehearsed times", times.to_json()))


def _time_norm(team: Team, link: Link, stages: int) -> float:
    """Seconds of an exchange of the norm; the same on all ranks matters not, rank 0 plans."""
    times, ranks = [], range(team.world)
    with team.transferring("an exchange of the norm to be timed", ranks):
        for _ in range(MESSAGES):
            begin = time.perf_counter()
            tree_sum(link, torch.zeros(stages, dtype=torch.float64), team.rank, ranks, team.timeout_s)
            times.append(time.perf_counter() - begin)
    return min(times)
