"""Calls that wait for other ranks, and that nothing can break off."""

import threading
import time
from collections.abc import Callable

from skippipe.runtime.links.gloo import first_line

LOOK_PAUSE_S = 0.05
"""Between two looks whether to go on waiting."""


def call_with_timeout(call: Callable[[], object], interrupted: threading.Event, timeout_s: float) -> None:
    """Call in a thread of its own, which is left behind if it does not return.

    Args:
        call: waits for other ranks.
        interrupted: set by any thread once one of them is lost.
        timeout_s: how long to wait, in seconds.

    Raises:
        TimeoutError: it takes longer.
        ConnectionError: a rank was lost meanwhile, or the call has failed with a `RuntimeError` or `OSError`. What else
            it raises is raised here.

    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=run, name="connecting", daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and not interrupted.is_set() and time.monotonic() < deadline:
        thread.join(LOOK_PAUSE_S)
    if interrupted.is_set():
        raise ConnectionError("broken off")
    if thread.is_alive():
        raise TimeoutError(f"timed out after {timeout_s:g} s")
    for failure in failures:
        if isinstance(failure, RuntimeError | OSError):
            raise ConnectionError(first_line(failure)) from failure
        raise failure
