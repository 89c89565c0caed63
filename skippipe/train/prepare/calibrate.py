"""Calibration: measures stages and messages of this run, so that a plan for the measured cluster predicts its times.

All ranks run their stages at the same time, as they will in training; of the transfers, each rank times one at a time.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from skippipe._scheduler import Cluster
from skippipe.allocation import Allocation
from skippipe.measure.links import time_links, time_norm
from skippipe.measure.stages import StageTimes, random_microbatch, time_head, time_stage
from skippipe.ranks import NO_RANK
from skippipe.runtime.stage import Stage
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.engine import Engine
from skippipe.train.loop.recording import recorded_above
from skippipe.train.loop.task_times import NodeTimes, TaskTimes, merge_times
from skippipe.workload import Workload

REHEARSALS = 2
"""Iterations of a first plan, to time tasks while other ranks run theirs. One before them does not count: memory is
allocated and kernels are loaded in it."""


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
    link_times = time_links(rendezvous, links.messages, message_spec, key)
    norm_s = time_norm(rendezvous, links.control, len(allocation.stages))
    host_share = recorded_above(context.spec.device, context.spec.precision, context.stages.values())
    own = {
        number: asdict(time_stage(stage, message_spec, vocabulary, host_share))
        for number, stage in context.stages.items()
    }
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
    loss_s = time_head(head, message_spec, vocabulary).median_s
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
        latency_s=link_times.latency_s[pairs],
        bandwidth=link_times.bandwidth[pairs],
        activation_bytes=message_spec.payload_bytes,
        gradient_bytes=[max((nodes[n].gradient_bytes for n in served), default=0) for served in allocation.stages],
        step_s=[node.step_s for node in nodes],
        norm_s=norm_s,
        source="measured by skippipe train before training",
        workload=workload.to_json(),
        contention=layout.cluster.contention,
    )


def _stated(cluster: Cluster, node: int) -> StageTimes:
    """Times of a node that no rank serves, as the cluster states them."""
    return StageTimes(float(cluster.forward_s[node]), float(cluster.backward_s[node]), step_s=0.0, gradient_bytes=0)


def rehearse(context: RankContext, engine: Engine, key: str) -> NodeTimes:
    """Seconds of each kind of task on each node in iterations that change nothing. All ranks call this."""
    tokens = random_microbatch(context.message_spec, context.vocabulary)[0].cpu()
    times = TaskTimes()
    with torch.random.fork_rng(devices=[]):
        for number in range(1 + REHEARSALS):
            timings = engine.iterate(lambda _: (tokens, tokens), lambda _: None).timings
            if number:
                times.add(timings)
    engine.release()
    return merge_times(context.rendezvous.all_gather(f"rehearsed times, {key}", times.to_json()))
