"""Errors of Hydra and OmegaConf as one line of ours. Some of them give key and value only in their text."""

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

from skippipe.errors import InputError, unexpected

_EXPECTED = (
    ("Float", "a number"),
    ("Integer", "an integer"),
    ("bool", "true or false"),
)


def to_input_error(error: Exception, job: type[Any] | None) -> InputError:
    """Make an error with key, value and what was expected; `job` is the dataclass of the settings."""
    cause = _cause(error)
    undeleted = re.match(r"Config group override deletion value .*\bkey_or_group='([^']*)'", str(error))
    if undeleted or str(error).startswith("Could not delete"):
        return InputError("cannot be deleted", key=undeleted[1] if undeleted else _asked_key(error))
    match cause:
        case OverrideParseException():
            expected = "key=value, with special characters in quotes: 'key=\"a b\"'"
            return InputError(expected=expected, found=cause.override, hint=_first_line(cause))
        case MissingConfigException():
            return _missing_config(cause)
        case MissingMandatoryValue():
            return unexpected(str(cause.full_key), "nothing", f"{cause.full_key}=...")
        case ConfigAttributeError() | ConfigKeyError():
            return _unknown_key(_asked_key(error) or cause.full_key or str(cause.key), job)
        case ValidationError():
            return _wrong_value(error, cause)
        case RecursionError():
            return InputError("nested too deeply")
        case InterpolationResolutionError():
            return InputError(_first_line(cause), key=cause.full_key)
    key = _asked_key(error)
    return _unknown_key(key, job) if key else InputError(_first_line(cause) or type(cause).__name__)


def _cause(error: Exception) -> BaseException:
    """The error of OmegaConf that Hydra wrapped, if any."""
    candidates = (error.__cause__, error, error.__context__)
    return next((each for each in candidates if isinstance(each, OmegaConfBaseException)), error)


def key_of(error: Exception) -> str | None:
    """The key of an error raised while settings were composed or checked; None: unknown."""
    if isinstance(error, InputError):
        return error.key
    key = _asked_key(error) or getattr(_cause(error), "full_key", None)
    return str(key) if key else None


def _asked_key(error: Exception) -> str | None:
    """Return the key of an override that Hydra could not apply."""
    found = re.match(
        r"Could not (?:override|delete from config\.?) '?([^'\n]+?)'?(?: does not exist)?\.?(?:\n| No match|$)",
        str(error),
    )
    found = found or re.match(r"Error merging override \+{0,2}~?([^=\n]+)", str(error))
    return found and found[1]


def _unknown_key(key: str, job: type[Any] | None) -> InputError:
    known = sorted(set(setting_keys(job))) if job else []
    close = difflib.get_close_matches(key, known, n=1) or [x for x in known if x.rpartition(".")[2] == key][:1]
    if key in known:
        hint = "no choice made here has it, --cfg job shows the keys"
    else:
        hint = f"did you mean {close[0]}?" if close else "--help lists the keys"
    return InputError("unknown key", key=key, hint=hint)


def _missing_config(error: MissingConfigException) -> InputError:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    known = [name for name in error.options or () if not name.endswith("_schema")]
    if not group or not known:
        return InputError(_first_line(error))
    return unexpected(group, option, f"one of {', '.join(known)}")


def _wrong_value(error: Exception, cause: ValidationError) -> InputError:
    text = _first_line(cause)
    key = cause.full_key or _asked_key(error) or str(cause.key)
    value = re.search(r"Value '(.*?)'(?: of type| is not|\()", text, re.DOTALL)
    expected = next((what for sign, what in _EXPECTED if sign in text), None)
    if value and expected:
        return unexpected(key, value[1], expected)
    if merged := re.match(r"Merge error: .* is not a subclass of .*?\. value: (.*)", text):
        return unexpected(cause.full_key or "", merged[1], "a mapping of keys to values")
    if "is not Optional" in text:
        return unexpected(key, "null", "a value")
    if "is not a ListConfig" in text:
        return unexpected(key, "a single value", "a list such as [1,2]")
    return InputError(text, key=key)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def setting_keys(job: type[Any], prefix: str = "") -> Iterator[str]:
    """List the keys of a dataclass and of nested ones, including subclasses that a field can hold."""
    types = typing.get_type_hints(job)
    for item in dataclasses.fields(job):
        key, kind = prefix + item.name, types[item.name]
        yield key
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            for variant in (kind, *kind.__subclasses__()):
                yield from setting_keys(variant, f"{key}.")
