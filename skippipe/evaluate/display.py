"""Progress of `skippipe evaluate`: a bar on a terminal, periodic lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0
"""Where there is no terminal."""


class Display:
    """Shows progress; a context manager that ends the bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )
        self._task = self._bar.add_task("", total=None)
        self._told = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, markup=False, soft_wrap=True)

    def __call__(self, omission: str, done: int, total: int) -> None:
        """Show the current omission and the overall progress."""
        self._bar.update(self._task, description=omission, completed=done, total=total)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._told >= LINE_EVERY_S:
            self._told = now
            self.say(f"{omission}: {done} of {total} draws")
