"""`skippipe study`."""

import signal

from skippipe.application import Context, compose
from skippipe.commands.needed import check_installed
from skippipe.errors import SIGNALLED, SUCCESS
from skippipe.report.terminal import make_console
from skippipe.study.config import StudyJob

NEEDED = ("torch", "transformers", "datasets", "tensorboard", "matplotlib")


def study(job: StudyJob, context: Context) -> float:
    """Run open arms and write what is known of all; returns the tokens that are left, in millions."""
    check_installed("a study", NEEDED)
    # Imported here: --help does without.
    from skippipe.checkpoint.key import load_key  # noqa: PLC0415
    from skippipe.devices import find_devices  # noqa: PLC0415
    from skippipe.study.arms import compose_arms  # noqa: PLC0415
    from skippipe.study.display import console_table  # noqa: PLC0415
    from skippipe.study.study import Study  # noqa: PLC0415
    from skippipe.train.signals import StopRequest, outlasting_terminal  # noqa: PLC0415

    console = make_console()

    @outlasting_terminal
    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    arms = compose_arms(job.arms, job.prepared, job.overrides, lambda overrides: compose("train", overrides))
    # What evaluations and checkpoints ask for is to be known now, not after the first arm's end.
    compose("evaluate", [*job.evaluation, "output=evaluation"])
    if job.key is not None:
        load_key(job.key)
    with StopRequest() as request:
        at_work = Study(job, arms, context.folder, context.config_folders, say)
        left = sum(entry.tokens_left for entry in at_work.entries)
        if job.dry_run:
            for device, step in at_work.plan(find_devices(job.devices)):
                say(f"{device or 'then'}: {step.kind} {step.arm.key.title}")
        elif job.minutes != 0:
            at_work.run(find_devices(job.devices), lambda: request.signal is not None)
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
