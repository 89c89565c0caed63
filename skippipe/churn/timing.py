"""Iteration times without some nodes: planned anew, for those that are left, or for redundant computation."""

from collections.abc import Callable

import numpy as np

from skippipe._scheduler import Cluster, Plan, Problem
from skippipe.allocation import Allocation
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, InputError, NoPlanError
from skippipe.planning import PlanningJob, make_plan
from skippipe.remaining import left_of, remaining_problem

Planned = Callable[[Problem], float | None]
"""Iteration time of a plan for a problem; None: there is none."""


class Planner:
    """Plans problems with the strategy of a plan."""

    def __init__(self, strategy: str, planner: PlannerConfig, report: Callable[[int], None]) -> None:
        """Plan by `strategy`; `report` takes the number of plans so far."""
        self._strategy, self._planner, self._report = strategy, planner, report
        self._count = 0

    def __call__(self, problem: Problem) -> float | None:
        """Iteration time; None: there is no plan."""
        self._count += 1
        self._report(self._count)
        try:
            return make_plan(PlanningJob(problem), self._strategy, self._planner).predicted.iteration_s
        except (InputError, NoPlanError, DeadlockError):
            return None


class Remaining:
    """Iteration times of the nodes that are left of a plan, as after a recovery."""

    def __init__(self, plan: Plan, planned: Planned) -> None:
        """Begin with a plan for all nodes."""
        self._plan, self._planned = plan, planned
        self._known: dict[frozenset[int], float | None] = {frozenset(): plan.predicted.iteration_s}

    def __call__(self, absent: frozenset[int]) -> float | None:
        """Without some nodes; None: a stage has none left, or there is no plan."""
        lost = frozenset(absent.intersection(node for nodes in self._plan.stages for node in nodes))
        if lost not in self._known:
            stages = left_of(self._plan.stages, lost)
            emptied = any(before and not after for before, after in zip(self._plan.stages, stages, strict=True))
            self._known[lost] = None if emptied else self._planned(self._problem(stages, lost))
        return self._known[lost]

    def _problem(self, stages: list[list[int]], lost: frozenset[int]) -> Problem:
        absent = tuple(sorted({*self._plan.absent_nodes, *lost}))
        return remaining_problem(self._plan, Allocation(stages, tuple(self._plan.absent_stages), absent_nodes=absent))


class Redundant:
    """Iteration times where each node also computes the forward of the stage after its own, as Bamboo does (NSDI 2023).

    When a node is lost, the one before it, its shadow, does its work too, so routes and stages stay as they are.
    """

    def __init__(self, plan: Plan, planned: Planned) -> None:
        """Begin with a plan for all nodes."""
        self._plan, self._planned = plan, planned
        self._shadow = shadows(plan)
        self._known: dict[frozenset[int], float | None] = {}

    def __call__(self, absent: frozenset[int]) -> float | None:
        """Without some nodes; None: a node is lost together with its shadow, or there is no plan."""
        lost = absent.intersection(self._shadow)
        if any(self._shadow[node] in lost for node in lost):
            return None
        if lost not in self._known:
            self._known[lost] = self._planned(self._problem(lost))
        return self._known[lost]

    def _problem(self, lost: frozenset[int]) -> Problem:
        asked = self._plan.problem()
        return Problem(
            with_shadows(asked.cluster, {node: self._shadow[node] for node in lost}),
            asked.stages,
            asked.microbatches,
            skip_ratio=asked.skip_ratio,
            constraints=asked.constraints,
            layers=asked.layers,
            absent_stages=asked.absent_stages,
            absent_nodes=asked.absent_nodes,
        )


def shadows(plan: Plan) -> dict[int, int]:
    """Of each node the one that can do its work: in the stage before its own, for stage 0 in the last one."""
    served = [nodes for nodes in plan.stages if nodes]
    return {
        node: served[stage - 1][place % len(served[stage - 1])]
        for stage, nodes in enumerate(served)
        for place, node in enumerate(nodes)
    }


def with_shadows(cluster: Cluster, done_by: dict[int, int]) -> Cluster:
    """The cluster with redundant forwards, and with the work of some nodes done by others.

    A node that does the work of another shares its processor with it, and its times and links are that node's.
    """
    place = np.array([done_by.get(node, node) for node in range(len(cluster))])
    transfer_s = cluster.transfer_matrix()[np.ix_(place, place)]
    count = len(cluster)
    numbered = [count + node if number is None else number for node, number in enumerate(cluster.processors)]
    return Cluster(
        cluster.names,
        2.0 * cluster.forward_s[place],
        cluster.backward_s[place],
        cluster.loss_s[place],
        cluster.memory,
        transfer_s=transfer_s,
        step_s=[cluster.step_s[node] for node in place] if len(cluster.step_s) else [],
        norm_s=cluster.norm_s,
        processors=[numbered[node] for node in place],
    )
