"""The errors of the package, and their exit status.

The extension raises `SchedulerError` and its subclasses too. `InputError` is for input that cannot be used; its message
names file, key, value and what was expected.
"""

import copy
import unicodedata
from collections.abc import Sequence
from pathlib import PurePath

SHOWN = ("Zs", "Mn", "Cs", "Co", "Cn")
"""Categories of characters that are not printable to Python, but harmless on a terminal: spaces, surrogates (bytes of a
file name that are not UTF-8, which standard error escapes), and unassigned ones."""

MOST_SHOWN = 120
"""Maximum characters of a value in a message."""

SUCCESS, FAILURE, UNUSABLE_INPUT, INTERRUPTED = 0, 1, 2, 130
SIGNALLED = 128
"""Exit status after a signal, minus the signal number."""


class SchedulerError(Exception):
    """Base class of all errors of the package."""


class InputError(SchedulerError, ValueError):
    """A value that cannot be used. Its text is `FILE: KEY: REASON`, as far as file and key are known.

    Attributes:
        reason: what is wrong, such as `expected E, got V`.
        key: of the value, such as `cluster.nodes[3].memory`.
        found: the value found.
        expected: what was expected.
        position: line and column in the file.
        file: the file.

    """

    def __init__(  # noqa: PLR0913 - each of them may be unknown
        self,
        reason: str = "",
        *,
        key: str | None = None,
        found: str | None = None,
        expected: str | None = None,
        position: tuple[int, int] | None = None,
        file: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.key, self.found, self.expected = reason, key, found, expected
        self.position, self.file = position, file

    def __str__(self) -> str:
        file = None if self.file is None else printable(self.file)
        return ": ".join(part for part in (file, self.key, self.reason) if part)


class ImpossibleError(InputError):
    """Proved: no plan can satisfy the constraints; `rule` is the one that cannot be satisfied."""

    def __init__(self, reason: str = "", *, rule: str | None = None, file: str | None = None) -> None:
        super().__init__(reason, file=file)
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


def exit_status(error: BaseException) -> int:
    """Exit status of a command that ended with `error`: 2 for unusable input, 130 for Ctrl-C, 1 for the rest."""
    if isinstance(error, InputError):
        return UNUSABLE_INPUT
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return FAILURE


def unexpected(key: str, found: object, expected: str, file: str | None = None) -> InputError:
    """Make the error for a value other than expected."""
    text = shown(found)
    return InputError(f"expected {expected}, got {text}", key=key, found=text, expected=expected, file=file)


def shown(value: object) -> str:
    """Write a value for a message: text and paths without quotes, cut to `MOST_SHOWN` characters."""
    text = str(value) if isinstance(value, str | PurePath) else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def in_file(error: InputError, path: str) -> InputError:
    """The same error with its file."""
    located = copy.copy(error)
    located.file = path
    return located


def in_group(error: InputError, group: str) -> InputError:
    """The same error, its key within a group of settings."""
    located = copy.copy(error)
    located.key = f"{group}.{error.key}"
    return located


def printable(text: str) -> str:
    """Escape characters of foreign text that would break a line of a terminal, or change its direction or colour."""
    return "".join(letter if letter == " " or letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter if unicodedata.category(letter) in SHOWN else letter.encode("unicode_escape").decode()
