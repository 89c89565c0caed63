"""The errors of the package, and their exit status.

The extension raises `SchedulerError` and its subclasses too. `InputError` is for input that cannot be used; its message
names file, key, value and what was expected.
"""

import copy
import unicodedata
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, TypeVar

SHOWN = ("Zs", "Mn", "Cs", "Co", "Cn")
"""Categories of characters that are not printable to Python, but harmless on a terminal: spaces, surrogates (bytes of a
file name that are not UTF-8, which standard error escapes), and unassigned ones."""

MOST_SHOWN = 120
"""Maximum characters of a value in a message."""

SUCCESS, FAILURE, UNUSABLE_INPUT, INTERRUPTED = 0, 1, 2, 130
SIGNALLED = 128
"""Exit status after a signal, minus the signal number."""


class SchedulerError(Exception):
    """Base class of all errors of the package.

    `origin` says where it occurred, such as the nodes of a rank; it comes first in the text.
    """

    origin: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.origin and printable(self.origin), *self._parts()) if part)

    def _parts(self) -> Sequence[str]:
        return (super().__str__(),)


Located = TypeVar("Located", bound=SchedulerError)


class InputError(SchedulerError, ValueError):
    """A value that cannot be used.

    Its text is `ORIGIN: FILE:LINE:COLUMN: KEY: REASON; HINT`, as far as they are known.

    Attributes:
        reason: what is wrong, where it is not `expected E, got V`.
        key: of the value, such as `cluster.nodes[3].memory`.
        file: the file with the value, or the one that cannot be used.
        expected: what was expected.
        found: the value found, as `shown` writes it.
        hint: what may help, or else explains.
        position: line and column in the file, or the line alone.

    """

    def __init__(  # noqa: PLR0913 - each of them may be unknown
        self,
        reason: str = "",
        *,
        key: str | None = None,
        file: str | PurePath | None = None,
        expected: str | None = None,
        found: object = None,
        hint: str | None = None,
        position: Sequence[int] | None = None,
        origin: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.key, self.file = reason, key, None if file is None else str(file)
        self.expected, self.found = expected, None if expected is None else shown(found)
        self.hint, self.position = hint, None if position is None else tuple(position)
        if origin is not None:
            self.origin = origin

    def _parts(self) -> Sequence[str]:
        place = [] if self.file is None else [printable(self.file)]
        if self.position is not None:
            place = [*(place or ["line"]), *map(str, self.position)]
        values = self.expected and f"expected {self.expected}, got {printable(self.found or '')}"
        what = "; ".join(part for part in (self.reason, values, self.hint) if part)
        return ":".join(place), printable(self.key or ""), what

    def fields(self) -> dict[str, Any]:
        """What is known of it, for JSON: `InputError(**error.fields())` has the same text."""
        known = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in known.items() if value is not None}


FIELDS = ("reason", "key", "file", "expected", "found", "hint", "position", "origin")
"""of an `InputError`"""


class ImpossibleError(InputError):
    """Proved: no plan can satisfy the constraints; `rule` is the one that cannot be satisfied."""

    def __init__(self, reason: str = "", *, rule: str | None = None) -> None:
        super().__init__(reason)
        self.rule = rule


class NoPlanError(SchedulerError, RuntimeError):
    """No plan was found within the limit; one may exist."""


class DeadlockError(SchedulerError, RuntimeError):
    """Tasks of a plan, or programs of ranks, wait for each other in a cycle, or for a message that is never sent.

    `cycle` has the names of the tasks of a cycle found by the simulator.
    """

    def __init__(self, reason: str = "", *, cycle: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.cycle = tuple(cycle)


class ActionError(SchedulerError, RuntimeError):
    """An action of a running iteration failed or took too long; the message names node, action and peer."""


class WithdrawnError(SchedulerError):
    """This process has failed before it has trained with the others, who go on without it; the cause says why."""


def exit_status(error: BaseException) -> int:
    """Exit status of a command that ended with `error`: 2 for unusable input, 130 for Ctrl-C, 1 for the rest."""
    if isinstance(error, InputError):
        return UNUSABLE_INPUT
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return FAILURE


def unexpected(
    key: str, found: object, expected: str, file: str | PurePath | None = None, hint: str | None = None
) -> InputError:
    """Make the error for a value other than expected."""
    return InputError(key=key, found=found, expected=expected, file=file, hint=hint)


def unreadable(path: str | PurePath, why: Exception | str, key: str | None = None) -> InputError:
    """Make the error for a file that cannot be read; `key` is the setting that names it, if one does."""
    return _unusable("read", path, why, key)


def unwritable(path: str | PurePath, why: Exception | str, key: str | None = None) -> InputError:
    """Make the error for a file or folder that cannot be written; `key` is the setting that names it, if one does."""
    return _unusable("written", path, why, key)


def _unusable(done: str, path: str | PurePath, why: Exception | str, key: str | None) -> InputError:
    reason = why if isinstance(why, str) else first_line(why)
    if key is None:
        return InputError(f"cannot be {done}: {reason}", file=path)
    return InputError(f"{printable(str(path))} cannot be {done}: {reason}", key=key)


def first_line(error: BaseException) -> str:
    """What an error of Python or of another package says, or its cause, in a line."""
    error = error.__cause__ or error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


def shown(value: object) -> str:
    """Write a value for a message: text and paths without quotes, of long ones both ends (`MOST_SHOWN` characters)."""
    text = "null" if value is None else str(value) if isinstance(value, str | PurePath) else repr(value)
    end = MOST_SHOWN // 2
    return (text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - end - 3]}...{text[-end:]}") or "''"


def in_file(error: InputError, path: str | PurePath, *position: int) -> InputError:
    """The same error with its file, and with its line and column there if they are given."""
    located = copy.copy(error)
    located.file, located.position = str(path), position or error.position
    return located


def in_group(error: InputError, group: str) -> InputError:
    """The same error, its key within a group of settings."""
    located = copy.copy(error)
    located.key = group if error.key is None else f"{group}.{error.key}"
    return located


def from_origin(error: Located, origin: str) -> Located:
    """The same error, with where it occurred."""
    located = copy.copy(error)
    located.origin = origin if error.origin is None else f"{origin}: {error.origin}"
    return located


def printable(text: str) -> str:
    """Escape characters of foreign text that would break a line of a terminal, or change its direction or colour."""
    return "".join(letter if letter == " " or letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter if unicodedata.category(letter) in SHOWN else letter.encode("unicode_escape").decode()
