"""Where the checkpoints of a run stand: a folder each, which appears under its name when it is whole.

A checkpoint is written into a hidden folder and renamed at the end; one that is let go of is renamed to a hidden one
first. So whatever moment a process is killed at, what stands under a checkpoint's name is whole.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from skippipe.files import sync_folder

CHECKPOINTS = "checkpoints"
"""within the folder of a run"""
_NAME = re.compile(r"iteration-(\d{6,})")
_HIDDEN = re.compile(r"\.(iteration-\d{6,})\.(new|old|replaced)")


@dataclass(frozen=True)
class CheckpointDirectory:
    """The checkpoints of one run."""

    folder: Path

    def path(self, iteration: int) -> Path:
        """Folder of the checkpoint after so many iterations."""
        return self.folder / f"iteration-{iteration:06d}"

    def staging(self, iteration: int) -> Path:
        """Folder in which that checkpoint is written."""
        return self.folder / f".{self.path(iteration).name}.new"

    def all(self) -> list[Path]:
        """Folders of all checkpoints, the newest first; none where there is no such folder."""
        found = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted((path for path in found if iteration_of(path) >= 0), key=iteration_of, reverse=True)

    def create_staging(self, iteration: int) -> Path:
        """Make an empty draft."""
        staging = self.staging(iteration)
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(parents=True)
        return staging

    def publish(self, iteration: int) -> Path:
        """Give a draft that is complete its name; one that had it before, damaged perhaps, gives way."""
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
        """Let go of all but the newest `count`."""
        for path in self.all()[count:]:
            self._remove(path)

    def clean_up(self) -> None:
        """Remove what an earlier process has left half written or half removed; what was to be replaced stays."""
        for path in self.folder.iterdir() if self.folder.is_dir() else []:
            match = _HIDDEN.fullmatch(path.name)
            if match and match[2] == "replaced" and not path.with_name(match[1]).exists():
                path.rename(path.with_name(match[1]))
            elif match:
                shutil.rmtree(path)

    def mark_damaged(self, above: int) -> None:
        """Give checkpoints of later iterations names that do not count: they are damaged, and others come after them.

        Otherwise they would be taken for the newest, and be kept in place of whole ones.
        """
        for path in self.all():
            if iteration_of(path) > above:
                aside = path.with_name(f"damaged-{path.name}")
                number = 1
                while aside.exists():
                    number += 1
                    aside = path.with_name(f"damaged-{path.name}-{number}")
                path.rename(aside)

    def _remove(self, path: Path) -> None:
        hidden = path.with_name(f".{path.name}.old")
        if hidden.exists():
            shutil.rmtree(hidden)
        path.rename(hidden)
        shutil.rmtree(hidden)


def iteration_of(path: Path) -> int:
    """Iteration that the name of a checkpoint's folder says; -1 where it is no such name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
