"""A report as JSON: all that terminal and page show, and the upgrades that they leave out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from skippipe._scheduler import Plan, Segment
from skippipe.report.analysis import Explained, composition
from skippipe.report.comparison import COMPARED, comparison
from skippipe.report.stages import cost, read_allocation_search, slowest_inside
from skippipe.workload import skipped_executions, throughput

FORMAT = "skippipe.report/1"


def document(plans: Sequence[Explained]) -> dict[str, Any]:
    """Plain values of the report on one plan or two; times in seconds, nodes and regions by number."""
    compared = {"comparison": list(comparison(*plans).notes)} if len(plans) == COMPARED else {}
    return {"format": FORMAT, "plans": [_plan(explained) for explained in plans], **compared}


def _plan(explained: Explained) -> dict[str, Any]:
    explanation, predicted = explained.explanation, explained.plan.predicted
    slack, arrival = explanation.slack_s.tolist(), explanation.arrival_s.tolist()
    waits = zip(*(w.tolist() for w in (explanation.busy_s, explanation.memory_s, explanation.order_s)), strict=True)
    notes = zip(explained.tasks, arrival, slack, explanation.reasons, explanation.blockers.tolist(), waits, strict=True)
    return {
        "plan": explained.name,
        "strategy": explained.plan.strategy,
        "iteration_s": predicted.iteration_s,
        "lower_bound_s": predicted.lower_bound_s,
        "skip_ratio": explained.plan.skip_ratio,
        "skipped_executions": skipped_executions(explained.plan),
        **dataclasses.asdict(throughput(explained.plan)),
        "allocation": _allocation(explained.plan),
        "critical": _way(explained, explanation.critical),
        "last_microbatch": _way(explained, explanation.last),
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
                "replanned_s": explained.replanned[i] if i < len(explained.replanned) else None,
            }
            for i, upgrade in enumerate(explained.upgrades)
        ],
    }  # fmt: skip


def _allocation(plan: Plan) -> dict[str, Any]:
    """Who serves each stage, and what that costs by the surrogate."""
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
        "search": dataclasses.asdict(read_allocation_search(plan)),
    }


def _way(explained: Explained, segments: Sequence[Segment]) -> dict[str, Any]:
    return {
        "seconds": composition(explained.tasks, segments),
        "segments": [
            {"part": s.part, "start_s": s.start_s, "end_s": s.end_s, "task": s.task, "link": s.link, "stage": s.stage}
            for s in segments
        ],
    }
