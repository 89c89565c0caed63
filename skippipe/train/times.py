"""How long tasks really take, and why an iteration took longer or shorter than predicted."""

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from skippipe._scheduler import Plan, simulate
from skippipe.errors import DeadlockError
from skippipe.ranks import NOBODY
from skippipe.runtime.actions import Task
from skippipe.runtime.executor import Timings
from skippipe.train.plans import with_times

NodeTimes = dict[int, dict[str, float]]
"""seconds by node and kind of task (F, L, B)"""


class TaskTimes:
    """Collects how long the tasks of this rank's nodes take."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, str], list[float]] = defaultdict(list)

    def add(self, timings: Timings) -> None:
        """Take one iteration."""
        for action, start, end in zip(timings.actions, timings.starts, timings.ends, strict=True):
            if isinstance(action, Task) and action.kind in "FLB":
                self._seconds[action.node, action.kind].append(end - start)

    def to_json(self) -> str:
        """Mean of each kind on each node, as text for the other ranks."""
        means: NodeTimes = defaultdict(dict)
        for (node, kind), seconds in self._seconds.items():
            means[node][kind] = statistics.fmean(seconds)
        return json.dumps(means)


def merged(texts: Sequence[str]) -> NodeTimes:
    """Put the times of all ranks together."""
    return {int(node): kinds for text in texts for node, kinds in json.loads(text).items()}


def reasons(
    plan: Plan, measured: Mapping[int, Mapping[str, float]], measured_s: float, rank_of: Sequence[int], busy: int
) -> list[str]:
    """Say in a few lines what made an iteration differ from its prediction.

    Args:
        plan: with the predicted times.
        measured: mean seconds of the tasks while training.
        measured_s: seconds of an iteration.
        rank_of: the rank that serves each node (`skippipe.ranks.assign_ranks`).
        busy: threads that all processes of this machine want to run at once.

    """
    predicted_s = plan.predicted.iteration_s
    try:
        explained_s = simulate(with_times(plan, measured)).predicted.iteration_s
    except DeadlockError:
        return []
    lines = [
        f"with the task times of the run the plan takes {explained_s:.3f} s, {explained_s - predicted_s:+.3f} s",
        f"the other {measured_s - explained_s:+.3f} s are messages, times that vary, and what is done between tasks",
    ]
    serving = [rank for rank in rank_of if rank != NOBODY]
    processes = len(set(serving))
    if processes < len(serving):
        lines.append(f"{processes} processes serve {len(serving)} nodes, which the plan takes to work at the same time")
    cores = len(os.sched_getaffinity(0))
    if busy > cores:
        lines.append(
            f"{busy} threads share the {cores} cores of this machine, where the plan takes each to have its own"
        )
    return lines
