"""A thread that waits for transfers in place of another one, and can be left behind."""

import queue
import threading
import weakref
from collections.abc import Callable


class WaitingThread:
    """Makes the calls of one thread that wait for other ranks; starts with the first one, and ends with this object."""

    def __init__(self) -> None:
        """Prepare."""
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._interrupted = threading.Event()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._calls.put, None)

    def call(self, call: Callable[[], object]) -> None:
        """Wait until a call returns; raises what it raises, and `ConnectionError` once `interrupt` was called."""
        if self._interrupted.is_set():
            raise ConnectionError(BROKEN_OFF)
        if self._thread is None:
            self._thread = threading.Thread(target=_make, args=[self._calls, self._outcomes], daemon=True)
            self._thread.start()
        self._calls.put(call)
        try:
            failure = self._outcomes.get()
        except BaseException:  # of a signal: the outcome would be taken for that of the next call
            self.interrupt()
            raise
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # whose traceback has this frame, and so what the call holds

    def interrupt(self) -> None:
        """Leave the call behind that is under way, and allow no other; called by any thread."""
        self._interrupted.set()
        self._outcomes.put(ConnectionError(BROKEN_OFF))

    def close(self) -> None:
        """End the thread once its last call has returned."""
        self._calls.put(None)


BROKEN_OFF = "broken off"
"""What an interrupted call fails with."""


def _make(
    calls: "queue.SimpleQueue[Callable[[], object] | None]", outcomes: "queue.SimpleQueue[BaseException | None]"
) -> None:
    """Make calls until there are no more."""
    while (call := calls.get()) is not None:
        failure: BaseException | None = None
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again where the call was asked for
            failure = error
        outcomes.put(failure)
        del call, failure  # what they hold should not stay until the next one
