"""Context of a job of a command, in addition to its settings."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skippipe.errors import printable

Compose = Callable[[str, Sequence[str]], Any]
"""Makes the settings of a command, by its name, from overrides; raises `InputError` where they cannot be used."""


@dataclass(frozen=True)
class Context:
    """Where a job runs."""

    folder: Path
    """relative output files go here: the current folder, or the job's own in a sweep"""
    label: str | None
    """number and overrides of the job in a sweep; None for a single run"""
    config_folders: tuple[str, ...]
    """given by --config-dir"""
    compose: Compose
    """composes and checks the settings of another command"""

    def output(self, name: str | None) -> Path | None:
        """Path of an `output` setting."""
        return None if name is None else self.folder / name

    def shown(self, output: Path) -> str:
        """Path of an output file relative to the current folder if that is shorter, escaped for a terminal."""
        return printable(min(str(output), os.path.relpath(output), key=len))
