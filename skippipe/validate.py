"""Check the values of a configuration against the ranges that its dataclasses declare."""

import dataclasses
from typing import Any

from skippipe.config import Range
from skippipe.errors import InputError, unexpected

MOST = 2**63 - 1
"""The largest integer that the extension and torch take."""


def validate(config: Any, prefix: str = "") -> None:
    """Raise `InputError` naming key, value and what was expected for the first setting that is out of range."""
    unknown = sorted(vars(config).keys() - {item.name for item in dataclasses.fields(config)})
    if unknown:  # only `+key=value` gets so far
        raise InputError("unknown key", key=f"{prefix}{unknown[0]}", hint="--help lists the keys")
    for item in dataclasses.fields(config):
        key, value = prefix + item.name, getattr(config, item.name)
        for name, entry in _entries(key, value):
            if dataclasses.is_dataclass(entry):
                validate(entry, f"{name}.")
            elif entry is not None:
                _check(name, entry, item.metadata.get("within"), item.metadata.get("choices"))


def _entries(key: str, value: Any) -> list[tuple[str, Any]]:
    """List what a setting holds, each part with a key of its own."""
    match value:
        case list():
            return [(f"{key}[{i}]", entry) for i, entry in enumerate(value)]
        case dict():
            return [(f"{key}.{name}", entry) for name, entry in value.items()]
        case _:
            return [(key, value)]


def _check(key: str, value: Any, within: Range | None, choices: tuple[str, ...] | None) -> None:
    if within is not None and not within.holds(value):
        kind = "an integer of" if isinstance(value, int) else "a finite number of"
        raise unexpected(key, value, f"{kind} {within}")
    if isinstance(value, int) and not -MOST - 1 <= value <= MOST:
        raise unexpected(key, value, f"an integer of at least {-MOST - 1} and at most {MOST}")
    if choices is not None and value not in choices:
        raise unexpected(key, value, f"one of {', '.join(choices)}")
