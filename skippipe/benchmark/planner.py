"""What the planner reaches on an instance, how fast, and whether others agree."""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skippipe._scheduler import Plan
from skippipe.benchmark.cases import RULES, Case, Known
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, ImpossibleError, NoPlanError
from skippipe.planning import Progress, evaluate_strategy, make_plan, on_allocation_of

TOLERANCE = 1e-9
"""By so much, as a share, may seconds differ that are the same number of nanoseconds."""


@dataclass(frozen=True)
class Row:
    """One line of the table; times in seconds, None where there is none."""

    instance: str
    strategy: str
    iteration_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    proved: bool = False
    """optimal, or impossible where there is no iteration"""
    of_best_known: float | None = None
    """iteration as a share of the shortest one known"""
    first_s: float | None = None
    """to the first plan"""
    best_s: float | None = None
    """to the best plan"""
    wall_s: float = 0.0
    """in all"""
    cpu_s: float = 0.0
    """of the processor, all threads"""
    of_proof: float | None = None
    """processor time as a share of that of the proof that is known, where this is a proof too"""
    work: int | None = None
    tree_nodes: float | None = None
    note: str = ""


def on_one_allocation(case: Case, planner: PlannerConfig, progress: Progress | None = None) -> Case:
    """Keep the allocation that is found for skippipe; where the instance has one, that.

    Raises:
        NoPlanError: skippipe has no plan on any allocation that was tried.

    """
    if case.scope is None:
        return case
    plan = make_plan(case.job, "skippipe", planner, progress)
    return dataclasses.replace(case, problem=on_allocation_of(plan, case.schedule), scope=None)


def measure_planner(
    case: Case, strategy: str, planner: PlannerConfig, progress: Progress | None = None
) -> tuple[Row, Plan | None]:
    """Plan one instance with one strategy, and search for its allocation where the instance leaves that open.

    For random-skip the median of 20 seeds, which is nobody's plan.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    plan, proved, note = None, False, ""
    iteration_s = None
    try:
        if strategy == "random-skip":
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
        row = Row(case.name, strategy, iteration_s, proved=proved, wall_s=wall_s, cpu_s=cpu_s, note=note)
    else:
        row = _row(case.name, plan, wall_s, cpu_s, known)
    return _beside_proof(row, known), plan


def _row(name: str, plan: Plan, wall_s: float, cpu_s: float, known: Known | None) -> Row:
    predicted, report = plan.predicted, plan.solver
    plans = [(event.upper_s, event.elapsed_s) for event in report.events if event.upper_s is not None]
    return Row(
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


def _beside_proof(row: Row, known: Known | None) -> Row:
    if not row.proved or known is None or not known.cpu_s:
        return row
    return Row(**{**vars(row), "of_proof": row.cpu_s / known.cpu_s})


def contradictions(row: Row, known: Known | None) -> list[str]:
    """What cannot be true both of a row and of what is known: every one is an error of somebody's."""
    if known is None or row.strategy != "skippipe":
        return []
    said = []
    best_s = known.iteration_s
    if best_s is None:
        if row.iteration_s is not None:
            said.append(f"a plan of {row.iteration_s} s where none is known to be possible")
        return said
    if row.proved and row.iteration_s is None:
        said.append(f"impossible where {best_s} s is known")
    if row.lower_bound_s is not None and row.lower_bound_s > best_s * (1 + TOLERANCE):
        said.append(f"lower bound {row.lower_bound_s} s above the known {best_s} s")
    if row.iteration_s is not None and known.proved and row.iteration_s < best_s * (1 - TOLERANCE):
        said.append(f"iteration {row.iteration_s} s below the proved {best_s} s")
    return said


def judged(plan: Plan, case: Case, checker: Path | None) -> list[str]:
    """Every rule that a plan breaks, by the scheduler's own checker and by an independent script.

    Args:
        plan: what to judge; its strategy is one that keeps the case's own rules, else only the plan itself is judged.
        case: the question that it answers.
        checker: called with the plan's file and what was asked (--cluster FILE --stages FILE --rules JSON
            --skip-ratio K --microbatches N --best-known SECONDS); it ends with status 0 where all is well. None: none.

    """
    broken = plan.check()
    if checker is None:
        return broken
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(plan.to_json())
        file.flush()
        asked = _question(case) if plan.strategy == "skippipe" else []
        command = [sys.executable, str(checker), file.name, *asked]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's own script
    return broken if done.returncode == 0 else [*broken, *(done.stdout + done.stderr).strip().splitlines()]


def _question(case: Case) -> list[str]:
    """What was asked, as the options of the checker."""
    rules: dict[str, Any] = {key: getattr(case.schedule, key) for key in RULES}
    asked = ["--rules", json.dumps(rules), "--skip-ratio", repr(case.schedule.skip_ratio)]
    if case.files is not None:
        asked += ["--cluster", str(case.files[0]), "--stages", str(case.files[1])]
    if len(set(case.problem.microbatches)) == 1:
        asked += ["--microbatches", str(case.problem.microbatches[0])]
    if case.known is not None and case.known.iteration_s is not None:
        asked += ["--best-known", repr(case.known.iteration_s)]
    return asked
