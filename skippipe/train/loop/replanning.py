"""Another plan for the cluster as training measures it, searched beside the training. Decisions: `replan_policy.py`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skippipe._scheduler import AllocationScope, Cluster, Plan, simulate
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, ImpossibleError, NoPlanError
from skippipe.planning import PlanningJob, make_plan
from skippipe.ranks import iteration_s_on


@dataclass(frozen=True)
class Question:
    """What is asked of a search: routes and order of the same microbatches under the same rules."""

    plan: Plan
    """in use"""
    cluster: Cluster
    """as it is now"""
    planner: PlannerConfig
    rank_of: Sequence[int]
    """the rank that serves each node"""
    reallocate: bool
    """whether nodes may serve other stages than now; those of stage 0 stay"""
    prove: Callable[[Plan], None]
    """raises `DeadlockError` unless a plan cannot deadlock on the ranks"""


@dataclass(frozen=True)
class Candidate:
    """What a search has found."""

    current_s: float
    """predicted iteration time of the plan in use"""
    plan: Plan | None
    """None: no plan was found"""
    candidate_s: float | None
    """its predicted iteration time"""
    refused: str | None = None
    """why a plan that was found is not offered"""


def retimed_s(plan: Plan, rank_of: Sequence[int]) -> float:
    """Predicted iteration time of a plan's order, put on a cluster with other times, in seconds."""
    return iteration_s_on(simulate(plan), rank_of)


def routes_s(plan: Plan) -> float:
    """Seconds that the routes of all microbatches take in sum, there and back, if none waits for another."""
    cluster = plan.cluster
    task_s, transfer_s = cluster.forward_s + cluster.backward_s, cluster.transfer_matrix()
    both_ways_s = transfer_s + transfer_s.T
    found = 0.0
    for microbatch in plan.microbatches:
        way = [*microbatch.nodes, microbatch.source]
        found += float(task_s[microbatch.nodes].sum() + cluster.loss_s[microbatch.source])
        found += float(both_ways_s[way[:-1], way[1:]].sum())
    return found


def find_plan(question: Question) -> Candidate:
    """Search for a plan within the planner's limits; one that is not proved free of deadlock is not offered.

    All ranks prove that again before they run it, but would have to end the run if it failed there.
    """
    current = question.plan.with_cluster(question.cluster)
    current_s = retimed_s(current, question.rank_of)
    scope = AllocationScope(sources=False) if question.reallocate else None
    try:
        found = make_plan(PlanningJob(current.problem(), scope), question.plan.strategy, question.planner)
    except (NoPlanError, ImpossibleError, DeadlockError):
        return Candidate(current_s, None, None)
    try:
        question.prove(found)
    except DeadlockError as error:
        return Candidate(current_s, None, None, str(error))
    if question.plan.model is not None:
        found = found.with_model(**json.loads(question.plan.model))
    return Candidate(current_s, found, iteration_s_on(found, question.rank_of))
