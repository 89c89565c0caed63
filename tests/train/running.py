"""A real `skippipe train` or `skippipe node` with processes of its own, watched line by line."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from train.jobs import TINY, prepared_text
from warm import Fresh


class Running:
    """One command line at work; knows the processes that it has said it started, and their parent."""

    def __init__(self, folder: Path, *arguments: str, command: str = "train", fresh: bool = False) -> None:
        self.folder, self.arguments = folder, arguments
        start = Fresh if fresh else subprocess.Popen
        line = [sys.executable, "-m", "skippipe", command, *TINY, f"data.prepared={prepared_text()}", "folder=run"]
        self.process = start(
            [*line, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.workers: dict[int, int] = {}
        """process by rank"""
        self.parent: int | None = None
        self.lines: list[str] = []

    def until(self, sign: Callable[[str], bool]) -> None:
        """Read lines until one fits."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"rank (\d+), process (\d+)", line)
            if found:
                self.workers[int(found[1])] = int(found[2])
                self.parent = self.parent or parent_of(int(found[2]))
            if sign(line):
                return
        raise AssertionError(f"never came: {''.join(self.lines)} {self.process.communicate()[1]}")

    def started(self, ranks: int = 4) -> None:
        """Read until all workers have been started."""
        self.until(lambda _: len(self.workers) == ranks)

    def end(self, within_s: float) -> tuple[int, str]:
        """Exit status and standard error; fails where it takes longer or a process is left."""
        begin = time.monotonic()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        too_late = threading.Timer(within_s, self.process.kill)
        too_late.start()
        # Not by `communicate`, which would lose what `until` has read ahead.
        self.lines += self.process.stdout.readlines()
        err = self.process.stderr.read()
        status = self.process.wait()
        too_late.cancel()
        self.close()
        assert time.monotonic() < begin + within_s, f"still there after {within_s} s: {''.join(self.lines)} {err}"
        self.none_left(begin + within_s)
        return status, err

    def none_left(self, deadline: float) -> None:
        """Wait until workers, their parent and whatever else it has started are gone."""
        left = self._known()
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = self._known()
        assert not left, f"still there: {left}"

    def _known(self) -> list[int]:
        """Processes that are alive; the parent begins a session."""
        known = [process for process in (*self.workers.values(), self.parent) if process and is_alive(process)]
        return known + ([] if self.parent is None else of_session(self.parent))

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def parent_of(process: int) -> int | None:
    """Number of a process's parent."""
    try:
        return int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[1])  # type: ignore[index]
    except FileNotFoundError:
        return None


def of_session(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(path.name)) == session and is_alive(int(path.name)):
                found.append(int(path.name))
    return found


def children_of(process: int) -> list[int]:
    """Children of a process."""
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def is_alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def signal_to(process: int, number: int) -> None:
    """Send a signal to a process of this test's own."""
    os.kill(process, number)
