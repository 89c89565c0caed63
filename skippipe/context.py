"""What a command is told of the job that it runs in, beside its settings."""

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
    """those given by --config-dir"""
    compose: Compose
    """composes and checks the settings of another command"""

    def output(self, name: str | None) -> Path | None:
        """Where an `output` setting points to."""
        return None if name is None else self.folder / name

    def shown(self, output: Path) -> str:
        """How to name an output file to somebody in the current folder."""
        return printable(min(str(output), os.path.relpath(output), key=len))
