"""Ends a process whose main thread hangs outside of a message, where no timeout reaches it.

A host that loads a kernel waits for all that its GPU does, and that may wait for a message of a rank whose host waits
as well. Then nobody's message times out, and all show signs of life.
"""

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

LOOK_PAUSE_S = 1.0
PATIENCE = 2.0
"""An action may take so many timeouts of a message; those that wait for one have failed long before."""


class Position(NamedTuple):
    """Where an iteration is."""

    iteration: int
    begun: int
    """actions of it that have begun"""
    action: str
    """the latest of them"""
    timeout_s: float
    """of a message"""


class Standstill:
    """For how long an iteration has been at the same position. Pure.

    Looks are counted, not the clock: a process that was stopped and goes on has not hung meanwhile.
    """

    def __init__(self) -> None:
        """Begin."""
        self._position: Position | None = None
        self._looks = 0

    def observe(self, position: Position | None) -> float:
        """Take what a look has found, None between iterations; gives the seconds at that position."""
        self._looks = self._looks + 1 if position == self._position and position is not None else 0
        self._position = position
        return self._looks * LOOK_PAUSE_S


@contextlib.contextmanager
def ending_if_hung(position: Callable[[], Position | None], end: Callable[[str], None]) -> Iterator[None]:
    """Within: a thread calls `end`, with the reason, once an action hangs."""
    over = threading.Event()

    def watch() -> None:
        standstill = Standstill()
        while not over.wait(LOOK_PAUSE_S):
            found = position()
            seconds = standstill.observe(found)
            if found is not None and seconds > PATIENCE * found.timeout_s:
                end(f"{found.action} of iteration {found.iteration} hangs: it has taken more than {seconds:.0f} s")
                return

    threading.Thread(target=watch, name="hang guard", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def end_process(reason: str) -> NoReturn:
    """End this process at once, which no exception could do, with the stacks of its threads on standard error."""
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
