"""The configuration groups of commands: their options, and the types of what is in them."""

import functools
import typing
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from importlib import resources
from typing import Any

import yaml

from skippipe.commands.command import Command

SCHEMA = "_schema"
"""What the names of types end with in a defaults list."""


@dataclass(frozen=True)
class Schema:
    """The type of options of a group, as their defaults lists name it."""

    group: str
    name: str
    kind: type[Any]


@functools.cache
def options(group: str) -> dict[str, str | None]:
    """Names of the options of a group that the package has, each with that of its type; None where it names none."""
    files = [file for file in resources.files("skippipe.conf").joinpath(group).iterdir() if file.name.endswith(".yaml")]
    contents = {file.name.removesuffix(".yaml"): yaml.safe_load(file.read_text("utf-8")) or {} for file in files}
    return {name: _first_schema(content) for name, content in sorted(contents.items())}


def _first_schema(content: dict[str, Any]) -> str | None:
    names = (name for name in content.get("defaults", []) if isinstance(name, str))
    return next((name for name in names if name.endswith(SCHEMA)), None)


def schemas(command: Command) -> Iterator[Schema]:
    """The types that the groups of a command have, by the type of the setting that each fills."""
    hints = typing.get_type_hints(command.settings_type)
    for entry_group in command.groups:
        group, _, package = entry_group.partition("@")
        kind = hints.get(package.partition(".")[0] or group)
        for entry in (kind, *typing.get_args(kind)):
            if isinstance(entry, type) and is_dataclass(entry):
                for variant in entry.__subclasses__() or [entry]:
                    yield Schema(group, schema_name(variant), variant)


def schema_name(kind: type[Any]) -> str:
    """How defaults lists name the type `SitesConfig`: sites_schema."""
    return kind.__name__.removesuffix("Config").lower() + SCHEMA
