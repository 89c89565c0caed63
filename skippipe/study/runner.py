"""Runs steps as subprocesses, one at a time on each device, until none is left or the time limit is reached."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skippipe.errors import SIGNALLED, SUCCESS
from skippipe.study.arms import StudyStep

POLL_S = 0.2
REPORT_S = 60.0
"""between two progress reports"""
MAX_MESSAGE = 400


@dataclass(frozen=True)
class StepResult:
    """Outcome of a step's process."""

    step: StudyStep
    device: str
    how: Literal["done", "stopped", "killed", "failed"]
    """killed: it did not stop in time"""
    message: str = ""
    """last line of output of a failed one"""


@dataclass
class _Child:
    step: StudyStep
    device: str
    process: subprocess.Popen[bytes]
    log: Path
    stopping: bool = False
    killed: bool = False


@dataclass(frozen=True)
class RunnerCallbacks:
    """Callbacks on the processes."""

    started: Callable[[StudyStep, str], None]
    """a step starts on a device"""
    ended: Callable[[StepResult], None]
    running: Callable[[], None]
    """called periodically"""


class Runner:
    """Keeps every device busy."""

    def __init__(
        self,
        devices: Sequence[str],
        choose: Callable[[], StudyStep | None],
        line: Callable[[StudyStep, str], list[str]],
        log: Callable[[StudyStep], Path],
        callbacks: RunnerCallbacks,
    ) -> None:
        """Create a runner.

        Args:
            devices: a name may occur more than once.
            choose: returns the next step, each one once.
            line: builds the command line of a step on a device.
            log: file to which a step's output is appended.
            callbacks: on the processes.

        """
        self._devices, self._choose, self._line, self._log = devices, choose, line, log
        self._callbacks = callbacks
        self._children: list[_Child] = []

    def run(self, seconds: float | None, grace_s: float, stop: Callable[[], bool]) -> None:
        """Run until no step is left, the time limit is reached or `stop` returns true; leaves no process behind."""
        began = reported = time.monotonic()
        over = False
        try:
            while not over:
                self._fill()
                if not self._children:
                    return
                time.sleep(POLL_S)
                self._reap()
                now = time.monotonic()
                if now - reported >= REPORT_S:
                    reported = now
                    self._callbacks.running()
                over = stop() or (seconds is not None and now - began >= seconds)
        finally:
            self._end(grace_s)

    def _fill(self) -> None:
        """Start a step on every idle device."""
        idle = list(self._devices)
        for child in self._children:
            idle.remove(child.device)
        for device in idle:
            step = self._choose()
            if step is None:
                return
            self._callbacks.started(step, device)
            self._children.append(self._start(step, device))

    def _start(self, step: StudyStep, device: str) -> _Child:
        log = self._log(step)
        log.parent.mkdir(parents=True, exist_ok=True)
        # A new session: Ctrl-C reaches only this process, which then stops all others once.
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
        """Report processes that have ended."""
        for child in [child for child in self._children if child.process.poll() is not None]:
            self._children.remove(child)
            self._callbacks.ended(_result(child))

    def _end(self, grace_s: float) -> None:
        """Ask all processes to stop, kill those that do not, and report afterwards, so that nothing interferes."""
        for child in self._children:
            child.stopping = True
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
    """Signal a running child, or its process group."""
    if child.process.poll() is None:
        if group:
            os.killpg(child.process.pid, number)
        else:
            child.process.send_signal(number)


def _result(child: _Child) -> StepResult:
    status = child.process.returncode
    if child.killed:
        return StepResult(child.step, child.device, "killed")
    if child.stopping and status in (SUCCESS, SIGNALLED + signal.SIGTERM, -signal.SIGTERM):
        return StepResult(child.step, child.device, "stopped")
    if status == 0:
        return StepResult(child.step, child.device, "done")
    message = last_line(child.log)
    return StepResult(child.step, child.device, "failed", message or f"exit status {status} without output")


def last_line(log: Path) -> str:
    """Last non-blank line of a log."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - 16384, 0))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    return next((line.strip()[:MAX_MESSAGE] for line in reversed(lines) if line.strip()), "")
