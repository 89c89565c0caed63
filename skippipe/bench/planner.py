"""Benchmark of the planner: quality, speed and agreement with independent results."""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skippipe._scheduler import Plan, is_random
from skippipe.bench.cases import RULES, BestKnown, Case
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, ImpossibleError, NoPlanError
from skippipe.planning import evaluate_strategy, make_plan, on_allocation_of
from skippipe.scheduler import SearchProgress

TOLERANCE = 1e-9
"""Relative tolerance of seconds that are equal in nanoseconds."""


@dataclass(frozen=True)
class PlannerRow:
    """One row of the table; times in seconds, None if not applicable."""

    instance: str
    strategy: str
    iteration_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    proved: bool = False
    """optimality, or infeasibility if there is no iteration"""
    of_best_known: float | None = None
    """iteration relative to the best known one"""
    first_s: float | None = None
    """time to the first plan"""
    best_s: float | None = None
    """time to the best plan"""
    wall_s: float = 0.0
    """total wall time"""
    cpu_s: float = 0.0
    """CPU time of all threads"""
    of_proof: float | None = None
    """CPU time relative to the known proof's, if this is a proof too"""
    work: int | None = None
    tree_nodes: float | None = None
    note: str = ""


def with_shared_allocation(case: Case, planner: PlannerConfig, progress: SearchProgress | None = None) -> Case:
    """Fix the allocation: the instance's own, else the one found for skippipe.

    Raises:
        NoPlanError: no plan of skippipe was found on any allocation.

    """
    if case.scope is None:
        return case
    plan = make_plan(case.job, "skippipe", planner, progress)
    return dataclasses.replace(case, problem=on_allocation_of(plan, case.schedule), scope=None)


def measure_planner(
    case: Case, strategy: str, planner: PlannerConfig, progress: SearchProgress | None = None
) -> tuple[PlannerRow, Plan | None]:
    """Plan one instance with one strategy, searching for the allocation if the instance has none.

    For random-skip the median of 20 seeds, without a plan.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    plan, proved, note = None, False, ""
    iteration_s = None
    try:
        if is_random(strategy):
            reached = evaluate_strategy(case.job, strategy, planner, progress)
            iteration_s, note = reached.iteration_s, reached.note
        else:
            plan = make_plan(case.job, strategy, planner, progress)
    except ImpossibleError as error:
        proved, note = True, f"impossible: {error}"
    except (NoPlanError, DeadlockError) as error:
        note = f"none found: {error}"
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    known = case.known if strategy == "skippipe" else None
    if plan is None:
        row = PlannerRow(case.name, strategy, iteration_s, proved=proved, wall_s=wall_s, cpu_s=cpu_s, note=note)
    else:
        row = _row(case.name, plan, wall_s, cpu_s, known)
    return _beside_proof(row, known), plan


def _row(name: str, plan: Plan, wall_s: float, cpu_s: float, known: BestKnown | None) -> PlannerRow:
    predicted, report = plan.predicted, plan.solver
    plans = [(event.upper_s, event.elapsed_s) for event in report.events if event.upper_s is not None]
    return PlannerRow(
        name,
        plan.strategy,
        predicted.iteration_s,
        predicted.lower_bound_s,
        predicted.gap,
        proved=report.optimal,
        of_best_known=predicted.iteration_s / known.iteration_s if known and known.iteration_s else None,
        first_s=plans[0][1] if plans else None,
        best_s=min(plans)[1] if plans else None,
        wall_s=wall_s,
        cpu_s=cpu_s,
        work=report.work,
        tree_nodes=report.statistics.get("tree_nodes"),
    )


def _beside_proof(row: PlannerRow, known: BestKnown | None) -> PlannerRow:
    if not row.proved or known is None or not known.cpu_s:
        return row
    return PlannerRow(**{**vars(row), "of_proof": row.cpu_s / known.cpu_s})


def contradictions(row: PlannerRow, known: BestKnown | None) -> list[str]:
    """Contradictions between a row and the best known result: each one is a bug on either side."""
    if known is None or row.strategy != "skippipe":
        return []
    found = []
    best_s = known.iteration_s
    if best_s is None:
        if row.iteration_s is not None:
            found.append(f"a plan of {row.iteration_s} s, known to be infeasible")
        return found
    if row.proved and row.iteration_s is None:
        found.append(f"infeasible, but {best_s} s is known")
    if row.lower_bound_s is not None and row.lower_bound_s > best_s * (1 + TOLERANCE):
        found.append(f"lower bound {row.lower_bound_s} s above the known {best_s} s")
    if row.iteration_s is not None and known.proved and row.iteration_s < best_s * (1 - TOLERANCE):
        found.append(f"iteration {row.iteration_s} s below the proved {best_s} s")
    return found


def violations(plan: Plan, case: Case, checker: Path | None) -> list[str]:
    """Rules that a plan violates, by the scheduler's own checker and by an independent script.

    Args:
        plan: the plan; it is checked against the case only if its strategy follows the case's rules.
        case: the problem that it solves.
        checker: called with the plan's file and the problem (--cluster FILE --stages FILE --rules JSON
            --skip-ratio K --microbatches N --best-known SECONDS); exit status 0 means valid. None: no script.

    """
    broken = plan.check()
    if checker is None:
        return broken
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(plan.to_json())
        file.flush()
        options = _checker_options(case) if plan.strategy == "skippipe" else []
        command = [sys.executable, str(checker), file.name, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's own script
    return broken if done.returncode == 0 else [*broken, *(done.stdout + done.stderr).strip().splitlines()]


def _checker_options(case: Case) -> list[str]:
    """The problem, as options of the checker."""
    rules: dict[str, Any] = {key: getattr(case.schedule, key) for key in RULES}
    options = ["--rules", json.dumps(rules), "--skip-ratio", repr(case.schedule.skip_ratio)]
    if case.files is not None:
        options += ["--cluster", str(case.files[0]), "--stages", str(case.files[1])]
    if len(set(case.problem.microbatches)) == 1:
        options += ["--microbatches", str(case.problem.microbatches[0])]
    if case.known is not None and case.known.iteration_s is not None:
        options += ["--best-known", repr(case.known.iteration_s)]
    return options
