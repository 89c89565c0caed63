"""Say in one line what is wrong with a command line, where Hydra and OmegaConf need several."""

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

_EXPECTED = (
    ("Float", "a number"),
    ("Integer", "an integer"),
    ("bool", "true or false"),
)


def explain(error: Exception, job: type[Any] | None) -> str:
    """Name key, value and what was expected; `job` is the dataclass of the settings."""
    cause = _cause(error)
    if str(error).startswith("Could not delete"):
        return f"{_asked_key(error) or 'that key'}: expected a value, it cannot be deleted"
    match cause:
        case OverrideParseException():
            expected = "expected key=value, with special characters in quotes: 'key=\"a b\"'"
            return f"{cause.override!r}: {expected} ({_first_line(cause)})"
        case MissingConfigException():
            return _missing_config(cause)
        case MissingMandatoryValue():
            return f"{cause.full_key}: expected {cause.full_key}=..., got nothing"
        case ConfigAttributeError() | ConfigKeyError():
            return _unknown_key(_asked_key(error) or cause.full_key or str(cause.key), job)
        case ValidationError():
            return _wrong_value(error, cause)
        case RecursionError():
            return "nested too deeply"
        case InterpolationResolutionError():
            return f"{cause.full_key}: {_first_line(cause)}"
    key = _asked_key(error)
    return _unknown_key(key, job) if key else _first_line(cause) or type(cause).__name__


def _cause(error: Exception) -> BaseException:
    """What OmegaConf raised where Hydra tells it in words of its own."""
    candidates = (error.__cause__, error, error.__context__)
    return next((each for each in candidates if isinstance(each, OmegaConfBaseException)), error)


def key_of(error: Exception) -> str | None:
    """The key that an error of composing, or of checking what was composed, speaks of; None where it names none."""
    key = _asked_key(error) or getattr(_cause(error), "full_key", None)
    if key:
        return str(key)
    found = re.match(r"(?:unknown key )?([\w.]+(?:\[\d+\])?)(?: is |[:;] )", str(error))
    return found and found[1]


def _asked_key(error: Exception) -> str | None:
    """Return the key of an override that Hydra could not place."""
    found = re.match(
        r"Could not (?:override|delete from config\.?) '?([^'\n]+?)'?(?: does not exist)?\.?(?:\n| No match|$)",
        str(error),
    )
    found = found or re.match(r"Error merging override \+{0,2}~?([^=\n]+)", str(error))
    return found and found[1]


def _unknown_key(key: str, job: type[Any] | None) -> str:
    known = sorted(set(_keys(job))) if job else []
    if key in known:
        return f"unknown key {key}; no choice made here has it, --cfg job shows the keys"
    close = difflib.get_close_matches(key, known, n=1) or [x for x in known if x.rpartition(".")[2] == key][:1]
    hint = f"did you mean {close[0]}?" if close else "--help lists the keys"
    return f"unknown key {key}; {hint}"


def _missing_config(error: MissingConfigException) -> str:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    known = [name for name in error.options or () if not name.endswith("_schema")]
    if not group or not known:
        return _first_line(error)
    return f"unknown {group} {option!r}; choose one of {', '.join(known)}"


def _wrong_value(error: Exception, cause: ValidationError) -> str:
    text = _first_line(cause)
    key = cause.full_key or _asked_key(error) or str(cause.key)
    value = re.search(r"Value '(.*?)'(?: of type| is not|\()", text, re.DOTALL)
    expected = next((what for sign, what in _EXPECTED if sign in text), None)
    if value and expected:
        return f"{key}: expected {expected}, got {value[1]}"
    if merged := re.match(r"Merge error: .* is not a subclass of .*?\. value: (.*)", text):
        place = f"{cause.full_key}: " if cause.full_key else ""
        return f"{place}expected a mapping of keys to values, got {merged[1]}"
    if "is not Optional" in text:
        return f"{key}: expected a value, got null"
    if "is not a ListConfig" in text:
        return f"{key}: expected a list such as [1,2], got a single value"
    return f"{key}: {text}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _keys(job: type[Any], prefix: str = "") -> Iterator[str]:
    """List the keys of a dataclass and of those within it, of every kind that a field can hold."""
    types = typing.get_type_hints(job)
    for item in dataclasses.fields(job):
        key, kind = prefix + item.name, types[item.name]
        yield key
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            for variant in (kind, *kind.__subclasses__()):
                yield from _keys(variant, f"{key}.")
