"""`skippipe bench figure3`."""

import dataclasses
import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path

from skippipe.bench.figure3.chart import draw_bars, draw_ratios
from skippipe.bench.figure3.config import BenchFigure3Job
from skippipe.bench.figure3.figure import parts_of, plan_all
from skippipe.bench.figure3.measured import measure_own
from skippipe.bench.figure3.rows import Row, csv_text, rows_of
from skippipe.bench.figure3.search import OWN, PlanStore
from skippipe.bench.figure3.tables import FigureTable, tables
from skippipe.bench.machine import environment
from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay
from skippipe.context import Context
from skippipe.errors import unexpected, unwritable
from skippipe.files import locked, write_text
from skippipe.packages import check_installed

WIDTH = 220
"""Characters in a line of a table that goes to a file."""
PLANS, MEASURED = "plans", "measured"
"""Folders of what is kept, so that nothing runs twice."""


def bench_figure3(job: BenchFigure3Job, context: Context) -> float:
    """Plan, execute, write and print; returns the sum of the iteration times of skippipe, in seconds.

    Raises:
        SchedulerError: a plan breaks a rule.

    """
    parts = parts_of(job)
    checker = None if job.checker is None else Path(job.checker)
    if checker is not None and not checker.is_file():
        raise unexpected("checker", str(checker), "the file of a Python script")
    if job.measure.iterations:
        check_installed("measure.iterations", ["torch"])
    folder = context.folder / job.output
    try:
        for name in (PLANS, MEASURED):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "output") from None
    with locked(folder, unwritable(folder, "another process writes to it", "output")):
        with ProgressDisplay(Console(stderr=True)) as progress:
            cells = plan_all(job, parts, PlanStore(folder / PLANS, checker), progress)
            groups = [rows_of(each) for each in cells]
            if job.measure.iterations:
                groups[0] = measure_own(cells[0], groups[0], job.measure, folder / MEASURED, progress)
        found = tables(*groups)
        written = _write(job, folder, groups, found)
    _show(found, [context.shown(path) for path in written])
    times = [row.iteration_s for row in groups[0] if row.strategy == "skippipe" and row.allocation == OWN]
    return math.inf if None in times else math.fsum(time for time in times if time is not None)


def _write(
    job: BenchFigure3Job, folder: Path, groups: Sequence[Sequence[Row]], found: Sequence[FigureTable]
) -> list[Path]:
    """Write rows, tables and, where matplotlib is installed, charts; returns the files."""
    rows, straight, ratios = groups
    content = {
        "format": "skippipe.bench/1",
        "bench": "figure3",
        **environment(),
        "settings": dataclasses.asdict(job),
        **{
            name: [dataclasses.asdict(row) for row in each]
            for name, each in (("rows", rows), ("straight", straight), ("ratios", ratios))
        },
    }
    files = {
        "rows.json": json.dumps(content, indent=1, allow_nan=False) + "\n",
        "rows.csv": csv_text([*rows, *straight, *ratios]),
    }
    charts: dict[str, str] = {}
    if importlib.util.find_spec("matplotlib") is not None:
        for all_reduce in dict.fromkeys(row.all_reduce for row in rows):
            name = "figure3_all_reduce.svg" if all_reduce else "figure3.svg"
            charts[name] = draw_bars([row for row in rows if row.all_reduce == all_reduce])
        if ratios:
            charts["figure3_ratios.svg"] = draw_ratios(ratios)
    pictures = [f"![{name.removesuffix('.svg').replace('_', ' ')}]({name})" for name in charts]
    page = "\n\n".join(["# Figure 3", _made_by(job), *pictures, *(table.markdown() for table in found)]) + "\n"
    files |= charts | {"figure3.md": page}
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def _made_by(job: BenchFigure3Job) -> str:
    """How the page was made, in a paragraph."""
    machine = environment()
    searches = "one search" if job.searches == 1 else f"{job.searches} searches"
    return (
        f"Made by `skippipe bench figure3`, version {machine['versions']['skippipe']}, {machine['date'][:10]}; "
        f"{searches} of {job.work_limit:,} units of work for each strategy, seed {job.seed}. "
        "Settings and sources: docs/figure3.md."
    )


def _show(found: Sequence[FigureTable], written: Sequence[str]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    for table in found:
        console.print(table.console())
        console.write_line()
    console.write_line(f"written: {', '.join(written)}")
