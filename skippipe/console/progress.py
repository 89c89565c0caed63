"""Progress of a piece of work: a live bar on a terminal, a line at intervals elsewhere."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

from skippipe.console.output import Console

if TYPE_CHECKING:
    from skippipe.scheduler import SearchProgress

LINE_EVERY_S = 10.0


class ProgressDisplay:
    """Shows progress; a context manager, since a bar must be closed."""

    def __init__(self, console: Console, *, line_every_s: float = LINE_EVERY_S, is_open_ended: bool = False) -> None:
        """Show on `console`.

        Args:
            console: where.
            line_every_s: seconds between lines if it is not a terminal; infinite: no lines.
            is_open_ended: the total is unknown: shows a spinner, removed at the end.

        """
        self.console = console
        self._line_every_s = line_every_s
        self._bar = _Bar(*_columns(is_open_ended), console=console, transient=is_open_ended, refresh_per_second=8)
        self._task = self._bar.add_task("", total=None, state="")
        self._description, self._last_line_s = "", time.monotonic()

    def __enter__(self) -> Self:
        if self.is_live:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.is_live:
            self._bar.stop()

    @property
    def is_live(self) -> bool:
        """Whether there is a bar."""
        return self.console.is_terminal

    def write_line(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        self.console.write_line(text)

    def begin(self, description: str, total: float | None = None) -> None:
        """Start another piece of work, with a new estimate of the time left."""
        self._description = description
        self._bar.reset(self._task, description=description, total=total, state="")

    def update(
        self, completed: float = 0.0, state: str = "", *, total: float | None = None, description: str | None = None
    ) -> None:
        """Show how much is done; `state` describes it."""
        self._description = self._description if description is None else description
        self._bar.update(self._task, description=self._description, completed=completed, total=total, state=state)
        now = time.monotonic()
        if not self.is_live and now - self._last_line_s >= self._line_every_s:
            self._last_line_s = now
            self.write_line(f"{self._description}: {state}")

    def show_below(self, *details: RenderableType) -> None:
        """Replace what is shown below the bar."""
        self._bar.details = details


class _Bar(Progress):
    details: tuple[RenderableType, ...] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from self.details


def _columns(is_open_ended: bool) -> tuple[ProgressColumn, ...]:  # noqa: FBT001
    if is_open_ended:
        return SpinnerColumn(), TextColumn("{task.description}{task.fields[state]}", markup=False)
    texts = [TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[state]")]
    return texts[0], BarColumn(), texts[1], TimeRemainingColumn()


@contextlib.contextmanager
def planning_progress(strategy: str) -> "Iterator[SearchProgress | None]":
    """Show the progress of a search on standard error if that is a terminal; else yield None."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with ProgressDisplay(console, line_every_s=math.inf, is_open_ended=True) as display:
        display.begin(f"planning {strategy}")

        def show(elapsed_s: float, incumbent_s: float, lower_bound_s: float, work: int) -> None:
            best = f"best {incumbent_s:.4g} s" if math.isfinite(incumbent_s) else "no plan yet"
            display.update(state=f": {elapsed_s:.1f} s, {best}, lower bound {lower_bound_s:.4g} s, work {work:,}")

        yield show
