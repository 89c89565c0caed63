"""Signals that ask a run to stop, in this process."""

import signal
from collections.abc import Iterator

import pytest

from skippipe.errors import SIGNALLED
from skippipe.train.launch.ending import ending_in_order
from skippipe.train.signals import SIGNALS, StopRequest, heeded_signals


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_noted_while_training_and_the_end_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as request:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert request.signal == number
    assert signal.getsignal(number) == before
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended, ending_in_order():
        signal.raise_signal(number)
    if isinstance(ended.value, SystemExit):
        assert ended.value.code == SIGNALLED + number
    assert isinstance(ended.value, KeyboardInterrupt) == (number == signal.SIGINT)
    assert signal.getsignal(number) == before


def test_one_that_comes_while_a_stopped_run_ends_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ending_in_order():
        with StopRequest() as request:
            signal.raise_signal(signal.SIGTERM)
            request.heeded = True
        for number in SIGNALS:  # as torchrun passes the first one on
            signal.raise_signal(number)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_hangup_that_nohup_has_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert signal.SIGHUP not in heeded_signals()
    with ending_in_order(), StopRequest() as request:
        signal.raise_signal(signal.SIGHUP)
    assert request.signal is None
