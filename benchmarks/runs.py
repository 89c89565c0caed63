"""What benchmarks share that start runs and watch their events."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 600.0
PROCESS = re.compile(r"rank (\d+), process (\d+)")
"""Where a run prints which process a rank is."""


def free_port() -> int:
    """A port of this machine at which nobody listens now."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
    return port


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Events of a run of a kind."""
    path, found = folder / "metrics.jsonl", []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):  # the last line may be torn
            event = json.loads(line)
            found += [event] if event["event"] == kind else []
    return found


def losses(folder: Path) -> dict[int, float]:
    """Latest loss reported for each iteration."""
    return {event["iteration"]: event["loss"] for event in events(folder, "iteration")}


def until(
    counted: Callable[[], int],
    count: int,
    going_on: Callable[[], bool] = lambda: True,
    patience_s: float = PATIENCE_S,
) -> bool:
    """Wait until so many are counted, as long as it is `going_on`; whether they came."""
    deadline = time.monotonic() + patience_s
    while counted() < count and going_on() and time.monotonic() < deadline:
        time.sleep(0.005)
    return counted() >= count


class Machine:
    """A `skippipe node` with one node."""

    def __init__(self, node: int, port: int, folder: Path, settings: list[str]) -> None:
        command = [
            sys.executable, "-m", "skippipe", "node", f"rendezvous=127.0.0.1:{port}", f"runtime.node=local-{node}",
            f"folder={folder}", *settings,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.workers: list[int] = []
        """processes of the node, one after the other"""
        self.knocks: list[float] = []
        """moments at which it has asked to join, by the monotonic clock"""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (found := PROCESS.search(line)) is not None:
                self.workers.append(int(found[2]))
            if "asks to join" in line:
                self.knocks.append(time.monotonic())

    def lose(self) -> None:
        """Have the whole machine go at once, its supervisor first, so that no process is started again."""
        self.process.kill()
        for worker in self.workers[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        self.process.wait()
