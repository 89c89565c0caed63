"""`skippipe train` from its settings to a finished run: alone, under torchrun, or only checked."""

import contextlib
import dataclasses
import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path

from omegaconf import OmegaConf

from skippipe.application import Context
from skippipe.data.text import text_files
from skippipe.errors import InputError, SchedulerError
from skippipe.files import write_text
from skippipe.report.terminal import make_console
from skippipe.train.config import TrainJob
from skippipe.train.display import Display
from skippipe.train.layout import layout_of
from skippipe.train.place import deal, torchrun_place, under_torchrun
from skippipe.train.plans import check_model, stated_note
from skippipe.train.supervisor import train_locally


def launch(job: TrainJob, context: Context) -> float:
    """Train as the settings and the environment ask for; returns the validation loss at the end.

    Raises:
        InputError: settings, files or an environment that cannot be used.
        SchedulerError: training failed; the message names the node.

    """
    if job.dry_run:
        from skippipe.train.dry_run import dry_run  # noqa: PLC0415 - imports torch, which the supervisor does without

        dry_run(job, make_console())
        return 0.0
    _check_files(job)
    return _one_rank(job, context) if under_torchrun() else _alone(job, context)


def _alone(job: TrainJob, context: Context) -> float:
    """Train with processes of our own on this machine."""
    layout = layout_of(job)
    if layout.plan is not None:
        check_model(layout.plan, stated_note(job), layout.origin)
    served = deal(layout.cluster.names, job.runtime.processes)
    with run_folder(job, context) as folder, Display(make_console(), context.shown(folder)) as display:
        train_locally(job, served, folder, display)
        return display.final_loss


def _one_rank(job: TrainJob, context: Context) -> float:
    """Be one rank of a job that torchrun has started; rank 0 shows and writes."""
    from skippipe.train.rank import train_rank  # noqa: PLC0415 - imports torch, which the supervisor does without

    place = torchrun_place(job.runtime.node)
    title = f"node {', '.join(place.names)} (rank {place.rank})"
    try:
        if place.rank:
            train_rank(job, place, Path(), lambda _: None)
            return 0.0
        with run_folder(job, context) as folder, Display(make_console(), context.shown(folder)) as display:
            train_rank(job, place, folder, display)
            return display.final_loss
    except SchedulerError as error:
        raise type(error)(f"{title}: {error}") from error


def _check_files(job: TrainJob) -> None:
    """Find at once, before any process starts, that a file of the text is missing."""
    for key, patterns in (("data.training", job.data.training), ("data.validation", job.data.validation)):
        if patterns is not None:
            text_files(key, patterns)
    if job.data.tokenizer is not None and not Path(job.data.tokenizer).is_file():
        raise InputError(f"data.tokenizer is {job.data.tokenizer}: there is no such file")


@contextlib.contextmanager
def run_folder(job: TrainJob, context: Context) -> Iterator[Path]:
    """Make the folder of a run with the settings in it; a run that fails before it has told anything leaves none."""
    name = job.folder or f"runs/{dt.datetime.now():%Y-%m-%d_%H-%M-%S}"  # noqa: DTZ005 - for people: local time
    folder = context.folder / name
    made = next((p for p in [*reversed(folder.parents), folder] if not p.exists()), None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"folder={name} is not empty, a new one is expected")
        write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(job))))
    except OSError as error:
        raise InputError(f"folder={name} cannot be written: {error.strerror or error}") from None
    try:
        yield folder
    except BaseException:
        metrics = folder / "metrics.jsonl"
        if not metrics.exists() or not metrics.stat().st_size:
            _forget(folder, made)
        raise


def _forget(folder: Path, made: Path | None) -> None:
    """Remove what a run has written, and the folders that were made for it."""
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
