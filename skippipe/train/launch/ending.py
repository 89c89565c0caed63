"""How a run of our own processes ends: by a signal in order, or by starting again where a process is lost."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from skippipe.errors import SIGNALLED, SUCCESS
from skippipe.train.launch.worker import LostWorkerError
from skippipe.train.observe.events import Report, RunRestarting
from skippipe.train.observe.run_log import logged_end
from skippipe.train.signals import heeded_signals


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Within: a signal ends the command as Ctrl-C does, so that nothing is left behind; that is no success."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(SIGNALLED + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in heeded_signals()}
    for number in before:
        if number != signal.SIGINT:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set in Python
                signal.signal(number, handler)


def restarting(
    attempt: Callable[[Report], signal.Signals | None], restarts: int, folder: Path, report: Report
) -> signal.Signals | None:
    """Train by `attempt`, and start again where a process is lost, at most `restarts` times.

    What fails before training, or by an error of its own, would fail again.
    """
    left, lost = restarts, ""
    while True:
        if lost:
            report(RunRestarting(message=lost, left=left))
        with logged_end(folder, report) as log:
            try:
                log.stopped_by = attempt(log.report)
            except LostWorkerError as error:
                log.goes_on = error.others_may_live
                if not left or not (log.has_begun or error.trained):
                    raise
                lost, left = str(error), left - 1
                log.write(error)
                continue
            return log.stopped_by


def stopped(signal_: signal.Signals) -> BaseException:
    """How a run ends that was asked to stop and has done so in order."""
    return KeyboardInterrupt() if signal_ == signal.SIGINT else SystemExit(SUCCESS)
