"""Real jobs under torchrun: ranks that are killed and started again, and machines of which one is asked to stop."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from effort import cases
from train.alone import free_port
from train.jobs import TINY, prepared_text
from train.running import is_alive
from warm import Fresh

from skippipe.checkpoint import open_checkpoint

JOB = [
    *TINY, "cluster.nodes_per_site=2", "cluster.stage_sizes=[1,1]", "train.validate_every=null", "checkpoint.every=2",
    "runtime.calibrate=false", "runtime.start_timeout_s=60", "folder=run",
]  # fmt: skip
PATIENCE_S = 120.0


class Torchrun:
    """One torchrun, as on one machine; a session of its own, as a terminal makes it.

    It starts anew where its ranks look for it, as their parent that is called torchrun.
    """

    def __init__(self, folder: Path, name: str, options: list[str], *settings: str, fresh: bool = True) -> None:
        self._folder, self._fresh = folder, fresh
        self._files = [(folder / f"{name}.{kind}").open("wb") for kind in ("out", "err")]
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        self.process = (Fresh if fresh else subprocess.Popen)(
            [sys.executable, "-m", "torch.distributed.run", *options, "-m", "skippipe.train", *JOB, *settings],
            cwd=folder,
            stdout=self._files[0],
            stderr=self._files[1],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._seen: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ranks()
        for process in [self.process.pid, *self._seen]:
            if process != self.process.pid or self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.process.wait()
        for file in self._files:
            file.close()

    @property
    def out(self) -> str:
        """What it has written."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """What it has written on standard error."""
        return self._err.read_text()

    def ranks(self) -> dict[int, int]:
        """Process by rank, of those that are there."""
        found = {rank: process for process, rank in (self._children() if self._fresh else self._called())}
        self._seen |= set(found.values())
        return found

    def _children(self) -> Iterator[tuple[int, int]]:
        """What torchrun has started, each with its rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for process in map(int, children.read_text().split()) if children.exists() else ():
            rank = re.search(rb"(?:^|\0)RANK=(\d+)", Path(f"/proc/{process}/environ").read_bytes())
            if rank and is_alive(process):
                yield process, int(rank[1])

    def _called(self) -> Iterator[tuple[int, int]]:
        """The ranks that `warm.py` has started for it, which have another parent."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                name = re.fullmatch(r"rank (\d+)\n", (path / "comm").read_text())
                if name and is_alive(int(path.name)) and (path / "cwd").readlink() == self._folder:
                    yield int(path.name), int(name[1])

    def until(self, sign: Callable[[str], bool]) -> None:
        """Wait until what it has written fits."""
        deadline = time.monotonic() + PATIENCE_S
        while not sign(self.out):
            assert self.process.poll() is None, f"{self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"{self.out}\n{self.err}"
            time.sleep(0.05)

    def end(self) -> int:
        """Wait for the end; gives the exit status. No rank is left then."""
        status = self.process.wait(PATIENCE_S)
        assert not [process for process in self._seen if is_alive(process)]
        return status


def newest(run: Path) -> int:
    """Iteration of the newest complete checkpoint."""
    return open_checkpoint(run).state.iteration


def kill_and_go_on(torchrun: Torchrun, shown: Torchrun, rank: int, run: Path) -> None:
    """Kill a rank while it trains, and see that the next attempt resumes from the newest complete checkpoint."""
    shown.until(lambda out: re.search(r"^checkpoint after iteration [1-9]", out, re.MULTILINE) is not None)
    os.kill(torchrun.ranks()[rank], signal.SIGKILL)
    shown.until(lambda out: "resumed after iteration" in out)
    (resumed,) = re.findall(r"resumed after iteration (\d+) from", shown.out)
    assert 0 < int(resumed) <= newest(run)
    assert "shows how it proceeds" not in shown.out, "that is for machines where no rank reports"
    before = shown.out.split("resumed after")[0]
    assert int(resumed) >= int(re.findall(r"^checkpoint after iteration (\d+)", before, re.MULTILINE)[-1])


def iterations(run: Path) -> list[int]:
    """The iterations that are on record, in order."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["iteration"] for event in events if event["event"] == "iteration"]


def test_rank_0_is_killed_and_the_next_attempt_goes_on(tmp_path: Path) -> None:
    options = ["--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    settings = ["train.iterations=40", "runtime.node=local-${oc.env:RANK}", f"data.prepared={prepared_text()}"]
    with Torchrun(tmp_path, "one", options, *settings, fresh=False) as torchrun:
        kill_and_go_on(torchrun, torchrun, 0, tmp_path / "run")
        assert torchrun.end() == 0, torchrun.err
    assert newest(tmp_path / "run") == 40
    done = iterations(tmp_path / "run")
    begun_again = done.index(1) + next(n for n in range(1, len(done)) if done[n] <= done[n - 1])
    assert done[:begun_again] == list(range(1, begun_again + 1))
    assert done[begun_again:] == list(range(done[begun_again], 41))


def test_two_machines_of_which_one_is_asked_to_stop(tmp_path: Path) -> None:
    """In a thorough run, after a rank of it was killed."""
    port = free_port()
    options = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--max-restarts=1",
        "--master-addr=127.0.0.1",
        f"--master-port={port}",
    ]
    settings = ["train.iterations=100000"]
    with (
        Torchrun(tmp_path, "a", [*options, "--node-rank=0"], *settings, "runtime.node=local-0") as a,
        Torchrun(tmp_path, "b", [*options, "--node-rank=1"], *settings, "runtime.node=local-1", fresh=False) as b,
    ):
        if cases(True, False):
            kill_and_go_on(b, a, 1, tmp_path / "run")
            a.until(lambda out: "iteration" in out.split("resumed after")[1].split("\n", 1)[1])
        else:
            a.until(lambda out: re.search(r"^checkpoint after iteration [1-9]", out, re.MULTILINE) is not None)
        a.ranks()
        # Ctrl-C at the machine that does not serve the rendezvous: that of the other one used to wait for five minutes.
        b.ranks()
        os.killpg(b.process.pid, signal.SIGINT)
        for torchrun in (b, a):
            assert torchrun.process.wait(60) != 0
            torchrun.end()
        (stopped,) = re.findall(r"stopped on request after iteration (\d+)", a.out)
        assert newest(tmp_path / "run") == int(stopped) == iterations(tmp_path / "run")[-1]
        end = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        assert (end["event"], end["outcome"], end["signal"]) == ("run_ended", "stopped", "SIGINT"), "that of the other"
        with socket.socket() as door:  # so the same command can go on
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(("127.0.0.1", port))
