"""`skippipe bench simulator`, `skippipe bench planner` and `skippipe bench allocator`."""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from skippipe.bench import (
    Case,
    Cases,
    PlannerRow,
    allocation_cases_of,
    contradictions,
    environment,
    load_cases,
    measure_allocator,
    measure_planner,
    measure_simulator,
    preset_allocation_cases,
    preset_cases,
    small_folder,
    violations,
    with_shared_allocation,
)
from skippipe.config import BenchAllocatorJob, BenchPlannerJob, BenchSimulatorJob, PlannerConfig
from skippipe.console.output import Console, plain_table
from skippipe.console.progress import planning_progress
from skippipe.context import Context
from skippipe.errors import SchedulerError, unexpected
from skippipe.files import check_writable, write_text

Some = TypeVar("Some")
WIDTH = 180
"""Characters in a line of a table that goes to a file."""
FORMS = {
    "iteration_s": ".4f", "lower_bound_s": ".4f", "gap": ".1%", "of_best_known": ".4f",
    "score_s": ".4f", "greedy_s": ".4f", "random_s": ".4f",
    "first_s": ".3f", "best_s": ".3f", "wall_s": ".3f", "cpu_s": ".3f", "of_proof": ".3f",
}  # fmt: skip
"""How the figures are printed; the file has all their digits."""
COMPARED = {
    "own": "each strategy on its own best allocation, searched with the same effort, where the instance has none",
    "same": "all strategies on one allocation, which was searched for skippipe where the instance has none",
}
"""Which comparison the rows of several strategies are."""


def bench_simulator(job: BenchSimulatorJob, context: Context) -> float:
    """Measure the simulator; returns its slowest figure, evaluations per second."""
    output = _checked(context, job.output)
    cases = _some(preset_cases(job.instances) | _folder(job.folder))
    rows = measure_simulator(cases, job.seconds)
    _report("simulator", rows, output)
    return min(float(row["evaluations_per_s"]) for row in rows)


def bench_planner(job: BenchPlannerJob, context: Context) -> float:
    """Measure the planner; returns the sum of the iteration times, in seconds (infinite where one has no plan).

    Raises:
        SchedulerError: a plan breaks a rule, or contradicts what is known; the figures are written all the same.

    """
    output = _checked(context, job.output)
    if not job.strategies:
        raise unexpected("strategies", [], "at least one strategy")
    checker = None if job.checker is None else Path(job.checker)
    if checker is not None and not checker.is_file():
        raise unexpected("checker", str(checker), "the file of a Python script")
    cases = _some(_cases(job) | _folder(job.folder))
    if job.compare_allocation == "same":
        cases = {name: _on_one_allocation(case, job.planner) for name, case in cases.items()}
    rows: list[PlannerRow] = []
    wrong: list[str] = []
    for number, (case, strategy) in enumerate((case, name) for case in cases.values() for name in job.strategies):
        title = f"{number + 1} of {len(cases) * len(job.strategies)}: {case.name}, {strategy}"
        with planning_progress(title) as progress:
            row, plan = measure_planner(case, strategy, job.planner, progress)
        broken = [] if plan is None else violations(plan, case, checker)
        wrong += [f"{case.name}, {strategy}: {text}" for text in (*broken, *contradictions(row, case.known))]
        rows.append(row)
    _report("planner", [dataclasses.asdict(row) for row in rows], output, compare_allocation=job.compare_allocation)
    if len(job.strategies) > 1:
        Console().write_line(f"Comparison: {COMPARED[job.compare_allocation]}.")
    _summarise(cases, rows)
    if wrong:
        raise SchedulerError("\n  ".join(["plans that cannot be right:", *wrong]))
    times = [row.iteration_s for row in rows]
    return math.inf if None in times else math.fsum(time for time in times if time is not None)


def _on_one_allocation(case: Case, planner: PlannerConfig) -> Case:
    with planning_progress(f"{case.name}, the allocation for all") as progress:
        return with_shared_allocation(case, planner, progress)


def bench_allocator(job: BenchAllocatorJob, context: Context) -> float:
    """Measure the allocator; returns the sum of the scores, in seconds."""
    output = _checked(context, job.output)
    cases = _some(preset_allocation_cases(job.instances) | allocation_cases_of(_folder(job.folder)))
    rows = []
    for number, (name, case) in enumerate(cases.items()):
        with planning_progress(f"{number + 1} of {len(cases)}: {name}") as progress:
            rows.append(measure_allocator(name, case, job, progress))
    _report("allocator", [dataclasses.asdict(row) for row in rows], output)
    return math.fsum(row.score_s for row in rows)


def _cases(job: BenchPlannerJob) -> Cases:
    if job.set == "presets":
        return preset_cases(job.instances)
    return load_cases("set", small_folder() if job.set == "small" else Path(job.set))


def _folder(folder: str | None) -> Cases:
    return {} if folder is None else load_cases("data", Path(folder))


def _some(instances: dict[str, Some]) -> dict[str, Some]:
    if not instances:
        raise unexpected("instances", "none", "at least one preset or data=FOLDER")
    return instances


def _checked(context: Context, name: str | None) -> Path | None:
    output = context.output(name)
    if output is not None:
        check_writable(output)
    return output


def _summarise(cases: Cases, rows: Sequence[PlannerRow]) -> None:
    """Print how many of the optima that are known were found and proved, and how fast."""
    known = {name: case.known for name, case in cases.items() if case.known is not None and case.known.proved}
    beside = [row for row in rows if row.strategy == "skippipe" and row.instance in known]
    if not beside:
        return
    found = sum(row.of_best_known is not None and row.of_best_known <= 1 + 1e-9 for row in beside)
    feasible = sum(known[row.instance].iteration_s is not None for row in beside)
    proved = sum(row.proved for row in beside)
    shares = [row.of_proof for row in beside if row.of_proof is not None]
    figures = f"{found} of {feasible} known optima found, {proved} of {len(beside)} proofs"
    if shares:
        median, most = statistics.median(shares), max(shares)
        figures += f" in {median:.2g} (median; at most {most:.2g}) of the known proofs' processor time"
    Console().write_line(figures)


def _report(what: str, rows: Sequence[Mapping[str, Any]], output: Path | None, **settings: str) -> None:
    """Print the rows as a table, notes below, and write them with date, machine and versions."""
    used = [key for key in rows[0] if key != "note" and any(row[key] is not None for row in rows)]
    table = plain_table(
        [key.removesuffix("_s").replace("_", " ") for key in used],
        ([_shown(key, row[key]) for key in used] for row in rows),
        left=[column for column, key in enumerate(used) if all(isinstance(row[key], str) for row in rows)],
        unbroken=range(len(used)),
        gap=3,
    )
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    console.print(table)
    for row in rows:
        if row.get("note"):
            console.write_line(f"{row['instance']}, {row['strategy']}: {row['note']}")
    if output is not None:
        content = {"format": "skippipe.bench/1", "bench": what, **environment(), **settings, "rows": list(rows)}
        write_text(output, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _shown(key: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            form = FORMS.get(key, ",.4g" if abs(value) < 10_000 else ",.0f")
            return format(value, form)
        case int():
            return f"{value:,}"
        case _:
            return str(value)
