"""A cluster file replaces a preset: settings of a preset beside it would have no effect, and are refused."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from skippipe.config import ClusterConfig
from skippipe.errors import printable, unexpected

FILE = "file"


def check_file_alone(
    settings: Any, overrides: Sequence[str], preset: Callable[[], ClusterConfig | None] | None
) -> None:
    """Raise `InputError` for the first setting of a preset given together with a cluster file.

    Args:
        settings: of a command.
        overrides: of the command line, KEY=VALUE.
        preset: composes the settings of the preset alone, or returns None for a preset of the user; None: unknown,
            only the overrides are checked.

    """
    given = [
        (m[1], m[2] or "") for text in overrides if (m := re.fullmatch(r"[+~]*([^=]+)(?:=(.*))?", text, re.DOTALL))
    ]
    for group, cluster in _clusters(settings):
        if cluster.file is None:
            continue
        beside = f"{group}.{FILE}"
        named = any(key == beside for key, _ in given)
        for key, value in given:
            chosen = key in ("cluster", f"cluster@{group}") and named and group in key
            if chosen or (key.startswith(f"{group}.") and key != beside):
                raise unexpected(key, printable(value), f"nothing of a preset next to {beside}")
        if not named and group == "cluster" and preset is not None:
            plain = preset() or type(cluster)()
            for key, value in _changed(cluster, plain, group):
                raise unexpected(key, value, f"nothing of a preset next to {beside}")


def _clusters(settings: Any) -> Iterator[tuple[str, ClusterConfig]]:
    """All clusters in the settings of a command, by key."""
    if isinstance(cluster := getattr(settings, "cluster", None), ClusterConfig):
        yield "cluster", cluster
    for name, instance in (getattr(settings, "instances", None) or {}).items():
        yield f"instances.{name}", instance


def _changed(found: Any, plain: Any, group: str) -> Iterator[tuple[str, Any]]:
    """Settings other than the file that differ from `plain`."""
    for item in dataclasses.fields(found):
        key, value, before = f"{group}.{item.name}", getattr(found, item.name), getattr(plain, item.name, None)
        if dataclasses.is_dataclass(value) and dataclasses.is_dataclass(before):
            yield from _changed(value, before, key)
        elif value != before and item.name != FILE:
            yield key, value
