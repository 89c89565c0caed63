"""Standard streams, even if closed or not writable, and messages on standard error."""

import contextlib
import errno
import io
import os
import sys
import traceback
from typing import cast

from skippipe.errors import SchedulerError, printable

STANDARD_OUTPUT = "standard output"
"""The `filename` of an `OSError` of standard output."""


def check_streams() -> None:
    """Reopen closed standard streams, so that no other file gets their numbers, and tolerate a failing stderr.

    What is written to a closed standard output fails when it is flushed, as on a full disk; what is written to a
    standard error that is closed or full is lost: exit status and standard output still show the result.
    What an output cannot encode, such as the name of a file, is shown escaped there.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        if not _is_open(number):
            opened = os.open(os.devnull, mode)  # the lowest number that is free: this one
            assert opened == number
    if sys.stdout is None or sys.stdout is sys.__stdout__:  # None: Python found it closed
        encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
        by_line = sys.stdout is not None and sys.stdout.line_buffering
        raw = io.BufferedWriter(cast("io.RawIOBase", _Named(1, "w", closefd=False)))
        sys.stdout = io.TextIOWrapper(raw, encoding, line_buffering=by_line)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        raw = io.BufferedWriter(cast("io.RawIOBase", _Patient(2, "w", closefd=False)))
        sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True, write_through=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Discard buffered standard output, which Python would fail to flush again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(text: str, command: str = "") -> None:
    """Print a message on standard error, prefixed with its command."""
    sys.stderr.write(f"{' '.join(filter(None, ('skippipe', command)))}: {text}\n")


def report_error(command: str, error: Exception, label: str | None = None) -> None:
    """Print the error of a command, or of its job `label`; with a traceback only for a bug.

    Raises `OSError` again where it is standard output that cannot be written: for the command line to report.
    """
    if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
        raise error
    if not isinstance(error, (SchedulerError, OSError)):
        traceback.print_exception(error)
    text = "\n".join(map(printable, (str(error) or type(error).__name__).split("\n")))
    warn(text if label is None else f"{label} {text}", command)


class _Named(io.FileIO):
    """Standard output, whose errors name it."""

    def write(self, content: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            return super().write(content) or 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from None


class _Patient(io.FileIO):
    """A file that drops what cannot be written."""

    def write(self, content: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            return super().write(content) or 0
        except OSError:
            return len(content)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError as error:
        return error.errno != errno.EBADF
    return True
