"""Execution of plans on emulated links; each is kept in a file, so that none runs twice."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from skippipe._scheduler import Plan
from skippipe.bench.figure3.config import MeasureConfig
from skippipe.bench.figure3.rows import Measured, Row, with_measured
from skippipe.bench.figure3.search import OWN, Cell
from skippipe.console.progress import ProgressDisplay
from skippipe.files import read_json_object, write_text

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def measure_own(
    cells: Sequence[Cell], rows: Sequence[Row], config: MeasureConfig, folder: Path, progress: ProgressDisplay
) -> list[Row]:
    """The rows, those of strategies with their own allocation as measured.

    Args:
        cells: of which `rows` are, in the same order.
        rows: as planned.
        config: iterations, and seconds that one is to take.
        folder: where results are kept.
        progress: shows which plan runs.

    """
    plans = {i: cell.plan for i, cell in enumerate(cells) if cell.allocation == OWN and cell.plan is not None}
    found = {i: kept for i, plan in plans.items() if (kept := _kept(_path(folder, plan, config))) is not None}
    missing = {i: plan for i, plan in plans.items() if i not in found}
    progress.begin("executing", len(missing))
    with _workers([len(plan.cluster) - len(plan.absent_nodes) for plan in missing.values()]) as pipes:
        for number, (i, plan) in enumerate(missing.items()):
            title = f"{cells[i].setting.title}: {cells[i].strategy}"
            progress.update(number, f"{number} of {len(missing)}: {title}")
            found[i] = _execute(pipes, plan, config)
            write_text(_path(folder, plan, config), json.dumps(vars(found[i])) + "\n")
    return [with_measured(row, found[i]) if i in found else row for i, row in enumerate(rows)]


@contextlib.contextmanager
def _workers(worlds: Sequence[int]) -> "Iterator[list[Connection]]":
    """Enough workers for each of these numbers of ranks; none where nothing is to run."""
    if not worlds:
        yield []
        return
    from skippipe.bench.emulation import workers  # noqa: PLC0415 - it imports torch

    with workers(max(worlds)) as pipes:
        yield pipes


def _execute(pipes: "Sequence[Connection]", plan: Plan, config: MeasureConfig) -> Measured:
    from skippipe.bench.emulation import latest, norm_s, rank_jobs, run  # noqa: PLC0415 - it imports torch

    predicted_s = plan.predicted.iteration_s + norm_s(plan.cluster, len(plan.stages), plan.absent_nodes)
    time_scale = config.iteration_s / predicted_s
    jobs = rank_jobs(plan, time_scale)
    times = run(pipes[: len(jobs)], jobs, 1 + config.iterations)[1:]  # the first one is for warm-up
    return Measured(predicted_s, tuple(latest(each, "iteration_s") / time_scale for each in times), time_scale)


def _path(folder: Path, plan: Plan, config: MeasureConfig) -> Path:
    text = f"{plan.without_report().to_json()} {config.iterations} {config.iteration_s}"
    return folder / f"{sha256(text.encode()).hexdigest()[:24]}.json"


def _kept(path: Path) -> Measured | None:
    if not path.is_file():
        return None
    content = read_json_object(str(path))
    return Measured(content["predicted_s"], tuple(content["iterations_s"]), content["time_scale"])
