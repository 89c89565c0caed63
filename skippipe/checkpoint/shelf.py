"""Where the checkpoints of a run stand: a folder each, which appears under its name when it is whole.

A checkpoint is written into a hidden folder and renamed at the end; one that is let go of is renamed to a hidden one
first. So whatever moment a process is killed at, what stands under a checkpoint's name is whole.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from skippipe.files import sync_folder

FOLDER = "checkpoints"
"""within the folder of a run"""
_NAME = re.compile(r"iteration-(\d{6,})")
_HIDDEN = re.compile(r"\.iteration-\d{6,}\.(new|old)")


@dataclass(frozen=True)
class Shelf:
    """The checkpoints of one run."""

    folder: Path

    def path(self, iteration: int) -> Path:
        """Folder of the checkpoint after so many iterations."""
        return self.folder / f"iteration-{iteration:06d}"

    def draft(self, iteration: int) -> Path:
        """Folder in which that checkpoint is written."""
        return self.folder / f".{self.path(iteration).name}.new"

    def all(self) -> list[Path]:
        """Folders of all checkpoints, the newest first; none where there is no such folder."""
        found = self.folder.iterdir() if self.folder.is_dir() else []
        numbered = [(int(match[1]), path) for path in found if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(numbered, reverse=True)]

    def begin(self, iteration: int) -> Path:
        """Make an empty draft."""
        draft = self.draft(iteration)
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir(parents=True)
        return draft

    def publish(self, iteration: int) -> Path:
        """Give a draft that is complete its name; one that had it before, damaged perhaps, gives way."""
        draft, path = self.draft(iteration), self.path(iteration)
        for folder in [draft, *(f for f in draft.rglob("*") if f.is_dir())]:
            sync_folder(folder)
        if path.exists():
            self._remove(path)
        draft.rename(path)
        sync_folder(self.folder)
        return path

    def keep(self, count: int) -> None:
        """Let go of all but the newest `count`."""
        for path in self.all()[count:]:
            self._remove(path)

    def tidy(self) -> None:
        """Remove what an earlier process has left half written or half removed."""
        for path in self.folder.iterdir() if self.folder.is_dir() else []:
            if _HIDDEN.fullmatch(path.name):
                shutil.rmtree(path)

    def _remove(self, path: Path) -> None:
        hidden = path.with_name(f".{path.name}.old")
        if hidden.exists():
            shutil.rmtree(hidden)
        path.rename(hidden)
        shutil.rmtree(hidden)
