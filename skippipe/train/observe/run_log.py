"""The log of a run in its folder: events in `metrics.jsonl`, scalars for TensorBoard, plan, cluster and settings.

Each start in a folder is an attempt, numbered from 1. All of them append to the same `metrics.jsonl`: an `attempt`
event says after which iteration the attempt continues, and voids what earlier ones reported of later iterations.
"""

import contextlib
import datetime as dt
import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skippipe._scheduler import Cluster, Plan
from skippipe.files import cut_to_lines, open_own, remove_leftovers, write_text
from skippipe.train.observe.events import (
    AttemptStarted,
    Event,
    IterationDone,
    LogFailed,
    PlanChanged,
    Report,
    RunEnded,
    RunFiles,
    RunStopped,
    to_json,
)

SETTINGS, PLAN, CLUSTER, PROFILE = "config.yaml", "plan.json", "cluster.json", "profile.json"
METRICS, TRACE, BOARD = "metrics.jsonl", "trace.json", "tensorboard"
TAIL_BYTES = 2**20
"""Of `metrics.jsonl`, in which the number of the latest attempt is looked for; an event is far smaller."""
SCALARS = {
    "iteration": (
        "loss",
        "router_loss",
        "tokens_per_s",
        "iteration_s",
        "predicted_s",
        "iteration_ratio",
        "task_ratio",
        "message_ratio",
        "norm",
        "learning_rate",
        "mfu",
        "loss_scale",
    ),
    "validation": ("loss", "training_loss"),
}
"""Fields that go to TensorBoard, by kind of event."""
GROUPS = {"iteration": "train", "validation": "validation"}
"""Prefixes of their names there."""


class RunLog:
    """Writes the events of rank 0 and passes them on; to be closed at the end."""

    def __init__(self, folder: Path, report: Report, iteration: int) -> None:
        """Log to `folder` what comes after `iteration`; scalars of an earlier process beyond it are replaced."""
        # Imported here: it takes a second, and only rank 0 writes.
        from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415

        self._report = report
        self._lost: set[str] = set()
        """names of files that could not be written"""
        self._folder, self._iteration = folder, iteration
        self._plan_files: dict[int, str] = {}
        """by the iterations before each plan"""
        self._begun = False
        # Lines are written one by one, each completely: a run that is killed leaves what it had.
        self._metrics = open_own(folder / METRICS)
        cut_to_lines(self._metrics)
        self._attempt = _latest_attempt(self._metrics) + 1
        self._board = SummaryWriter(str(folder / BOARD), purge_step=iteration + 1)

    def __call__(self, event: Event) -> None:
        """Log one event; if it cannot be written, training continues."""
        if not self._begun:  # not before there is something to report: a run that fails at once leaves no trace
            self._begun = True
            time = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            self(AttemptStarted(iteration=self._iteration, time=time))
        event = replace(event, attempt=self._attempt)
        if isinstance(event, PlanChanged):
            event = replace(event, plan_file=self._plan_files.get(event.iteration - 1))
        with self._writing(METRICS):
            _write_line(self._metrics, event)
        with self._writing(BOARD):
            self._add_scalars(event)
        self._report(event)

    def _add_scalars(self, event: Any) -> None:
        for name in SCALARS.get(event.kind, ()):
            value = getattr(event, name)
            if value is not None:
                self._board.add_scalar(f"{GROUPS[event.kind]}/{name}", value, event.iteration)
        if not isinstance(event, IterationDone):
            self._board.flush()

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Report, once, that a file cannot be written."""
        try:
            yield
        except OSError as error:
            if name not in self._lost:
                self._lost.add(name)
                message = f"{self._folder / name} cannot be written: {error.strerror or error}"
                self._report(LogFailed(message=message))

    def keep_files(self, settings_yaml: str, plans: Mapping[int, Plan], iteration: int | None = None) -> RunFiles:
        """Write settings, cluster, and plans by the iterations before them, beside those of earlier attempts.

        What an earlier attempt was trained by is not overwritten: a file that differs from it is named after the
        iterations before it, as in `plan_after_40.json`.

        Args:
            settings_yaml: the settings.
            plans: by the iterations before them.
            iteration: those before the files hold; None: before the attempt, which may report some again.

        Returns:
            The files that hold for this attempt.

        """
        remove_leftovers(self._folder, SETTINGS)
        starts, done = sorted(plans), self._iteration if iteration is None else iteration
        self._plan_files = {
            after: self._keep(PLAN, plans[after].to_json(), max(after, done), done)
            for after, end in zip(starts, [*starts[1:], None], strict=True)
            if end is None or end > done  # else that phase is over
        }
        cluster = plans[next(iter(self._plan_files))].cluster
        return RunFiles(
            plans={str(after): name for after, name in self._plan_files.items()},
            cluster=self._keep(CLUSTER, cluster.to_json(), done, done),
            settings=self._keep(SETTINGS, settings_yaml, done, done),
        )

    def keep_plan(self, after: int, plan: Plan) -> None:
        """Write a plan that takes the place of another one after so many iterations."""
        with self._writing(PLAN):
            self._plan_files[after] = self._keep(PLAN, plan.to_json(), after, self._iteration)

    def keep_profile(self, cluster: Cluster) -> None:
        """Write the cluster with the times that training has measured so far."""
        with self._writing(PROFILE):
            write_text(self._folder / PROFILE, cluster.to_json(), follow=False)

    def _keep(self, name: str, text: str, after: int, done: int) -> str:
        """Write a text that holds from an iteration on, unless a file has it already; gives the file's name."""
        stem, dot, ending = name.partition(".")
        path = self._folder / (name if after == 0 else f"{stem}_after_{after}{dot}{ending}")
        if done:  # else this attempt continues nothing
            content, number = text.encode(), 1
            for known in sorted(self._folder.glob(f"{stem}*{dot}{ending}")):
                if known.stat().st_size == len(content) and known.read_bytes() == content:
                    return known.name
            while path.exists():
                number += 1
                path = self._folder / f"{stem}_after_{after}_{number}{dot}{ending}"
        write_text(path, text, follow=False)
        return path.name

    def file(self, name: str) -> Path:
        """Path of a file in the run's folder."""
        return self._folder / name

    def close(self) -> None:
        """Write what is buffered."""
        with self._writing(METRICS):
            os.close(self._metrics)
        with self._writing(BOARD):
            self._board.close()


@dataclass
class Reporting:
    """Where the events of a run go: to a log on the rank that reports, else nowhere; later another one may report."""

    folder: Path
    report: Report
    log: RunLog | None = None

    def begin(self, rank: int, iteration: int) -> None:
        """Begin an attempt after an iteration: with a log on rank 0."""
        self.close()
        self.log = RunLog(self.folder, self.report, iteration) if rank == 0 else None

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if self.log is not None:
            self.log(event)

    def close(self) -> None:
        """Write what is buffered."""
        if self.log is not None:
            self.log.close()
            self.log = None


class EndLog:
    """Logs how an attempt ends; for the process that started it, since one that is killed cannot."""

    def __init__(self, folder: Path, report: Report) -> None:
        """Watch an attempt in `folder`, whose events are passed on to `report`."""
        self._path, self._report = folder / METRICS, report
        self._attempt: int | None = None
        self._iteration: int | None = None
        self._signal: str | None = None
        self.stopped_by: signal.Signals | None = None
        """the signal that asked the run to stop, once it has done so in order"""
        self.is_written = False
        """whether the end has been logged"""
        self.goes_on = False
        """whether other machines may go on with the attempt, and log how it ends"""

    @property
    def has_begun(self) -> bool:
        """Whether the attempt has reported anything."""
        return self._attempt is not None

    def report(self, event: Event) -> None:
        """Take an event and pass it on."""
        if event.attempt is not None:
            self._attempt = event.attempt
        if isinstance(event, AttemptStarted | IterationDone):
            self._iteration = event.iteration
        if isinstance(event, RunStopped):
            self._signal = event.signal
        self._report(event)

    def write(self, error: BaseException | None) -> None:
        """Add a line to `metrics.jsonl`, unless the attempt has reported nothing, and so not begun.

        Args:
            error: what the run ended with; None: it is complete, or `stopped_by` a signal.

        """
        self.is_written = True
        if self._attempt is None or self.goes_on:
            return
        ended = _ended(error, self.stopped_by, self._iteration, self._attempt)
        if ended.signal is not None and self._signal is not None:  # maybe on another machine
            ended = replace(ended, signal=self._signal)
        with contextlib.suppress(OSError):  # the error itself is shown elsewhere
            metrics = open_own(self._path)
            try:
                cut_to_lines(metrics)
                _write_line(metrics, ended)
            finally:
                os.close(metrics)


@contextlib.contextmanager
def logged_end(folder: Path, report: Report) -> Iterator[EndLog]:
    """Within: an attempt whose end is logged, whatever it is; events have to go through its `report`."""
    log = EndLog(folder, report)
    try:
        yield log
    except BaseException as error:
        log.write(error)
        raise
    if not log.is_written:
        log.write(None)


def _ended(
    error: BaseException | None, stopped_by: signal.Signals | None, iteration: int | None, attempt: int
) -> RunEnded:
    """Say how a run ended: finished, stopped by a signal, or failed."""
    if isinstance(error, KeyboardInterrupt):
        stopped_by = signal.SIGINT
    elif isinstance(error, SystemExit):  # asked before it had begun to train, or twice
        number = error.code - 128 if isinstance(error.code, int) and error.code > 128 else signal.SIGTERM
        stopped_by = signal.Signals(number)
    elif error is not None:
        return RunEnded(
            iteration=iteration, outcome="failed", error=type(error).__name__, message=str(error), attempt=attempt
        )
    if stopped_by is not None:
        return RunEnded(iteration=iteration, outcome="stopped", signal=stopped_by.name, attempt=attempt)
    return RunEnded(iteration=iteration, outcome="finished", attempt=attempt)


def _write_line(descriptor: int, event: Event) -> None:
    """Append an event to a file of lines, completely or not at all."""
    line = memoryview((to_json(event) + "\n").encode())
    begin = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, begin)
        raise


def _latest_attempt(descriptor: int) -> int:
    """Number of the attempt that wrote the last lines of a file; 0: there is none."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    for line in reversed(os.pread(descriptor, TAIL_BYTES, max(size - TAIL_BYTES, 0)).splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and type(event.get("attempt")) is int:
                return int(event["attempt"])
    return 0
