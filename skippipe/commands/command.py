"""The class of a command. Imports nothing heavy, since the list of commands must load fast."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skippipe.context import Context
from skippipe.packages import check_installed

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
    main_keys: Sequence[str] = ()
    """the keys that most people need, where there are many: the help begins with them"""
    notes: str = ""
    """shown in the help, in addition to the settings"""
    groups: Mapping[str, str | None] = field(default_factory=dict)
    """configuration groups (folders of `skippipe/conf`), each with the option chosen by default, in their order"""
    without_effect: Sequence[str] = ()
    """settings that its groups share with other commands and that change nothing here, or groups of settings of which
    none does: the help leaves them out"""
    packages: Sequence[str] = ()
    """packages needed in addition to the base installation; the extra `train` installs them"""
    writes: Mapping[str, str | None] = field(default_factory=lambda: {"output": None})
    """settings that name a file or folder to be written, each with the name used for null, if any"""
    flags: Mapping[str, str] = field(default_factory=dict)
    """its flags, each with the setting that replaces it"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """aliases of settings whose short name is a configuration group, which Hydra would choose"""
    texts: Sequence[str] = ()
    """settings whose value is a single text even with commas, which Hydra would take for a sweep"""

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
        """The function that does its work; raises `InputError` if required packages are missing."""
        check_installed(f"skippipe {self.name}", self.packages)
        found: Run = pkgutil.resolve_name(self.run)
        return found
