"""`skippipe study`."""

import math
import signal
from collections.abc import Sequence

from skippipe.checkpoint.key import load_key
from skippipe.commands.study_times import predict_times
from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay
from skippipe.context import Context
from skippipe.devices import find_devices
from skippipe.errors import SIGNALLED, SUCCESS
from skippipe.study.arms import Arm, compose_arms
from skippipe.study.config import StudyJob
from skippipe.study.display import console_table
from skippipe.study.markdown import millions
from skippipe.study.records import ArmRecord
from skippipe.study.study import Study
from skippipe.study.time_to_loss import Times
from skippipe.train.signals import StopRequest, outlasting_terminal


def study(job: StudyJob, context: Context) -> float:
    """Run unfinished arms and write all records; returns the remaining tokens, in millions."""
    console = Console()
    progress = ProgressDisplay(console, line_every_s=math.inf)  # the study prints a line for each event
    print_line = outlasting_terminal(progress.write_line)
    arms = compose_arms(job.arms, job.prepared, job.overrides, lambda overrides: context.compose("train", overrides))
    # Wrong settings of evaluations and checkpoints are reported now, not after the first arm.
    context.compose("evaluate", [*job.evaluation, "output=evaluation"])
    if job.times:
        context.compose("plan", job.times)
    if job.key is not None:
        load_key(job.key)
    with StopRequest() as request:
        current = Study(job, arms, context.folder, context.config_folders, print_line)
        left = sum(entry.tokens_left for entry in current.entries)
        if job.dry_run:
            for device, step in current.plan(find_devices(job.devices)):
                print_line(f"{device or 'then'}: {step.kind} {step.arm.key.title}")
        elif job.minutes != 0:
            devices = find_devices(job.devices)
            with progress:
                progress.begin("study")
                current.run(devices, lambda: request.signal is not None, lambda: _show(progress, current.entries))
        if not job.dry_run:
            written = current.write(_times(job, arms, context))
            print_line(f"written: {', '.join(context.shown(path) for path in written)}")
    console.print(console_table(current.entries))
    if request.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if request.signal is not None:
        trained = sum(entry.tokens_left for entry in current.entries) < left
        raise SystemExit(SUCCESS if trained else SIGNALLED + request.signal)
    return sum(entry.tokens_left for entry in current.entries) / 1e6


def _times(job: StudyJob, arms: Sequence[Arm], context: Context) -> Times | None:
    """Predicted times of the arms on the cluster asked for; None: none are."""
    if not job.times:
        return None
    return Times(" ".join(job.times), predict_times(arms, job.baseline, context.compose("plan", job.times)))


def _show(progress: ProgressDisplay, entries: Sequence[ArmRecord]) -> None:
    total, left = sum(entry.tokens for entry in entries), sum(entry.tokens_left for entry in entries)
    done = total - left
    progress.update(done, f"{millions(done)} of {millions(total)} million tokens trained", total=total)
