"""What a run leaves in its folder: every event as a line of `metrics.jsonl`, figures for TensorBoard, plan, cluster."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import OmegaConf

from skippipe._scheduler import Plan
from skippipe.files import write_text
from skippipe.plan import save_plan
from skippipe.train.config import TrainJob
from skippipe.train.events import Event, Report

SETTINGS, METRICS, TRACE = "config.yaml", "metrics.jsonl", "trace.json"
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
        self._folder = folder
        # Lines go out one by one, each whole: a run that is killed leaves what it had.
        cut_to_lines(folder / METRICS)
        self._metrics = (folder / METRICS).open("a", encoding="utf-8", buffering=1)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=iteration + 1)

    def __call__(self, event: Event) -> None:
        """Take one event; where it cannot be written, training goes on."""
        with self._writing(METRICS):
            self._metrics.write(json.dumps(event) + "\n")
        kind = event["event"]
        with self._writing("tensorboard"):
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

    def keep(self, job: TrainJob, plans: Mapping[int, Plan]) -> None:
        """Write settings, plans by the iterations before them, and cluster."""
        write_text(self._folder / SETTINGS, settings_yaml(job))
        for after, plan in plans.items():
            save_plan(plan, self._folder / (f"plan_after_{after}.json" if after else "plan.json"))
        write_text(self._folder / "cluster.json", plans[0].cluster.to_json())

    def file(self, name: str) -> Path:
        """Where a file of the run's folder is."""
        return self._folder / name

    def close(self) -> None:
        """Write what is left to write."""
        with self._writing(METRICS):
            self._metrics.close()
        with self._writing("tensorboard"):
            self._board.close()


def cut_to_lines(path: Path) -> None:
    """Cut off what comes after a file's last line end: a line that a killed process, or a full disk, left torn."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
