"""`skippipe study`."""

import math
import signal
from collections.abc import Sequence

from skippipe.checkpoint.key import load_key
from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay
from skippipe.context import Context
from skippipe.devices import find_devices
from skippipe.errors import SIGNALLED, SUCCESS
from skippipe.study.arms import compose_arms
from skippipe.study.config import StudyJob
from skippipe.study.display import console_table
from skippipe.study.markdown import millions
from skippipe.study.records import ArmRecord
from skippipe.study.study import Study
from skippipe.train.signals import StopRequest, outlasting_terminal


def study(job: StudyJob, context: Context) -> float:
    """Run open arms and write what is known of all; returns the tokens that are left, in millions."""
    console = Console()
    progress = ProgressDisplay(console, line_every_s=math.inf)  # the study says what happens
    say = outlasting_terminal(progress.write_line)
    arms = compose_arms(job.arms, job.prepared, job.overrides, lambda overrides: context.compose("train", overrides))
    # What evaluations and checkpoints ask for is to be known now, not after the first arm's end.
    context.compose("evaluate", [*job.evaluation, "output=evaluation"])
    if job.key is not None:
        load_key(job.key)
    with StopRequest() as request:
        at_work = Study(job, arms, context.folder, context.config_folders, say)
        left = sum(entry.tokens_left for entry in at_work.entries)
        if job.dry_run:
            for device, step in at_work.plan(find_devices(job.devices)):
                say(f"{device or 'then'}: {step.kind} {step.arm.key.title}")
        elif job.minutes != 0:
            devices = find_devices(job.devices)
            with progress:
                progress.begin("study")
                at_work.run(devices, lambda: request.signal is not None, lambda: _show(progress, at_work.entries))
        if not job.dry_run:
            written = at_work.write()
            say(f"written: {', '.join(context.shown(path) for path in written)}")
    console.print(console_table(at_work.entries))
    if request.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if request.signal is not None:
        trained = sum(entry.tokens_left for entry in at_work.entries) < left
        raise SystemExit(SUCCESS if trained else SIGNALLED + request.signal)
    return sum(entry.tokens_left for entry in at_work.entries) / 1e6


def _show(progress: ProgressDisplay, entries: Sequence[ArmRecord]) -> None:
    total, left = sum(entry.tokens for entry in entries), sum(entry.tokens_left for entry in entries)
    done = total - left
    progress.update(done, f"{millions(done)} of {millions(total)} million tokens trained", total=total)
