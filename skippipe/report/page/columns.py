"""Data of a plan for the page's script: tasks as columns with one entry per task."""

from typing import Any

from skippipe._scheduler import Segment
from skippipe.report.analysis import PlanAnalysis
from skippipe.report.plan_metrics import reductions

DIGITS = 9
"""Times are integer nanoseconds."""


def plan_columns(analysis: PlanAnalysis) -> dict[str, Any]:
    """Plan, explanation and critical path as plain values for JSON; times in seconds."""
    plan, explanation, tasks = analysis.plan, analysis.explanation, analysis.tasks
    cluster, predicted, microbatches = plan.cluster, plan.predicted, plan.microbatches
    number = {microbatch.id: i for i, microbatch in enumerate(microbatches)}
    detour = any(microbatch.nodes[0] != microbatch.source for microbatch in microbatches)

    def travel_s(sender: int, receiver: int) -> float:
        return float(cluster.transfer_times([sender], [receiver])[0, 0]) if detour else 0.0

    epilogue = sum(s.end_s - s.start_s for s in explanation.critical if s.part in ("norm", "step"))
    return {
        "title": analysis.name,
        "iteration_s": predicted.iteration_s,
        "epilogue_s": round(epilogue, DIGITS),
        "nodes": cluster.names,
        "memory": cluster.memory.tolist(),
        "stages": plan.stages,
        "region_of": None if cluster.region_of is None else cluster.region_of.tolist(),
        "microbatches": [
            {
                "id": microbatch.id,
                "source": microbatch.source,
                "nodes": microbatch.nodes,
                "out_s": travel_s(microbatch.source, microbatch.nodes[0]),
                "return_s": travel_s(microbatch.nodes[0], microbatch.source),
            }
            for microbatch in microbatches
        ],
        "tasks": {
            "node": [task.node for task in tasks],
            "microbatch": [number[task.microbatch] for task in tasks],
            "kind": "".join(task.kind for task in tasks),
            "hop": [task.hop for task in tasks],
            "start": [task.start_s for task in tasks],
            "end": [task.end_s for task in tasks],
            "arrival": _rounded(explanation.arrival_s),
            "slack": _rounded(explanation.slack_s),
            "reason": explanation.reasons,
            "blocker": explanation.blockers.tolist(),
            "busy": _rounded(explanation.busy_s),
            "memory": _rounded(explanation.memory_s),
            "order": _rounded(explanation.order_s),
        },
        "path": [_segment(segment) for segment in explanation.critical],
        "allreduce": [{"stage": stage, "start": start, "end": end} for stage, start, end in reductions(plan, tasks)],
    }


def _rounded(values: Any) -> list[float]:
    return [round(value, DIGITS) for value in values.tolist()]


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "part": segment.part,
        "start": segment.start_s,
        "end": segment.end_s,
        "task": segment.task,
        "link": segment.link,
        "stage": segment.stage,
    }
