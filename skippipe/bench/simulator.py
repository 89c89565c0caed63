"""Benchmark of the simulator's speed."""

from typing import Any

from skippipe import _scheduler
from skippipe._scheduler import Plan
from skippipe.bench.cases import Cases
from skippipe.config import ORDERS, PlannerConfig
from skippipe.errors import DeadlockError
from skippipe.planning import make_plan


def measure_simulator(cases: Cases, seconds: float) -> list[dict[str, Any]]:
    """Evaluations per second of one plan per instance, in both modes, on one thread."""
    planner = PlannerConfig(time_limit_s=0.2)
    plans = {name: make_plan(case.job, "skippipe", planner) for name, case in cases.items()}
    return [
        {
            "instance": name,
            "microbatches": len(plan.microbatches),
            "nodes": len(plan.cluster),
            "order": order,
            "evaluations_per_s": rate,
        }
        for name, plan in plans.items()
        for order in ORDERS
        if (rate := _rate(plan, order, seconds)) is not None
    ]


def _rate(plan: Plan, order: str, seconds: float) -> float | None:
    """Evaluations per second; None if the dispatch rule deadlocks on these routes."""
    try:
        return _scheduler.benchmark_simulator(plan, order=order, seconds=seconds)
    except DeadlockError:
        return None
