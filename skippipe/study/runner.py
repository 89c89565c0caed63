"""Runs steps as processes of their own, one at a time on each device, until none is left or the time is over."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skippipe.errors import SIGNALLED, SUCCESS
from skippipe.study.arms import Step

POLL_S = 0.2
REPORT_S = 60.0
"""between two looks at what is running"""
MAX_MESSAGE = 400


@dataclass(frozen=True)
class StepResult:
    """How a step's process came to its end."""

    step: Step
    device: str
    how: Literal["done", "stopped", "killed", "failed"]
    """killed: it did not end in time when it was asked to"""
    message: str = ""
    """of one that failed: the last thing that it said"""


@dataclass
class _Child:
    step: Step
    device: str
    process: subprocess.Popen[bytes]
    log: Path
    asked: bool = False
    killed: bool = False


@dataclass(frozen=True)
class RunnerCallbacks:
    """What is told of the processes."""

    began: Callable[[Step, str], None]
    """a step begins on a device"""
    ended: Callable[[StepResult], None]
    running: Callable[[], None]
    """called now and then"""


class Runner:
    """Keeps every device busy."""

    def __init__(
        self,
        devices: Sequence[str],
        choose: Callable[[], Step | None],
        line: Callable[[Step, str], list[str]],
        log: Callable[[Step], Path],
        watch: RunnerCallbacks,
    ) -> None:
        """Prepare to run.

        Args:
            devices: a name may stand there more than once.
            choose: gives the next step; it is never asked for the same one again.
            line: makes the command line of a step on a device.
            log: where a step's output goes; what is there stays.
            watch: is told.

        """
        self._devices, self._choose, self._line, self._log, self._watch = devices, choose, line, log, watch
        self._children: list[_Child] = []

    def run(self, seconds: float | None, grace_s: float, stop: Callable[[], bool]) -> None:
        """Run until nothing is left to choose, time is over, or `stop` says so; no process is left then."""
        began = told = time.monotonic()
        over = False
        try:
            while not over:
                self._fill()
                if not self._children:
                    return
                time.sleep(POLL_S)
                self._reap()
                now = time.monotonic()
                if now - told >= REPORT_S:
                    told = now
                    self._watch.running()
                over = stop() or (seconds is not None and now - began >= seconds)
        finally:
            self._end(grace_s)

    def _fill(self) -> None:
        """Begin something on every idle device."""
        idle = list(self._devices)
        for child in self._children:
            idle.remove(child.device)
        for device in idle:
            step = self._choose()
            if step is None:
                return
            self._watch.began(step, device)
            self._children.append(self._start(step, device))

    def _start(self, step: Step, device: str) -> _Child:
        log = self._log(step)
        log.parent.mkdir(parents=True, exist_ok=True)
        # A session of its own: Ctrl-C comes to this process alone, which then asks all to end, once.
        with log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603 - a command line of our own
                self._line(step, device),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _Child(step, device, process, log)

    def _reap(self) -> None:
        """Take leave of processes that have ended."""
        for child in [child for child in self._children if child.process.poll() is not None]:
            self._children.remove(child)
            self._watch.ended(_ended(child))

    def _end(self, grace_s: float) -> None:
        """Ask all processes to end, kill those that do not, and only then tell: nothing may come in between."""
        for child in self._children:
            child.asked = True
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while any(child.process.poll() is None for child in self._children) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for child in self._children:
            child.killed = child.process.poll() is None
            _signal(child, signal.SIGKILL, group=True)
            child.process.wait()
        self._reap()


def _signal(child: _Child, number: signal.Signals, *, group: bool = False) -> None:
    """Send a signal to a process that we started and that is not gone, or to it and those that it has started."""
    if child.process.poll() is None:
        if group:
            os.killpg(child.process.pid, number)
        else:
            child.process.send_signal(number)


def _ended(child: _Child) -> StepResult:
    status = child.process.returncode
    if child.killed:
        return StepResult(child.step, child.device, "killed")
    if child.asked and status in (SUCCESS, SIGNALLED + signal.SIGTERM, -signal.SIGTERM):
        return StepResult(child.step, child.device, "stopped")
    if status == 0:
        return StepResult(child.step, child.device, "done")
    said = last_line(child.log)
    return StepResult(child.step, child.device, "failed", said or f"ended with status {status} and said nothing")


def last_line(log: Path) -> str:
    """The last line of a log that is not blank."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - 16384, 0))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    return next((line.strip()[:MAX_MESSAGE] for line in reversed(lines) if line.strip()), "")
