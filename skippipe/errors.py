"""The errors of the package, and the exit status that each of them means.

`SchedulerError` and its children are also what the extension raises. `InputError` is for what a user gave and cannot
be used; its message names file, key, value and what was expected.
"""

import unicodedata

SHOWN = ("Zs", "Mn", "Cs", "Co", "Cn")
"""Categories of characters that Python does not call printable, and that disturb no terminal: blanks, surrogates (bytes
of a file name that are no UTF-8, which standard error writes escaped), and what Unicode has not assigned."""

SUCCESS, FAILURE, UNUSABLE_INPUT, INTERRUPTED = 0, 1, 2, 130
SIGNALLED = 128
"""Exit status of what a signal has ended, less the number of the signal."""


class SchedulerError(Exception):
    """Whatever this package refuses or fails at."""


class InputError(SchedulerError, ValueError):
    """A value that cannot be used."""


class ImpossibleError(InputError):
    """Proved: no plan can satisfy the rules. The message names the rule."""


class NoPlanError(SchedulerError, RuntimeError):
    """No plan was found within the limit; one may exist."""


class LockupError(SchedulerError, RuntimeError):
    """Tasks wait for each other in a circle, which the message names."""


class DeadlockError(SchedulerError, RuntimeError):
    """Programs of several ranks would wait for each other in a circle, or for what never comes; the message says so."""


class ActionError(SchedulerError, RuntimeError):
    """An action of a running iteration failed or took too long; the message names node, action and peer."""


def exit_status(error: BaseException) -> int:
    """Exit status of a command that ended with `error`: 2 for unusable input, 130 for Ctrl-C, 1 for the rest."""
    if isinstance(error, InputError):
        return UNUSABLE_INPUT
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return FAILURE


def in_file(error: InputError, path: str) -> InputError:
    """The same error, its message headed by the file that it speaks of."""
    return type(error)(f"{printable(path)}: {error}")


def printable(text: str) -> str:
    """Text of others for one line of a terminal: what would break the line, turn or colour it is escaped."""
    return "".join(letter if letter == " " or letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter if unicodedata.category(letter) in SHOWN else letter.encode("unicode_escape").decode()
