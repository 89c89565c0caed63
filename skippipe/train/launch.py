"""`skippipe train` from its settings to a finished run: alone, under torchrun, or only checked.

A run that has been asked to stop, by Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, ends after its iteration with a checkpoint: by
`KeyboardInterrupt` after Ctrl-C, by `SystemExit` without an error after the others. One that has not trained yet ends
at once, by `KeyboardInterrupt` or by `SystemExit` with the status that a shell gives to the signal.
"""

import contextlib
import datetime as dt
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from skippipe.checkpoint.key import load_key
from skippipe.commands.command import Context
from skippipe.console.output import Console
from skippipe.console.streams import report_error
from skippipe.data.prepare import check_input
from skippipe.errors import SIGNALLED, SUCCESS, InputError, SchedulerError
from skippipe.files import check_utf8, locked, remove_leftovers, write_text
from skippipe.ranks import node_title
from skippipe.train.config import TrainJob
from skippipe.train.display import Display
from skippipe.train.folder import check_checkpoints, check_folder
from skippipe.train.layout import layout_of, node_names_of
from skippipe.train.place import check_alone, check_node, deal, torchrun_place, under_torchrun
from skippipe.train.plans import check_model, check_phases, stated_note
from skippipe.train.record import METRICS, SETTINGS, recorded_end, settings_yaml
from skippipe.train.stopping import end_torchrun, heeded_signals, outlasting_terminal
from skippipe.train.supervisor import train_locally
from skippipe.train.tokenizer import data_settings


def launch(job: TrainJob, context: Context) -> float:
    """Train as the settings and the environment ask for; returns the validation loss at the end.

    Raises:
        InputError: settings, files or an environment that cannot be used.
        SchedulerError: training failed; the message names the node.

    """
    if job.checkpoint.key is not None:
        load_key(job.checkpoint.key)
    if job.dry_run:
        from skippipe.train.dry_run import dry_run  # noqa: PLC0415 - imports torch, which the supervisor does without

        dry_run(job, Console())
        return 0.0
    check_input(data_settings(job))
    with _ending_in_order():
        return _one_rank(job, context) if under_torchrun() else _alone(job, context)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Within: a signal ends what is going on as Ctrl-C does, so that nothing is left behind; that is no success."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(SIGNALLED + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in heeded_signals()}
    for number in before:
        if number != signal.SIGINT:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # as where it was not set in Python
                signal.signal(number, handler)


def _alone(job: TrainJob, context: Context) -> float:
    """Train with processes of our own on this machine."""
    if job.runtime.node is not None:
        raise InputError(
            f"runtime.node: expected null where no torchrun has set RANK and WORLD_SIZE, got {job.runtime.node}"
        )
    layout = layout_of(job)
    if layout.plan is not None:
        check_model(layout.plan, stated_note(job), layout.origin)
    check_phases(job, layout.cluster, layout.allocation)
    served = deal(layout.used, job.runtime.processes)
    check_alone(job.runtime, len(served))
    with (
        run_folder(job, context) as folder,
        Display(Console(), context.shown(folder)) as display,
        recorded_end(folder, outlasting_terminal(display)) as ending,
    ):
        checked = check_checkpoints(folder, context.shown(folder), job.checkpoint)
        ending.asked = asked = train_locally(job, served, folder, ending.report, checked)
        if asked is None:
            return display.final_loss
    raise _left(asked)


def _one_rank(job: TrainJob, context: Context) -> float:
    """Be one rank of a job that torchrun has started; rank 0 shows and writes."""
    # What torch would write there is the path of a failed call through its sources; the message comes with the error.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # These import torch, which the supervisor does without.
    from skippipe.train.rank import train_rank  # noqa: PLC0415
    from skippipe.train.rendezvous import StoppedElsewhereError  # noqa: PLC0415

    check_node(job.runtime.node, node_names_of(job))
    place = torchrun_place(job.runtime.node)
    check_alone(job.runtime, place.world)
    try:
        if place.rank:
            asked, loss = train_rank(job, place, Path(), lambda _: None), 0.0
        else:
            with (
                run_folder(job, context) as folder,
                Display(Console(), context.shown(folder)) as display,
                recorded_end(folder, outlasting_terminal(display)) as ending,
            ):
                ending.asked = asked = train_rank(job, place, folder, ending.report)
                loss = 0.0 if asked else display.final_loss
    except StoppedElsewhereError as error:
        report_error("train", error, f"{node_title(place.names, place.rank)}:")
        end_torchrun()
        raise SystemExit(SIGNALLED + signal.SIGTERM) from None
    except SchedulerError as error:
        raise type(error)(f"{node_title(place.names, place.rank)}: {error}") from error
    if asked is not None:
        end_torchrun()
        raise _left(asked)
    return loss


def _left(asked: signal.Signals) -> BaseException:
    """What a run ends with that was asked to stop and has done so in order."""
    return KeyboardInterrupt() if asked == signal.SIGINT else SystemExit(SUCCESS)


@contextlib.contextmanager
def run_folder(job: TrainJob, context: Context) -> Iterator[Path]:
    """Make the folder of a run, or take up one in which a run lies; for one process at a time.

    A run that fails before it has told anything leaves nothing of itself.
    """
    name = job.folder or f"runs/{dt.datetime.now():%Y-%m-%d_%H-%M-%S}"  # noqa: DTZ005 - for people: local time
    folder = context.folder / name
    check_utf8(folder, "folder")
    made = next((p for p in [*reversed(folder.parents), folder] if not p.exists()), None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder={name} cannot be written: {error.strerror or error}") from None
    with locked(folder, f"folder={name} is in use: another process trains there"):
        taken_up = _take_up(folder, name, job)
        try:
            yield folder
        except BaseException:
            metrics = folder / METRICS
            if not taken_up and not (metrics.exists() and metrics.stat().st_size):
                _forget(folder, made)
            raise


def _take_up(folder: Path, name: str, job: TrainJob) -> bool:
    """Write the settings into a new folder; whether a run was there already."""
    settings = folder / SETTINGS
    try:
        check_folder(folder, name, job.checkpoint)
        taken_up = settings.exists()
        if not taken_up:
            remove_leftovers(folder, SETTINGS)
        if not taken_up and any(folder.iterdir()):
            raise InputError(f"folder={name} is not empty and holds no run, a new folder or that of a run is expected")
        if not taken_up or not os.access(folder, os.W_OK):
            write_text(settings, settings_yaml(job), follow=False)
    except OSError as error:
        raise InputError(f"folder={name} cannot be written: {error.strerror or error}") from None
    return taken_up


def _forget(folder: Path, made: Path | None) -> None:
    """Remove what a run has written, and the folders that were made for it as far as nobody else uses them by now."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for path in [folder, *folder.parents] if made is not None else []:
        with contextlib.suppress(OSError):
            path.rmdir()
        if path == made:
            break
