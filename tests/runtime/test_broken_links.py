"""What becomes of large messages whose connection breaks while they are under way."""

import contextlib
import threading

import pytest
from pool import Pool

from skippipe.runtime.links.waiting import WaitingThread

from .breaking import MESSAGE, break_off

LONG_S = 20.0
PAUSES_S = [0.02, 0.005, 0.05, 0.1, 0.01]


@pytest.mark.parametrize("breaker", [0, 1], ids=["sender", "receiver"])
def test_neither_end_waits_for_a_message_that_breaks_off(pool: Pool, breaker: int) -> None:
    """Whatever has arrived of it: Gloo alone would leave both waiting until their time is over."""
    for pause_s in 3 * PAUSES_S:
        (sent, _), (received, arrived) = pool.run(break_off, [(breaker, pause_s)] * 2, 60.0)
        assert bool(received) == (arrived < MESSAGE)
        assert sent or arrived == MESSAGE
        if 0 < arrived < MESSAGE:
            return
    raise AssertionError("no pause falls into the transfer")


def test_a_thread_that_waits_is_left_behind() -> None:
    never, waiting = threading.Event(), WaitingThread()
    threading.Timer(0.2, waiting.interrupt).start()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="broken off"):
            waiting.call(lambda: never.wait(LONG_S))
    never.set()
    waiting.close()


@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError, AssertionError])
def test_a_thread_that_waits_fails_as_its_call_does(kind: type[Exception]) -> None:
    def fail() -> None:
        raise kind("why")

    waiting = WaitingThread()
    with pytest.raises(kind, match="why"):
        waiting.call(fail)
    waiting.call(threading.Event().is_set)
    waiting.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_waits_ends_with_what_it_waits_for(fails: bool) -> None:
    before, waiting = set(threading.enumerate()), WaitingThread()
    with pytest.raises(ValueError, match="invalid literal") if fails else contextlib.nullcontext():
        waiting.call(lambda: int("nothing" if fails else "1"))
    (thread,) = set(threading.enumerate()) - before
    del waiting
    thread.join(LONG_S)
    assert not thread.is_alive()
