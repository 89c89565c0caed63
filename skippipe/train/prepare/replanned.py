"""Plans for the nodes that are there, on rank 0 while all others wait: some are lost, some join.

A node that joins is tried on every stage that it may serve; the plan with the shortest iteration has it. Then nodes may
change places, if that saves more than moving their stages costs.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from skippipe._scheduler import AllocationScope, Cluster, Plan
from skippipe.allocation import Allocation
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, ImpossibleError, InputError, NoPlanError
from skippipe.moves import WeightBytes, stage_moves, transfers_s
from skippipe.planning import PlanningJob, make_plan
from skippipe.ranks import iteration_s_on, serving_ranks, transfer_time
from skippipe.remaining import remaining_problem
from skippipe.train.loop.replan_policy import Offer, ReplanPolicy, is_worth_it
from skippipe.train.loop.run_state import RunState
from skippipe.train.prepare.newcomers import NodeFacts
from skippipe.train.prepare.remaining import Left, NotRecoverableError
from skippipe.train.prepare.stages import PartitionedModel
from skippipe.train.resolve.spec import REPLANNING_S, PlanPhase, RunSpec

_NO_PLAN = (InputError, NoPlanError, ImpossibleError, DeadlockError)


@dataclass(frozen=True)
class Asked:
    """What plans are asked for."""

    spec: RunSpec
    """without the nodes that are lost"""
    model: PartitionedModel
    state: RunState
    rank_of: Sequence[int]
    """the rank that serves each node"""
    lost: Collection[int]
    """nodes"""
    left: Left
    """who serves the stages of those that are lost"""
    newcomers: Mapping[str, NodeFacts]
    weights: WeightBytes

    @property
    def phases_left(self) -> list[PlanPhase]:
        """The phase of the latest iteration and those to come."""
        phases = self.spec.phases
        ends = [*(phase.after for phase in phases[1:]), self.spec.iterations]
        planned = {plan.after for plan in self.state.plans}
        return [
            phase
            for phase, end in zip(phases, ends, strict=True)
            if end >= self.state.progress.iteration and phase.after in planned
        ]


def waiting_s(asked: Asked) -> float:
    """How long the others may have to wait for the plans."""
    return REPLANNING_S * len(asked.phases_left) * (2 if asked.newcomers else 1)


def replanned(asked: Asked) -> str:
    """The plans of all phases that are left, as JSON; raises `NotRecoverableError` if there is none for one of them."""
    plans = {plan.after: Plan.from_json(plan.plan) for plan in asked.state.plans}
    return json.dumps([_plan(asked, phase, plans[phase.after]).to_json() for phase in asked.phases_left])


def _plan(asked: Asked, phase: PlanPhase, before: Plan) -> Plan:
    """The plan of a phase for the nodes that are there, found in the time for which all may wait."""
    names = asked.spec.layout.cluster.names
    # Nodes may have changed stages since the phase was stated.
    allocation = dataclasses.replace(phase.allocation, stages=asked.left(before.stages, asked.lost))
    joining = {names.index(name): facts for name, facts in sorted(asked.newcomers.items())}
    if joining:
        before = before.with_cluster(_with_figures(before.cluster, asked.spec.layout.cluster, joining))
    try:
        if joining:
            found = _with_newcomers(asked, phase, before, allocation, joining)
        else:
            problem = remaining_problem(before, allocation)
            found = make_plan(PlanningJob(problem), before.strategy, _planner(phase, REPLANNING_S))
    except _NO_PLAN as error:
        raise NotRecoverableError(f"there is no plan for the nodes that are left: {error}") from None
    return found.with_model(**dataclasses.asdict(asked.model.plan_model))


def _planner(phase: PlanPhase, limit_s: float) -> PlannerConfig:
    stated = phase.planner.time_limit_s
    return dataclasses.replace(phase.planner, time_limit_s=limit_s if stated is None else min(stated, limit_s))


def _with_newcomers(
    asked: Asked, phase: PlanPhase, before: Plan, allocation: Allocation, joining: Mapping[int, NodeFacts]
) -> Plan:
    """The plan that has nodes that join where they help most; those for which there is none stay out."""
    best: Plan | None = None
    for node, facts in joining.items():
        stages = _stages_for(facts, allocation)
        found: list[tuple[float, int, int, Allocation, Plan]] = []
        for stage in stages:
            planner = _planner(phase, REPLANNING_S / (len(joining) * len(stages)))
            grown = with_node(allocation, node, stage)
            try:
                plan = make_plan(PlanningJob(remaining_problem(before, grown)), before.strategy, planner)
            except _NO_PLAN:
                continue
            found.append((iteration_s_on(plan, asked.rank_of), len(allocation.stages[stage]), stage, grown, plan))
        if found:
            *_, allocation, best = min(found, key=lambda each: each[:3])
    if best is None:
        problem = remaining_problem(before, allocation)
        return make_plan(PlanningJob(problem), before.strategy, _planner(phase, REPLANNING_S))
    return _exchanged(asked, phase, best) or best


def _stages_for(facts: NodeFacts, allocation: Allocation) -> list[int]:
    """The stages that a node that joins is tried on: lost ones that all routes skip, if it may serve one of them."""
    lost = [stage for stage in facts.stages if stage in allocation.lost_stages]
    return lost or [stage for stage in facts.stages if allocation.stages[stage]]


def _exchanged(asked: Asked, phase: PlanPhase, plan: Plan) -> Plan | None:
    """A plan under which nodes have changed places, if there is one that is worth it."""
    later = [layers for stage, layers in enumerate(asked.model.layers) if stage and plan.stages[stage]]
    if len(later) < 2 or len(set(later)) > 1:
        return None
    try:
        job = PlanningJob(plan.problem(), AllocationScope(sources=False))
        found = make_plan(job, plan.strategy, _planner(phase, REPLANNING_S))
    except _NO_PLAN:
        return None
    spec, rank_of = asked.spec, asked.rank_of
    following = [other.after for other in spec.phases if other.after > phase.after]
    offer = Offer(
        iteration_s_on(plan, rank_of),
        iteration_s_on(found, rank_of),
        _moving_s(asked, found) - _moving_s(asked, plan),
        min([*following, spec.iterations]) - max(phase.after, asked.state.progress.iteration),
    )
    return found if is_worth_it(ReplanPolicy(spec.replan.gain, spec.replan.wait), offer) else None


def _moving_s(asked: Asked, plan: Plan) -> float:
    """Predicted seconds for weights and optimizer state to move to where a plan needs them."""
    holding, stage_layers = asked.state.holding, asked.model.stage_layers
    held = {stage: ranks for stage, ranks in holding.current.items() if ranks}
    serving = {s: ranks for s, ranks in serving_ranks(plan.stages, asked.rank_of).items() if s in held}

    def state(stage: int) -> float:
        return asked.weights.state(stage, holding.joined.intersection(stage_layers[stage]))

    return transfers_s(stage_moves(serving, held), state, transfer_time(plan.cluster, asked.rank_of))


def with_node(allocation: Allocation, node: int, stage: int) -> Allocation:
    """An allocation in which a node that served no stage serves one, which may have been lost."""
    return dataclasses.replace(
        allocation,
        stages=[[*nodes, node] if number == stage else [*nodes] for number, nodes in enumerate(allocation.stages)],
        absent_nodes=tuple(other for other in allocation.absent_nodes if other != node),
        absent_stages=tuple(other for other in allocation.absent_stages if other != stage),
        lost_stages=tuple(other for other in allocation.lost_stages if other != stage),
    )


def _with_figures(cluster: Cluster, stated: Cluster, joining: Mapping[int, NodeFacts]) -> Cluster:
    """The cluster of a plan with the times of nodes that join, where they have measured them."""
    content, as_stated = json.loads(cluster.to_json()), json.loads(stated.to_json())
    for node, facts in joining.items():
        if facts.times is None:
            continue
        figures = dataclasses.asdict(facts.times)
        if "step_s" not in content["nodes"][node]:
            del figures["step_s"]
        never_measured = content["nodes"][node]["forward_s"] == as_stated["nodes"][node]["forward_s"]
        content["nodes"][node] |= figures
        if never_measured and _links_by_node(content) and _links_by_node(as_stated):
            for key in ("latency_s", "bandwidth"):
                content[key][node] = as_stated[key][node]
                for row, row_as_stated in zip(content[key], as_stated[key], strict=True):
                    row[node] = row_as_stated[node]
    return Cluster.from_json(json.dumps(content))


def _links_by_node(content: Mapping[str, object]) -> bool:
    return "region_of" not in content and "latency_s" in content
