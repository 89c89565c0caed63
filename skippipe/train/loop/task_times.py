"""How long tasks really take, and why an iteration took longer or shorter than predicted."""

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from skippipe._scheduler import Plan, simulate
from skippipe.errors import DeadlockError
from skippipe.ranks import iteration_s_on
from skippipe.runtime.actions import Task
from skippipe.runtime.executor import Timings

NodeTimes = dict[int, dict[str, float]]
"""Seconds by node and kind of task (F, L, B)."""
FIELD_OF_KIND = {"F": "forward_s", "L": "loss_s", "B": "backward_s"}
"""Fields of a cluster's node by kind of task."""


class TaskTimes:
    """Collects durations of the tasks of this rank's nodes."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, str], list[float]] = defaultdict(list)

    def add(self, timings: Timings) -> None:
        """Take one iteration."""
        for action, start, end in zip(timings.actions, timings.starts, timings.ends, strict=True):
            if isinstance(action, Task) and action.kind in FIELD_OF_KIND:
                self._seconds[action.node, action.kind].append(end - start)

    def to_json(self) -> str:
        """Mean of each kind on each node, as text for the other ranks."""
        means: NodeTimes = defaultdict(dict)
        for (node, kind), seconds in self._seconds.items():
            means[node][kind] = statistics.fmean(seconds)
        return json.dumps(means)


def merge_times(texts: Sequence[str]) -> NodeTimes:
    """Merge the times of all ranks."""
    return {int(node): kinds for text in texts for node, kinds in json.loads(text).items()}


def with_times(plan: Plan, seconds: Mapping[int, Mapping[str, float]]) -> Plan:
    """The same plan for a cluster whose nodes take other times, by node and kind of task (F, L, B), in seconds.

    The times of its tasks are those of the old cluster; `simulate` gives the new ones.
    """
    cluster = plan.cluster
    columns = {"F": cluster.forward_s, "B": cluster.backward_s, "L": cluster.loss_s}
    for node, times in seconds.items():
        for kind, time in times.items():
            columns[kind][node] = time
    return plan.with_cluster(cluster.with_times(columns["F"], columns["B"], columns["L"]))


def explain_difference(
    plan: Plan, measured: Mapping[int, Mapping[str, float]], measured_s: float, rank_of: Sequence[int], threads: int
) -> list[str]:
    """Say in a few lines what made an iteration differ from its prediction.

    Args:
        plan: with the predicted times.
        measured: mean seconds of the tasks during training.
        measured_s: iteration time.
        rank_of: the rank that serves each node (`skippipe.ranks.assign_ranks`).
        threads: that all processes of this machine want to run at once.

    """
    predicted_s = iteration_s_on(plan, rank_of)
    try:
        explained_s = iteration_s_on(simulate(with_times(plan, measured)), rank_of)
    except DeadlockError:
        return []
    lines = [
        f"with the measured task times the plan takes {explained_s:.3f} s, {explained_s - predicted_s:+.3f} s",
        f"the other {measured_s - explained_s:+.3f} s are messages, jitter, and work between tasks",
    ]
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        lines.append(f"{threads} threads share the {cores} cores of this machine; the plan assumes one core for each")
    return lines
