"""When the actions of an iteration run: by the clock of the host, or by events of a GPU, which runs behind the host."""

import time
from collections.abc import Callable
from typing import Protocol

import torch

LEAST_PAUSE_S, MOST_PAUSE_S = 2e-5, 1e-3
"""Between two looks at a GPU that is behind, at first and after a while."""


class Timeline(Protocol):
    """The ends of an iteration's actions, one after the other."""

    def begin(self) -> None:
        """Begin an iteration."""

    def mark(self) -> None:
        """Mark the end of the next action: everything that the host has issued so far."""

    def passed(self) -> int:
        """How many marks the device has passed."""

    def ends(self) -> list[float]:
        """Seconds from the beginning to each mark passed."""

    def wait(self, timeout_s: float) -> None:
        """Wait until the device has passed all marks.

        Raises:
            TimeoutError: it has passed none for `timeout_s` seconds.

        """


class HostTimeline:
    """Actions that are done when the host has issued them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Take a clock: seconds, from any origin."""
        self._clock = clock
        self._began_at, self._ends = 0.0, list[float]()

    def begin(self) -> None:
        """Begin; see `Timeline`."""
        self._ends = []
        self._began_at = self._clock()

    def mark(self) -> None:
        """Mark; see `Timeline`."""
        self._ends.append(self._clock() - self._began_at)

    def passed(self) -> int:
        """Count; see `Timeline`."""
        return len(self._ends)

    def ends(self) -> list[float]:
        """Read; see `Timeline`."""
        return self._ends

    def wait(self, timeout_s: float) -> None:
        """Return at once; see `Timeline`."""


class CudaTimeline:
    """Actions that are done when the GPU has reached an event on the stream on which stages compute."""

    def __init__(self, device: torch.device) -> None:
        """Take a GPU."""
        self._device = device
        self._events: list[torch.cuda.Event] = []
        """the beginning and the marks; kept from iteration to iteration"""
        self._used = self._reached = 0

    def begin(self) -> None:
        """Begin; see `Timeline`."""
        self._used = self._reached = 0
        self._record()

    def mark(self) -> None:
        """Mark; see `Timeline`."""
        self._record()

    def passed(self) -> int:
        """Count; see `Timeline`."""
        while self._reached < self._used and self._events[self._reached].query():  # type: ignore[no-untyped-call]
            self._reached += 1
        return max(self._reached - 1, 0)

    def ends(self) -> list[float]:
        """Read; see `Timeline`."""
        begin = self._events[0]
        return [begin.elapsed_time(event) / 1e3 for event in self._events[1 : self.passed() + 1]]

    def wait(self, timeout_s: float) -> None:
        """Wait; see `Timeline`."""
        marks = self._used - 1
        passed, pause_s = self.passed(), LEAST_PAUSE_S
        deadline = time.monotonic() + timeout_s
        while passed < marks:
            if time.monotonic() > deadline:
                raise TimeoutError(f"timed out after {timeout_s:g} s")
            time.sleep(pause_s)
            before, passed = passed, self.passed()
            if passed > before:
                deadline, pause_s = time.monotonic() + timeout_s, LEAST_PAUSE_S
            else:
                pause_s = min(1.2 * pause_s, MOST_PAUSE_S)

    def _record(self) -> None:
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._events[self._used].record(torch.cuda.current_stream(self._device))
        self._used += 1


def timeline_of(device: torch.device) -> Timeline:
    """The timeline of a device."""
    return CudaTimeline(device) if device.type == "cuda" else HostTimeline()
