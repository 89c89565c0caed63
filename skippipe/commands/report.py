"""`skippipe report`."""

import dataclasses
import json
import os.path
from collections.abc import Sequence
from pathlib import Path

from skippipe.config import ReportJob
from skippipe.console.output import Console
from skippipe.context import Context
from skippipe.errors import DeadlockError, from_origin, unexpected
from skippipe.files import check_writable, write_bytes
from skippipe.packages import check_installed
from skippipe.plan_file import load_plan
from skippipe.report.analysis import PlanAnalysis, analyse_plan, replan
from skippipe.report.document import document
from skippipe.report.format import seconds
from skippipe.report.map.picture import draw_map
from skippipe.report.page import make_page
from skippipe.report.plots import draw_curves, draw_gantt
from skippipe.report.terminal import show_report


def report(job: ReportJob, context: Context) -> float:
    """Explain a plan, print and write what there is to say; returns the iteration time in seconds."""
    outputs = _outputs(job, context)
    if any(name is not None for name in (job.picture, job.curve, job.map)):
        check_installed("drawing pictures", ["matplotlib"])
    paths = [path for path in (job.plan, job.compare) if path is not None]
    plans = [_analysis(path, name, job) for path, name in zip(paths, short_names(paths), strict=True)]
    written = _write(job, outputs, plans)
    console = Console()
    iteration_s = plans[0].plan.predicted.iteration_s
    if context.label is not None:
        console.write_line(f"{context.label} iteration {seconds(iteration_s)}")
        return iteration_s
    show_report(console, plans, job.top)
    console.write_line()
    for path in written:
        console.write_line(f"written: {context.shown(path)}")
    if job.curve is not None and outputs["curve"] not in written:
        console.write_line("no curve: the plan has no search history")
    return iteration_s


def _outputs(job: ReportJob, context: Context) -> dict[str, Path]:
    """Files to be written by the setting that names them, each checked to be writable."""
    asked = {key: context.output(getattr(job, key)) for key in ("output", "picture", "curve", "map", "json")}
    outputs = {key: path for key, path in asked.items() if path is not None}
    for key, path in outputs.items():
        check_writable(path, key)
        first = next(other for other, taken in outputs.items() if taken == path)
        if first != key:
            raise unexpected(key, f"{path} as for {first}", "a file of its own")
    return outputs


def short_names(paths: Sequence[str]) -> list[str]:
    """Paths without the folders that all of them share, such as those of one sweep."""
    folders = [Path(path).parent for path in paths]
    if len(paths) < 2 or len({folder.is_absolute() for folder in folders}) > 1:
        return list(paths)
    shared = os.path.commonpath(folders)
    return [os.path.relpath(path, shared) if shared else path for path in paths]


def _analysis(path: str, name: str, job: ReportJob) -> PlanAnalysis:
    try:
        analysis = analyse_plan(load_plan(path), name)
    except DeadlockError as error:
        raise from_origin(error, path) from None
    return dataclasses.replace(analysis, replanned=replan(analysis)) if job.replan else analysis


def _write(job: ReportJob, outputs: dict[str, Path], plans: list[PlanAnalysis]) -> list[Path]:
    """Write what is asked for; gives the files that there are now."""
    contents: dict[str, bytes | None] = {}
    if "output" in outputs:
        contents["output"] = make_page(plans, job.top).encode()
    if "picture" in outputs:
        contents["picture"] = draw_gantt(plans)
    if "curve" in outputs:
        contents["curve"] = draw_curves(plans)
    if "map" in outputs:
        contents["map"] = draw_map(plans[0].plan)
    if "json" in outputs:
        contents["json"] = (json.dumps(document(plans), indent=1) + "\n").encode()
    written = {key: content for key, content in contents.items() if content is not None}
    for key, content in written.items():
        write_bytes(outputs[key], content)
    return [outputs[key] for key in written]
