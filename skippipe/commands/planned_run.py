"""The phases of a run, planned one after the other."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from skippipe import _scheduler
from skippipe._scheduler import Plan
from skippipe.allocation import allocation_of
from skippipe.config import PlanJob, PlannerConfig, ScheduleConfig
from skippipe.console.progress import planning_progress
from skippipe.errors import InputError
from skippipe.moves import WeightBytes
from skippipe.phases import (
    Phase,
    PhaseSummary,
    allocating_phase,
    average_iteration_s,
    changes_s,
    check_phases,
    in_phase,
    peak_state_bytes,
    phase_changes,
    phase_planner,
    phase_problem,
    phase_schedule,
    reallocate,
    resolve_phases,
    run_iterations,
    summarize,
)
from skippipe.planning import PlanningJob, make_plan
from skippipe.workload import microbatch_tokens


@dataclass(frozen=True)
class PlannedRun:
    """The plans of a run."""

    plans: Sequence[Plan]
    """of each phase"""
    summaries: Sequence[PhaseSummary] = ()
    """of each phase; empty: the search was stopped"""
    iterations: int | None = None
    """of the run; None: unknown"""
    state_bytes: float | None = None
    """most bytes of weights and moments on a node, where phases move stages; None: they do not, or unknown"""

    @classmethod
    def of_one_plan(cls, plan: Plan) -> Self:
        """A run of which there is one plan, and no more."""
        return cls([plan])

    @property
    def iteration_s(self) -> float:
        """Average iteration time in seconds; with the changes of phases if the iterations are known."""
        if not self.summaries:
            return self.plans[0].predicted.iteration_s
        average_s = average_iteration_s(self.summaries, self.iterations)
        assert average_s is not None, "plans made here predict"
        return average_s


def allocating_settings(job: PlanJob) -> tuple[ScheduleConfig, PlannerConfig]:
    """For what, and how, the allocation is searched that all phases keep."""
    number = allocating_phase(job.phases)
    if number is None:
        return job.schedule, job.planner
    phase = job.phases.list[number]
    return phase_schedule(phase, job.schedule), phase_planner(phase, job.planner)


def plan_run(job: PlanJob, made: Plan, *, copy: bool = False) -> PlannedRun:
    """Plan every phase of a run.

    Args:
        job: its settings.
        made: the plan of the phase for which the allocation was searched, or of none of them.
        copy: whether layers that join are copies of others, which is training's choice.

    Raises:
        InputError: a phase asks for what the nodes cannot do.
        NoPlanError: no plan was found for one within its limit.

    """
    found = resolve_phases(job.phases, job.schedule, job.planner, allocation_of(made))
    check_phases(made.cluster, found)
    phases = [reallocate(made.cluster, phase, job.allocate) for phase in found]
    plans = [
        made if number == allocating_phase(job.phases) else _plan_phase(made, phase, number)
        for number, phase in enumerate(phases)
    ]
    nodes, stage_layers, weights = range(len(made.cluster)), layers_of_stages(made), weight_bytes(made)
    changes = phase_changes(phases, nodes, stage_layers, copy=copy)
    seconds = changes_s(changes, [plan.cluster for plan in plans], nodes, stage_layers, weights)
    tokens, moving = microbatch_tokens(made), any(change.moves for change in changes)
    return PlannedRun(
        plans,
        [summarize(*each) for each in zip(phases, plans, seconds, strict=True)],
        run_iterations(job.phases, None if tokens is None else tokens * len(made.microbatches)),
        peak_state_bytes(phases, nodes, stage_layers, weights) if moving and weights is not None else None,
    )


def _plan_phase(made: Plan, phase: Phase, number: int) -> Plan:
    try:
        problem = phase_problem(made.cluster, phase, made.layers)
    except InputError as error:
        raise in_phase(error, number) from error
    with planning_progress(f"phase {number + 1}") as progress:
        plan = make_plan(PlanningJob(problem), phase.schedule.strategy, phase.planner, progress)
    same = phase.layers is not None and all(
        getattr(plan, name) == getattr(made, name)
        for name in ("strategy", "stages", "constraints", "skip_ratio", "microbatches_per_source")
    )
    if not same:
        return plan
    # The same question but for the times: the other phase's allocation, routes and order were searched together.
    again = _scheduler.simulate(made.with_cluster(problem.cluster))
    return plan if plan.predicted.iteration_s <= again.predicted.iteration_s else _with_bound_of(plan, again)


def _with_bound_of(plan: Plan, better: Plan) -> Plan:
    """Give a better plan for the same question, which was not searched for it, the bound and report of another."""
    content, searched = json.loads(better.to_json()), json.loads(plan.to_json())
    bound_s = searched["predicted"]["lower_bound_s"]
    gap = (content["predicted"]["iteration_s"] - bound_s) / bound_s if bound_s else 0.0
    content["predicted"] |= {"lower_bound_s": bound_s, "gap": gap}
    return Plan.from_json(json.dumps(content | {"solver": searched["solver"]}))


def layers_of_stages(plan: Plan) -> list[range]:
    """The decoder layers of each stage; where they are not known, as if each had one."""
    ends = itertools.accumulate(plan.layers or [1] * len(plan.stages), initial=0)
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def weight_bytes(plan: Plan) -> WeightBytes | None:
    """Bytes of the weights, of the type and so of the size of the gradients; None: the cluster does not state these."""
    gradients = plan.cluster.gradient_bytes
    if not sum(gradients):
        return None
    layers = layers_of_stages(plan)
    return WeightBytes([size / len(own) for size, own in zip(gradients, layers, strict=True) for _ in own])
