"""Metrics of a plan: visits per stage, node utilization, Gantt rows. No output."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skippipe._scheduler import Plan, Task
from skippipe.allocation import even_shares
from skippipe.workload import workload_of

KINDS = "FLBR"
"""Kinds of work: forward, loss, backward, all-reduce of the node's stage."""
IDLE = " "


def visits_per_stage(plan: Plan) -> list[int]:
    """Number of microbatches that visit each stage."""
    visits = Counter(stage for microbatch in plan.microbatches for stage in microbatch.stages)
    return [visits[stage] for stage in range(len(plan.stages))]


def serving_nodes(plan: Plan) -> list[int]:
    """Nodes that serve a stage, stage by stage."""
    return [node for nodes in plan.stages for node in nodes]


def reductions(plan: Plan, tasks: Iterable[Task]) -> list[tuple[int, float, float]]:
    """Stage, start and end in seconds of each all-reduce; it follows the stage's last backward."""
    stage_of = {node: stage for stage, nodes in enumerate(plan.stages) for node in nodes}
    ends = [0.0] * len(plan.stages)
    for task in tasks:
        if task.kind == "B":
            ends[stage_of[task.node]] = max(ends[stage_of[task.node]], task.end_s)
    lengths = plan.predicted.allreduce_s
    return [(stage, ends[stage], ends[stage] + length) for stage, length in enumerate(lengths) if length > 0]


def node_utilization(plan: Plan) -> NDArray[np.float64]:
    """Fraction of the iteration in which each node runs a task, shape (N,)."""
    busy = np.zeros(len(plan.cluster))
    for task in plan.tasks:
        busy[task.node] += task.end_s - task.start_s
    return busy / plan.predicted.iteration_s if plan.predicted.iteration_s > 0 else busy


def assumed_layers(plan: Plan) -> list[int] | None:
    """Decoder layers of each stage: the plan's, else an even partition of the model that the times are for."""
    if plan.layers:
        return plan.layers
    total = workload_of(plan.cluster).layers
    present = [stage for stage in range(len(plan.stages)) if stage not in plan.absent_stages]
    if total is None or total < len(present):
        return None
    layers = [0] * len(plan.stages)
    for stage, share in zip(present, even_shares(total, len(present)), strict=True):
        layers[stage] = share
    return layers


@dataclass(frozen=True)
class GanttRow:
    """One row of a Gantt chart."""

    node: int
    stage: int
    cells: str
    """the dominant kind of work in each time slice: F, L, B, R (all-reduce), or a blank for idle"""


def gantt_rows(plan: Plan, width: int, most: int) -> list[GanttRow]:
    """Divide the iteration into `width` time slices; the `most` busiest nodes, by stage."""
    shares = node_utilization(plan)
    serving = [(stage, node) for stage, nodes in enumerate(plan.stages) for node in nodes]
    chosen = {node for _, node in sorted(serving, key=lambda row: (-shares[row[1]], row[1]))[:most]}
    filled = _filled(plan, width)
    return [GanttRow(node, stage, _cells(filled[node])) for stage, node in serving if node in chosen]


def _filled(plan: Plan, width: int) -> NDArray[np.float64]:
    """Fraction of each time slice that a node spends on each kind of work, shape (N, kinds, width)."""
    filled = np.zeros((len(plan.cluster), len(KINDS), width))
    scale = width / plan.predicted.iteration_s if plan.predicted.iteration_s > 0 else 0.0
    tasks = plan.tasks
    spans = [(task.node, task.kind, task.start_s, task.end_s) for task in tasks]
    for stage, start_s, end_s in reductions(plan, tasks):
        spans += [(node, "R", start_s, end_s) for node in plan.stages[stage]]
    for node, kind, start_s, end_s in spans:
        row = filled[node, KINDS.index(kind)]
        start, end = start_s * scale, end_s * scale
        first, last = min(int(start), width - 1), min(int(end), width - 1)
        if first == last:
            row[first] += end - start
            continue
        row[first] += first + 1 - start
        row[first + 1 : last] += 1.0
        row[last] += end - last
    return filled


def _cells(filled: NDArray[np.float64]) -> str:
    """Cells of one node, from shape (kinds, width)."""
    idle = 1.0 - filled.sum(axis=0)
    most = np.argmax(np.vstack([filled, idle]), axis=0)
    return "".join((KINDS + IDLE)[kind] for kind in most)
