"""The checkpoint directory of a run: one folder per checkpoint, published atomically.

A checkpoint is written into a hidden staging folder and renamed once complete; one that is removed is first renamed to
a hidden name. So a process may be killed at any moment: a folder with a checkpoint's name is complete.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from skippipe.files import sync_folder

CHECKPOINTS = "checkpoints"
"""folder name within a run's folder"""
_NAME = re.compile(r"iteration-(\d{6,})")
_HIDDEN = re.compile(r"\.(iteration-\d{6,})\.(new|old|replaced)")


@dataclass(frozen=True)
class CheckpointDirectory:
    """The checkpoints of one run."""

    folder: Path

    def path(self, iteration: int) -> Path:
        """Folder of the checkpoint after `iteration` iterations."""
        return self.folder / f"iteration-{iteration:06d}"

    def staging(self, iteration: int) -> Path:
        """Hidden folder in which that checkpoint is written."""
        return self.folder / f".{self.path(iteration).name}.new"

    def all(self) -> list[Path]:
        """Folders of all checkpoints, latest first."""
        found = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted((path for path in found if iteration_of(path) >= 0), key=iteration_of, reverse=True)

    def create_staging(self, iteration: int) -> Path:
        """Create an empty staging folder."""
        staging = self.staging(iteration)
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(parents=True)
        return staging

    def publish(self, iteration: int) -> Path:
        """Rename a complete staging folder to its final name, replacing a (damaged) checkpoint of that name."""
        staging, path = self.staging(iteration), self.path(iteration)
        for folder in [staging, *(f for f in staging.rglob("*") if f.is_dir())]:
            sync_folder(folder)
        replaced = path.with_name(f".{path.name}.replaced")
        if path.exists():
            path.rename(replaced)
        staging.rename(path)
        sync_folder(self.folder)
        if replaced.exists():
            shutil.rmtree(replaced)
        return path

    def prune(self, count: int) -> None:
        """Remove all but the latest `count`."""
        for path in self.all()[count:]:
            self._remove(path)

    def clean_up(self) -> None:
        """Remove incomplete and half-removed checkpoints of a killed process; restore one that was to be replaced."""
        for path in self.folder.iterdir() if self.folder.is_dir() else []:
            match = _HIDDEN.fullmatch(path.name)
            if match and match[2] == "replaced" and not path.with_name(match[1]).exists():
                path.rename(path.with_name(match[1]))
            elif match:
                shutil.rmtree(path)

    def mark_damaged(self, above: int) -> None:
        """Rename checkpoints of later iterations, which are damaged, to `damaged-*`.

        Otherwise they would count as the latest and displace complete ones.
        """
        for path in self.all():
            if iteration_of(path) > above:
                renamed = path.with_name(f"damaged-{path.name}")
                number = 1
                while renamed.exists():
                    number += 1
                    renamed = path.with_name(f"damaged-{path.name}-{number}")
                path.rename(renamed)

    def _remove(self, path: Path) -> None:
        hidden = path.with_name(f".{path.name}.old")
        if hidden.exists():
            shutil.rmtree(hidden)
        path.rename(hidden)
        shutil.rmtree(hidden)


def iteration_of(path: Path) -> int:
    """Iteration in the name of a checkpoint's folder; -1 for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
