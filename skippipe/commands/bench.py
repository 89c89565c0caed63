"""`skippipe bench simulator` and `skippipe bench planner`."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skippipe.application import Context
from skippipe.benchmark import (
    Instances,
    environment,
    load_instances,
    measure_planner,
    measure_simulator,
    preset_instances,
)
from skippipe.config import BenchPlannerJob, BenchSimulatorJob
from skippipe.errors import InputError
from skippipe.files import check_writable, write_text
from skippipe.report.terminal import make_console, plain_table


def bench_simulator(job: BenchSimulatorJob, context: Context) -> float:
    """Measure the simulator; returns its slowest figure, evaluations per second."""
    output = _checked(context, job.output)
    rows = measure_simulator(_instances(job), job.seconds)
    _report("simulator", rows, output)
    return min(float(row["evaluations_per_s"]) for row in rows)


def bench_planner(job: BenchPlannerJob, context: Context) -> float:
    """Measure the planner; returns the sum of the iteration times, in seconds (infinite where one has no plan)."""
    output = _checked(context, job.output)
    if not job.strategies:
        raise InputError("strategies is [], at least one strategy is expected")
    rows = list(measure_planner(_instances(job), job.strategies, job.planner))
    _report("planner", rows, output)
    times = [row["iteration_s"] for row in rows]
    return math.inf if None in times else math.fsum(times)


def _instances(job: BenchSimulatorJob | BenchPlannerJob) -> Instances:
    loaded = {} if job.folder is None else load_instances(Path(job.folder))
    instances = preset_instances(job.instances) | loaded
    if not instances:
        raise InputError("instances is empty, at least one preset or data=FOLDER is expected")
    return instances


def _checked(context: Context, name: str | None) -> Path | None:
    output = context.output(name)
    if output is not None:
        check_writable(output)
    return output


def _report(what: str, rows: Sequence[dict[str, Any]], output: Path | None) -> None:
    """Print the rows as a table, and write them with date, machine and versions."""
    table = plain_table()
    for key, value in rows[0].items():
        table.add_column(
            key.removesuffix("_s").replace("_", " "), justify="left" if isinstance(value, str) else "right"
        )
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    make_console().print(table)
    if output is not None:
        content = {"format": "skippipe.bench/1", "bench": what, **environment(), "rows": list(rows)}
        write_text(output, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
        case _:
            return str(value)
