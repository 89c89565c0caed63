"""A request to stop, by SIGTERM or Ctrl-C: noted, and heeded when the iteration is done."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Within: a signal that asks this process to end is noted, nothing more. Only the main thread can do so."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """the first one that came"""
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)
