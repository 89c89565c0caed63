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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 600.0
PARENT = "skippipe.train.launch.workers"
"""In the command line of the parent of a machine's workers."""
PROCESS = re.compile(r"rank (\d+), process (\d+)")
"""Where a run prints which process a rank is."""


def free_port() -> int:
    """A port of this machine at which nobody listens now."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
    return port


def answers(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) == 0


class Events:
    """The events of a run, read as they come; what is read once is not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: list[dict[str, Any]] = []
        self._read_to = 0
        self._reading = threading.Lock()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Those of a kind so far."""
        return [event for event in self.all() if event["event"] == kind]

    def count(self, kind: str) -> Callable[[], int]:
        """Counts those of a kind whenever it is called."""
        return lambda: len(self.of(kind))

    def losses(self) -> dict[int, float]:
        """Latest loss reported for each iteration."""
        return {event["iteration"]: event["loss"] for event in self.of("iteration")}

    def latest(self) -> int:
        """Iterations done that count: those that a restart has voided, and which are not yet done again, do not."""
        for event in reversed(self.all()):
            if event["event"] in {"attempt", "iteration"}:
                iteration: int = event["iteration"]
                return iteration
        return 0

    def stages(self) -> list[list[int]]:
        """Nodes of each stage by the plan that was adopted last, where a run has one phase; [] before the first one."""
        for event in reversed(self.all()):
            if event["event"] in {"plan", "recovered", "joined"}:
                files = event["files"]["plans"] if event["event"] == "plan" else event["plan_files"]
                stages: list[list[int]] = json.loads((self._folder / [*files.values()][-1]).read_text())["stages"]
                return stages
        return []

    def all(self) -> list[dict[str, Any]]:
        """All so far, in order."""
        path = self._folder / "metrics.jsonl"
        with self._reading:
            if path.exists():
                with path.open("rb") as file:
                    file.seek(self._read_to)
                    new = file.read()
                complete = new[: new.rfind(b"\n") + 1]
                self._read_to += len(complete)
                for line in complete.splitlines():
                    with contextlib.suppress(ValueError):  # a line that a killed process has torn
                        self._known.append(json.loads(line))
            return [*self._known]


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

    def __init__(self, node: int, port: int, folder: Path, settings: Sequence[str]) -> None:
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
        """Have the whole machine go at once and without a word, but for the rendezvous if it serves that."""
        supervisor = self.process.pid
        parents = [child for child in children(supervisor) if PARENT in command_of(child)]
        workers = [worker for parent in parents for worker in children(parent)]
        for process in [*parents, supervisor, *workers]:  # the parent first, else it would tell the others
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


def children(process: int) -> list[int]:
    """The children of a process; none if it is gone."""
    with contextlib.suppress(OSError):
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    return []


def command_of(process: int) -> str:
    """The command line of a process; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    return ""


@contextlib.contextmanager
def machines(folder: Path, settings: Sequence[Sequence[str]]) -> Iterator[list[Machine]]:
    """All machines of a run, by the settings of each."""
    port = free_port()
    running = [Machine(node, port, folder, own) for node, own in enumerate(settings)]
    try:
        yield running
    finally:
        for machine in running:
            machine.lose()


class Run:
    """A local run in a folder of its own."""

    def __init__(self, folder: Path, processes: int, settings: Sequence[str]) -> None:
        self.events = Events(folder)
        self.port = free_port()
        command = [
            sys.executable, "-m", "skippipe", "train", *settings, f"runtime.port={self.port}", f"folder={folder}",
            f"runtime.processes={processes}",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.workers: dict[int, int] = {}
        """process by rank"""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (found := PROCESS.search(line)) is not None:
                self.workers[int(found[1])] = int(found[2])

    def going_on(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def done(self) -> int:
        """How many iterations it has reported; one that is reported again after a loss counts once."""
        return len(self.events.losses())

    def end(self, patience_s: float = PATIENCE_S) -> str:
        """Wait for its end; what is wrong with it."""
        try:
            status = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join()
        orphans = [process for process in self.workers.values() if Path(f"/proc/{process}").exists()]
        problems = [f"status {status}"] if status else []
        problems += [f"processes left: {orphans}"] if orphans else []
        return "; ".join(problems + ["port left"] * answers(self.port))
