"""What a command is. Imports nothing heavy: the list of commands has to load at once."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from skippipe.context import Context
from skippipe.errors import InputError

Run = Callable[[Any, Context], float]
"""Does a command's work; the value returned is what a Hydra sweeper may minimise."""


@dataclass(frozen=True)
class Command:
    """A command, registered once: the command line, its help, its configuration and the docs derive from it."""

    name: str
    """as typed, e.g. `bench planner`"""
    summary: str
    """one line"""
    settings: str
    """MODULE:CLASS of its settings, a dataclass"""
    run: str
    """MODULE:FUNCTION of its work, a `Run`; imported only after the settings have been checked"""
    examples: str
    notes: str = ""
    """what there is to know beyond the settings"""
    groups: Mapping[str, str | None] = field(default_factory=dict)
    """configuration groups (folders of `skippipe/conf`), each with the option chosen by default, in their order"""
    packages: Sequence[str] = ()
    """those that it needs beyond the base installation; the extra `train` installs them"""
    writes: Mapping[str, str | None] = field(default_factory=lambda: {"output": None})
    """settings that name a file or folder to be written, each with the name that null stands for, if any"""
    flags: Mapping[str, str] = field(default_factory=dict)
    """flags of its own, each with the setting that it stands for"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """other names of settings, where the short name is a configuration group, which Hydra would take first"""
    texts: Sequence[str] = ()
    """settings whose value is one text even where it holds commas: to Hydra it would be a sweep"""

    @property
    def key(self) -> str:
        """The name as an identifier."""
        return self.name.replace(" ", "_")

    @property
    def settings_type(self) -> type[Any]:
        """The dataclass of its settings."""
        found: type[Any] = pkgutil.resolve_name(self.settings)
        return found

    def load_run(self) -> Run:
        """The function that does its work; raises `InputError` where packages that it needs are missing."""
        check_installed(f"skippipe {self.name}", self.packages)
        found: Run = pkgutil.resolve_name(self.run)
        return found


def check_installed(what: str, packages: Sequence[str]) -> None:
    """Raise `InputError` saying that `what` needs packages that are not there, where some are not."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{what} needs {', '.join(missing)}, which is not installed here: pip install 'skippipe[train]'"
        )
