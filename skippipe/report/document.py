"""A report as JSON: everything in terminal and page, and all upgrades."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from skippipe._scheduler import Allocated, AllocationReport, Plan, Segment
from skippipe.report.analysis import PlanAnalysis, composition
from skippipe.report.comparison import COMPARED, comparison
from skippipe.report.stages import cost, costs_of_use, moved, slowest_inside
from skippipe.rules import bent_rules
from skippipe.workload import skipped_executions, throughput

FORMAT = "skippipe.report/1"


def document(plans: Sequence[PlanAnalysis]) -> dict[str, Any]:
    """The report on one or two plans as plain values; times in seconds, nodes and regions by number."""
    compared = {"comparison": list(comparison(*plans).notes)} if len(plans) == COMPARED else {}
    return {"format": FORMAT, "plans": [_plan(analysis) for analysis in plans], **compared}


def _plan(analysis: PlanAnalysis) -> dict[str, Any]:
    explanation, predicted = analysis.explanation, analysis.plan.predicted
    slack, arrival = explanation.slack_s.tolist(), explanation.arrival_s.tolist()
    waits = zip(*(w.tolist() for w in (explanation.busy_s, explanation.memory_s, explanation.order_s)), strict=True)
    notes = zip(analysis.tasks, arrival, slack, explanation.reasons, explanation.blockers.tolist(), waits, strict=True)
    return {
        "plan": analysis.name,
        "strategy": analysis.plan.strategy,
        "iteration_s": predicted.iteration_s,
        "lower_bound_s": predicted.lower_bound_s,
        "skip_ratio": analysis.plan.skip_ratio,
        "bent_rules": bent_rules(analysis.plan.constraints, analysis.plan.absent_stages),
        "skipped_executions": skipped_executions(analysis.plan),
        **dataclasses.asdict(throughput(analysis.plan)),
        "allocation": _allocation(analysis.plan),
        "critical": _path(analysis, explanation.critical),
        "last_microbatch": _path(analysis, explanation.last),
        "tasks": [
            {
                "node": task.node, "microbatch": task.microbatch, "kind": task.kind, "hop": task.hop,
                "start_s": task.start_s, "end_s": task.end_s, "arrival_s": arrived, "slack_s": spare,
                "reason": reason, "blocker": None if blocker < 0 else blocker,
                "busy_s": busy, "memory_s": memory, "order_s": order,
            }
            for task, arrived, spare, reason, blocker, (busy, memory, order) in notes
        ],
        "upgrades": [
            {
                "node": upgrade.node,
                "link": upgrade.link,
                "both_ways": upgrade.both_ways,
                "iteration_s": upgrade.iteration_s,
                "dispatched_s": upgrade.dispatched_s,
                "replanned_s": analysis.replanned[i] if i < len(analysis.replanned) else None,
            }
            for i, upgrade in enumerate(analysis.upgrades)
        ],
    }  # fmt: skip


def _allocation(plan: Plan) -> dict[str, Any]:
    """The allocation and its cost by the surrogate."""
    scored = cost(plan)
    return {
        "stages": plan.stages,
        "absent_nodes": plan.absent_nodes,
        "layers": plan.layers,
        "slowest_inside_s": slowest_inside(plan),
        "score_s": scored.score_s,
        "replica_s": scored.replica_s,
        "tour_s": scored.tour_s,
        "compute_s": scored.compute_s,
        "search": _by_surrogate(plan.solver.surrogate) | _by_iteration(plan.solver.allocation, plan),
    }


def _by_surrogate(found: Allocated | None) -> dict[str, Any]:
    """The search for an allocation by the surrogate; None: unknown."""
    if found is None:
        return dict.fromkeys(("score_s", "score_bound_s", "next_score"))
    other = found.runner_up
    return {
        "score_s": found.best.score_s,
        "score_bound_s": found.lower_bound_s,
        "next_score": None
        if other is None
        else {"seconds": other.score_s, "moved": moved(found.best.stages, other.stages)},
    }


def _by_iteration(found: AllocationReport | None, plan: Plan) -> dict[str, Any]:
    """The search for an allocation by the iteration; None: unknown."""
    other = None if found is None else found.runner_up
    return {
        "start_s": None if found is None else found.start_s,
        "lower_bound_s": None if found is None else found.lower_bound_s,
        "next_iteration": None
        if other is None
        else {"seconds": other.iteration_s, "moved": moved(plan.stages, other.stages)},
        "left_out": [
            {
                "node": cost.node,
                "stage": cost.stage,
                "allreduce_s": cost.allreduce_s,
                "allreduce_without_s": cost.allreduce_without_s,
                "iteration_s": cost.iteration_s,
            }
            for cost in costs_of_use(plan)
        ],
    }


def _path(analysis: PlanAnalysis, segments: Sequence[Segment]) -> dict[str, Any]:
    return {
        "seconds": composition(analysis.tasks, segments),
        "segments": [
            {"part": s.part, "start_s": s.start_s, "end_s": s.end_s, "task": s.task, "link": s.link, "stage": s.stage}
            for s in segments
        ],
    }
