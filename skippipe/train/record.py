"""What a run leaves in its folder: every event as a line of `metrics.jsonl`, figures for TensorBoard, plan, cluster.

Each start in a folder is an attempt, numbered from 1. All of them write into the same `metrics.jsonl`: an `attempt`
event says after which iteration one goes on, and makes void what earlier ones have told of later iterations.
"""

import contextlib
import dataclasses
import datetime as dt
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import OmegaConf

from skippipe._scheduler import Plan
from skippipe.files import cut_to_lines, open_own, remove_leftovers, write_text
from skippipe.train.config import TrainJob
from skippipe.train.events import Event, Report, strict

SETTINGS, PLAN, CLUSTER = "config.yaml", "plan.json", "cluster.json"
METRICS, TRACE, BOARD = "metrics.jsonl", "trace.json", "tensorboard"
TAIL_BYTES = 2**20
"""of `metrics.jsonl`, in which the number of the latest attempt is looked for; an event is far smaller"""
SCALARS = {
    "iteration": ("loss", "router_loss", "tokens_per_s", "iteration_s", "predicted_s", "norm", "learning_rate", "mfu"),
    "validation": ("loss", "training_loss"),
}
"""What goes to TensorBoard, by event, where it is there."""
FOLDERS = {"iteration": "train", "validation": "validation"}


def settings_yaml(job: TrainJob) -> str:
    """The settings of a run as `skippipe train --cfg job` prints them."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(job)))


class Recorder:
    """Writes down the events of rank 0 and passes them on; to be closed at the end."""

    def __init__(self, folder: Path, report: Report, iteration: int) -> None:
        """Write to `folder` what comes after `iteration`; figures that an earlier process wrote of it are replaced."""
        # Imported here: it takes a second, and only rank 0 writes.
        from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415

        self._report = report
        self._lost: set[str] = set()
        """files that could not be written"""
        self._folder, self._iteration = folder, iteration
        self._plan_files: dict[int, str] = {}
        """by the iterations before a plan"""
        self._begun = False
        # Lines go out one by one, each whole: a run that is killed leaves what it had.
        self._metrics = open_own(folder / METRICS)
        cut_to_lines(self._metrics)
        self._attempt = _latest_attempt(self._metrics) + 1
        self._board = SummaryWriter(str(folder / BOARD), purge_step=iteration + 1)

    def __call__(self, event: Event) -> None:
        """Take one event; where it cannot be written, training goes on."""
        if not self._begun:  # not before there is something to tell: a run that fails at once leaves no trace
            self._begun = True
            time = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            self({"event": "attempt", "iteration": self._iteration, "time": time})
        event = event | {"attempt": self._attempt}
        kind = event["event"]
        if kind == "plan_changed":
            event["plan_file"] = self._plan_files.get(event["iteration"] - 1)
        with self._writing(METRICS):
            _write_line(self._metrics, event)
        with self._writing(BOARD):
            for name in SCALARS.get(kind, ()):
                if name in event:
                    self._board.add_scalar(f"{FOLDERS[kind]}/{name}", event[name], event["iteration"])
            if kind != "iteration":
                self._board.flush()
        self._report(event)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Tell, once, that a file cannot be written."""
        try:
            yield
        except OSError as error:
            if name not in self._lost:
                self._lost.add(name)
                message = f"{self._folder / name} cannot be written: {error.strerror or error}"
                self._report({"event": "unrecorded", "message": message})

    def keep(self, job: TrainJob, plans: Mapping[int, Plan]) -> Event:
        """Write settings, cluster, and plans by the iterations before them, beside those of earlier attempts.

        What an earlier attempt was trained by is not overwritten: a file that differs from it is named after the
        iterations before it, as in `plan_after_40.json`.

        Returns:
            `files`: which ones hold for this attempt, for the event that tells of the plan.

        """
        remove_leftovers(self._folder, SETTINGS)
        starts = sorted(plans)
        self._plan_files = {
            after: self._keep(PLAN, plans[after].to_json(), max(after, self._iteration))
            for after, end in zip(starts, [*starts[1:], None], strict=True)
            if end is None or end > self._iteration  # else that part of the run is over
        }
        cluster = plans[next(iter(self._plan_files))].cluster
        files = {
            "plans": {str(after): name for after, name in self._plan_files.items()},
            "cluster": self._keep(CLUSTER, cluster.to_json(), self._iteration),
            "settings": self._keep(SETTINGS, settings_yaml(job), self._iteration),
        }
        return {"files": files}

    def _keep(self, name: str, text: str, after: int) -> str:
        """Write a text that holds from an iteration on, unless it is kept already; gives the file's name."""
        stem, dot, ending = name.partition(".")
        path = self._folder / (name if after == 0 else f"{stem}_after_{after}{dot}{ending}")
        if self._iteration:  # else nothing has been trained that this goes on with
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
        """Where a file of the run's folder is."""
        return self._folder / name

    def close(self) -> None:
        """Write what is left to write."""
        with self._writing(METRICS):
            os.close(self._metrics)
        with self._writing(BOARD):
            self._board.close()


class Ending:
    """Writes down how an attempt has ended; for whoever started it, since a process that is killed cannot say so."""

    def __init__(self, folder: Path, report: Report) -> None:
        """Watch an attempt in `folder`, whose events are passed on to `report`."""
        self._path, self._report = folder / METRICS, report
        self._attempt: int | None = None
        self._iteration: int | None = None
        self.asked: signal.Signals | None = None
        """the signal that has asked the run to stop, where it has done so in order"""

    def report(self, event: Event) -> None:
        """Take an event and pass it on."""
        self._attempt = event.get("attempt", self._attempt)
        if event["event"] in {"attempt", "iteration"}:
            self._iteration = event["iteration"]
        self._report(event)

    def write(self, error: BaseException | None) -> None:
        """Add a line to `metrics.jsonl`, unless the attempt has told nothing, and so not begun.

        Args:
            error: what the run has ended with; None: it has come to its end, or to where it was `asked` to stop.

        """
        if self._attempt is None:
            return
        about = {"event": "run_ended", "attempt": self._attempt, "iteration": self._iteration}
        with contextlib.suppress(OSError):  # the error itself is told elsewhere
            metrics = open_own(self._path)
            try:
                cut_to_lines(metrics)
                _write_line(metrics, about | _outcome(error, self.asked))
            finally:
                os.close(metrics)


@contextlib.contextmanager
def recorded_end(folder: Path, report: Report) -> Iterator[Ending]:
    """Within: an attempt whose end is written down, however it comes; events are to go through its `report`."""
    ending = Ending(folder, report)
    try:
        yield ending
    except BaseException as error:
        ending.write(error)
        raise
    ending.write(None)


def _outcome(error: BaseException | None, asked: signal.Signals | None) -> Event:
    """Say how a run ended: finished, stopped by a signal, or failed."""
    if error is None and asked is None:
        return {"outcome": "finished"}
    if error is None and asked is not None:
        return {"outcome": "stopped", "signal": asked.name}
    if isinstance(error, KeyboardInterrupt):
        return {"outcome": "stopped", "signal": signal.SIGINT.name}
    if isinstance(error, SystemExit):  # asked before it had begun to train, or twice
        number = error.code - 128 if isinstance(error.code, int) and error.code > 128 else signal.SIGTERM
        return {"outcome": "stopped", "signal": signal.Signals(number).name}
    return {"outcome": "failed", "error": type(error).__name__, "message": str(error)}


def _write_line(descriptor: int, event: Event) -> None:
    """Add an event to a file of lines, whole or not at all."""
    line = memoryview((json.dumps(strict(event), allow_nan=False) + "\n").encode())
    begin = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, begin)
        raise


def _latest_attempt(descriptor: int) -> int:
    """Number of the attempt that has written the last lines of a file; 0 where none has."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    for line in reversed(os.pread(descriptor, TAIL_BYTES, max(size - TAIL_BYTES, 0)).splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and type(event.get("attempt")) is int:
                return int(event["attempt"])
    return 0
