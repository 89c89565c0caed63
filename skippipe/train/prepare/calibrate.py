"""Calibration: measures stages and messages of this run, so that a plan for the measured cluster predicts its times.

All ranks run their stages at the same time, as they will in training; of the transfers, each rank times one at a time.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skippipe._scheduler import Cluster
from skippipe.allocation import Allocation
from skippipe.devices import synchronize
from skippipe.ranks import NO_RANK
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import tree_sum
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.engine import Engine
from skippipe.train.loop.optimizer import take_step
from skippipe.train.loop.task_times import NodeTimes, TaskTimes, merge_times
from skippipe.workload import Workload

Floats = NDArray[np.float64]

STAGE_S = 0.6
"""How long each stage is timed."""
HEAD_S = 0.2
"""How long head and loss are timed, on every rank: a later plan may make any node a source."""
LEAST_RUNS = 3
REHEARSALS = 2
"""Iterations of a first plan, to time tasks while other ranks run theirs."""
MESSAGES = 4
"""Messages of each size over each link; the fastest counts for latency and bandwidth alike."""
LOCAL_BANDWIDTH = 1e12
"""Bytes per second between two nodes of one rank, where nothing is sent."""


@dataclass(frozen=True)
class StageTimes:
    """Seconds of a stage on one rank, for one microbatch and for the optimizer step."""

    forward_s: float
    backward_s: float
    step_s: float
    gradient_bytes: int


def random_microbatch(message_spec: MessageSpec, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens below `vocabulary` and a hidden state, on the device of the messages."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, message_spec.shape[:2], generator=random)
    hidden = torch.randn(message_spec.shape, generator=random)
    return tokens.to(message_spec.device), hidden.to(message_spec.device, message_spec.dtype)


def time_stage(stage: Stage, message_spec: MessageSpec, vocabulary: int) -> StageTimes:
    """Run random microbatches through a stage; weights and random state are unchanged.

    Args:
        stage: one that this rank serves.
        message_spec: shape and type of messages.
        vocabulary: tokens are drawn below it.

    """
    tokens, hidden = random_microbatch(message_spec, vocabulary)
    seconds: dict[str, list[float]] = {"F": [], "B": []}

    def timed(what: str, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        begin = time.perf_counter()
        result = run()
        synchronize(message_spec.device)
        seconds[what].append(time.perf_counter() - begin)
        return result

    def backward() -> torch.Tensor:
        gradient = stage.backward(0, hidden)
        if stage.module.first:
            stage.embed_backward(0, gradient)
        return gradient

    end = time.perf_counter() + STAGE_S
    with torch.random.fork_rng(devices=[]):
        stage.begin(tokens.numel())
        while len(seconds["F"]) <= LEAST_RUNS or time.perf_counter() < end:
            if stage.module.first:
                timed("F", lambda: stage.forward(0, stage.embed(0, tokens)))
            else:
                timed("F", lambda: stage.forward(0, hidden))
            timed("B", backward)
    gradients = stage.gradients()
    step_s = _time_step(stage)
    stage.begin(1)
    # The first run of each is the slow one.
    medians = {what: statistics.median(times[1:]) for what, times in seconds.items()}
    return StageTimes(medians["F"], medians["B"], step_s, sum(g.nbytes for g in gradients))


def time_head(head: Stage, message_spec: MessageSpec, vocabulary: int) -> float:
    """Time head and loss; the gradients of the stage are discarded.

    Args:
        head: a stage with the head, whatever decoder layers it has.
        message_spec: shape and type of messages.
        vocabulary: tokens are drawn below it.

    Returns:
        Seconds for one microbatch, forward and backward together.

    """
    tokens, hidden = random_microbatch(message_spec, vocabulary)
    seconds: list[float] = []
    head.begin(tokens.numel())
    end = time.perf_counter() + HEAD_S
    while len(seconds) <= LEAST_RUNS or time.perf_counter() < end:
        begin = time.perf_counter()
        head.loss(0, hidden, tokens)
        synchronize(message_spec.device)
        seconds.append(time.perf_counter() - begin)
    head.begin(1)
    return statistics.median(seconds[1:])


def _time_step(stage: Stage) -> float:
    """Seconds of an optimizer step that changes nothing: zero learning rate and decay."""
    device = stage.parameters[0].device
    optimizer = torch.optim.AdamW(
        stage.parameters, lr=0.0, weight_decay=0.0, foreach=False, fused=device.type == "cuda"
    )
    for gradient in stage.gradients():
        gradient.zero_()
    synchronize(device)
    begin = time.perf_counter()
    take_step(optimizer, 0.0)
    synchronize(device)
    return time.perf_counter() - begin


def time_links(rendezvous: Rendezvous, link: Link, message_spec: MessageSpec, key: str) -> tuple[Floats, Floats]:
    """Time messages between any two ranks, in rounds of disjoint pairs.

    Returns:
        Latency in seconds and bandwidth in bytes per second, each (ranks, ranks), row = sender, the same everywhere.

    """
    world = rendezvous.world
    link.connect(set(itertools.combinations(range(world), 2)))
    small = torch.zeros(1, dtype=torch.uint8, device=message_spec.device)
    large = message_spec.empty_payload().zero_()
    mine: dict[str, tuple[float, float]] = {}
    for number, pairs in enumerate(rounds(world)):
        for a, b in pairs:
            if rendezvous.rank in (a, b):
                short = _round_trip(link, small, a, b, rendezvous)
                long = _round_trip(link, large, a, b, rendezvous)
                if rendezvous.rank == a:
                    mine[f"{a} {b}"] = (short / 2, large.nbytes / max(long / 2 - short / 2, 1e-9))
        rendezvous.all_gather(f"timed {number}, {key}", "")
    latency, bandwidth = np.zeros((world, world)), np.full((world, world), LOCAL_BANDWIDTH)
    for text in rendezvous.all_gather(f"links, {key}", json.dumps(mine)):
        for pair, (seconds, rate) in json.loads(text).items():
            a, b = map(int, pair.split())
            latency[a, b] = latency[b, a] = seconds
            bandwidth[a, b] = bandwidth[b, a] = rate
    return latency, bandwidth


def rounds(world: int) -> list[list[tuple[int, int]]]:
    """All pairs `(a, b)`, a < b, of ranks in as few rounds of disjoint pairs as possible."""
    # Round robin by the circle method: one position is fixed, the others rotate; an odd number is padded.
    circle = list(range(world + world % 2))
    found = []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < world])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def _round_trip(link: Link, tensor: torch.Tensor, a: int, b: int, rendezvous: Rendezvous) -> float:
    """Seconds of the fastest of several trips from `a` to `b` and back."""
    peer = b if rendezvous.rank == a else a
    arrived = torch.empty_like(tensor)
    times = []
    with rendezvous.transferring("messages to be timed", (a, b)):
        for _ in range(MESSAGES):
            begin = time.perf_counter()
            receive = link.irecv(arrived, peer, 0)
            if rendezvous.rank == a:
                link.isend(tensor, peer, 0).wait(rendezvous.timeout_s)
            receive.wait(rendezvous.timeout_s)
            if rendezvous.rank == b:
                link.isend(tensor, peer, 0).wait(rendezvous.timeout_s)
            synchronize(tensor.device)
            times.append(time.perf_counter() - begin)
    return min(times)


def measure_cluster(
    context: RankContext, allocation: Allocation, workload: Workload, build_head: Callable[[], Stage], key: str
) -> Cluster:
    """Give the run's cluster with measured times of stages, messages and steps. All ranks call this.

    Args:
        context: what the rank works with.
        allocation: one of the run's; times hold for the stages that nodes serve in it.
        workload: what the measured times hold for.
        build_head: builds a stage of the head alone, on ranks that do not serve stage 0.
        key: of exchanges between ranks, used once in a job.

    """
    rendezvous, links, message_spec, rank_of = context.rendezvous, context.links, context.message_spec, context.rank_of
    layout, vocabulary = context.spec.layout, context.vocabulary
    latency, bandwidth = time_links(rendezvous, links.messages, message_spec, key)
    norm_s = _time_norm(rendezvous, links.control, len(allocation.stages))
    own = {number: asdict(time_stage(stage, message_spec, vocabulary)) for number, stage in context.stages.items()}
    by_rank: list[dict[str, dict[str, Any]]] = [
        json.loads(text) for text in rendezvous.all_gather(f"stage times, {key}", json.dumps(own))
    ]
    stage_of = allocation.stage_of
    nodes = [
        _stated(layout.cluster, node)
        if rank == NO_RANK or node not in stage_of
        else StageTimes(**by_rank[rank][str(stage_of[node])])
        for node, rank in enumerate(rank_of)
    ]
    head = context.stages.get(0) or build_head()
    rendezvous.all_gather(f"heads built, {key}", "")  # so that all of them are timed at once
    loss_s = time_head(head, message_spec, vocabulary)
    losses = [float(text) for text in rendezvous.all_gather(f"loss times, {key}", str(loss_s))]
    # Nothing is sent to a node that no rank serves: the figures of its links do not matter.
    ends = [max(rank, 0) for rank in rank_of]
    pairs = np.ix_(ends, ends)
    return Cluster(
        layout.cluster.names,
        [node.forward_s for node in nodes],
        [node.backward_s for node in nodes],
        [losses[rank] if rank != NO_RANK else float(layout.cluster.loss_s[n]) for n, rank in enumerate(rank_of)],
        [int(memory) for memory in layout.cluster.memory],
        latency_s=latency[pairs],
        bandwidth=bandwidth[pairs],
        activation_bytes=message_spec.payload_bytes,
        gradient_bytes=[max((nodes[n].gradient_bytes for n in served), default=0) for served in allocation.stages],
        step_s=[node.step_s for node in nodes],
        norm_s=norm_s,
        source="measured by skippipe train before training",
        workload=workload.to_json(),
    )


def _stated(cluster: Cluster, node: int) -> StageTimes:
    """Times of a node that no rank serves, as the cluster states them."""
    return StageTimes(float(cluster.forward_s[node]), float(cluster.backward_s[node]), step_s=0.0, gradient_bytes=0)


def rehearse(context: RankContext, engine: Engine, key: str) -> NodeTimes:
    """Seconds of each kind of task on each node in iterations that change nothing. All ranks call this."""
    tokens, _ = random_microbatch(context.message_spec, context.vocabulary)
    times = TaskTimes()
    with torch.random.fork_rng(devices=[]):
        for _ in range(REHEARSALS):
            times.add(engine.iterate(lambda _: (tokens.cpu(), tokens.cpu()), lambda _: None).timings)
    return merge_times(context.rendezvous.all_gather(f"rehearsed times, {key}", times.to_json()))


def _time_norm(rendezvous: Rendezvous, link: Link, stages: int) -> float:
    """Seconds of an exchange of the norm; ranks measure different times, and those of rank 0 count, as it plans."""
    times, ranks = [], range(rendezvous.world)
    with rendezvous.transferring("an exchange of the norm to be timed", ranks):
        for _ in range(MESSAGES):
            begin = time.perf_counter()
            tree_sum(link, torch.zeros(stages, dtype=torch.float64), rendezvous.rank, ranks, rendezvous.timeout_s)
            times.append(time.perf_counter() - begin)
    return min(times)
