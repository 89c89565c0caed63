"""Calls that wait for other ranks: they end in time, whatever becomes of the ranks."""

import threading
from functools import partial

import pytest

from skippipe.runtime.links.timeouts import call_with_timeout

LONG_S = 600.0


def test_a_call_that_returns_has_been_made() -> None:
    done = threading.Event()
    call_with_timeout(done.set, threading.Event(), LONG_S)
    assert done.is_set()


@pytest.mark.parametrize("kind", [RuntimeError, OSError, ConnectionError])
def test_a_call_that_fails_is_a_broken_connection(kind: type[Exception]) -> None:
    def fail() -> None:
        raise kind("the other one is gone\nand where that was noticed")

    with pytest.raises(ConnectionError, match=r"^the other one is gone$"):
        call_with_timeout(fail, threading.Event(), LONG_S)


def test_a_defect_stays_a_defect() -> None:
    def fail() -> None:
        raise AssertionError("no communicator")

    with pytest.raises(AssertionError, match="no communicator"):
        call_with_timeout(fail, threading.Event(), LONG_S)


def test_a_call_is_left_behind_once_a_rank_is_lost() -> None:
    never, interrupted = threading.Event(), threading.Event()
    threading.Timer(0.2, interrupted.set).start()
    with pytest.raises(ConnectionError, match="broken off"):
        call_with_timeout(partial(never.wait, LONG_S), interrupted, LONG_S)
    never.set()


def test_a_call_is_left_behind_when_its_time_is_over() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"timed out after 0\.1 s"):
        call_with_timeout(partial(never.wait, LONG_S), threading.Event(), 0.1)
    never.set()
