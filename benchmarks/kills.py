"""Kill processes of local runs with SIGKILL at random moments, and check that the others go on.

`python benchmarks/kills.py [kills] [--processes 8] [--seed 0] [--set KEY=VALUE ...]`, where `skippipe[train]` is
installed; 100 kills by default. Eight processes serve four stages of two nodes each; each run loses up to three of
them, that of the reporting rank too, as long as every stage has a node left. On two GPUs: `--processes 2 --set
runtime.device=cuda`. Without skips and swaps, and in float64, the loss curve does not depend on who serves the stages:
it is compared with that of a run that loses nobody. Writes out/kills.json and out/kills.md, one row for each kill.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from output import Row, markdown, save

PER_RUN, PER_KILL = 3, 6
"""Kills of a run, and iterations for each of them."""
ITERATIONS = PER_RUN * PER_KILL
TOLERANCE = 1e-9
PATIENCE_S = 300.0
JOB = [
    "cluster.nodes_per_site=8", "cluster.stage_sizes=[2,2,2,2]", "schedule.microbatches_per_source=3",
    "schedule.skip_ratio=0", "schedule.max_swaps=0", "planner.work_limit=200", "train.dtype=float64",
    f"train.iterations={ITERATIONS}", "train.validate_every=null", "checkpoint.every=4", "runtime.calibrate=false",
    "runtime.restarts=0",
]  # fmt: skip


class Run:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            self.port = door.getsockname()[1]
        command = [
            sys.executable, "-m", "skippipe", "train", *JOB, f"runtime.port={self.port}", f"folder={folder}",
            f"runtime.processes={options.processes}", *options.set,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.workers: dict[int, int] = {}
        """process by rank"""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (found := re.search(r"rank (\d+), process (\d+)", line)) is not None:
                self.workers[int(found[1])] = int(found[2])

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Its events of a kind."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        with contextlib.suppress(ValueError):  # the last line may be torn
            return [event for event in map(json.loads, lines) if event["event"] == kind]
        return self.events(kind)

    def losses(self) -> dict[int, float]:
        """Latest loss reported for each iteration."""
        return {event["iteration"]: event["loss"] for event in self.events("iteration")}

    def until(self, counted: Callable[[], int], count: int) -> bool:
        """Wait until so many are counted; whether they came."""
        deadline = time.monotonic() + PATIENCE_S
        while counted() < count and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return counted() >= count

    def done(self) -> int:
        """How many iterations it has reported; one that is reported again after a loss counts once."""
        return len(self.losses())

    def recoveries(self) -> int:
        """How often it has gone on after a loss."""
        return len(self.events("recovered"))

    def end(self) -> str:
        """Wait for its end; what is wrong with it."""
        try:
            status = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join()
        orphans = [process for process in self.workers.values() if Path(f"/proc/{process}").exists()]
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port_left = door.connect_ex(("127.0.0.1", self.port)) == 0
        problems = [f"status {status}"] if status else []
        problems += [f"processes left: {orphans}"] if orphans else []
        return "; ".join(problems + ["port left"] * port_left)


def expendable(stages: list[list[int]], living: set[int], processes: int) -> list[int]:
    """Ranks without which every stage has a node left; rank r serves the nodes r, r + processes, ..."""
    serving = [{node % processes for node in nodes} & living for nodes in stages]
    return [rank for rank in sorted(living) if all(ranks - {rank} for ranks in serving)]


def kill_some(
    folder: Path, kills: int, chance: random.Random, unbroken: dict[int, float], options: argparse.Namespace
) -> list[Row]:
    """One run with some kills, as many as there can be; a row for each."""
    run, rows = Run(folder, options), list[Row]()
    run.until(run.done, 2)
    stages, living = json.loads((folder / "plan.json").read_text())["stages"], set(range(options.processes))
    for number in range(kills):
        candidates = expendable(stages, living, options.processes)
        if not candidates:
            break
        rank = chance.choice(candidates)
        living.remove(rank)
        run.until(run.done, run.done() + 1)
        time.sleep(chance.uniform(0, 1.5) * statistics.median(e["iteration_s"] for e in run.events("iteration")))
        before = max(run.losses(), default=0)
        os.kill(run.workers[rank], signal.SIGKILL)
        begin = time.monotonic()
        recovered = run.until(run.recoveries, number + 1)
        waited_s = time.monotonic() - begin
        row: Row = {"rank": rank, "recovered": recovered}
        if recovered:
            event = run.events("recovered")[number]
            row |= {
                "iterations lost that were done": max(before - event["iteration"], 0), "kill to new plan (s)": waited_s,
                "of which planning (s)": event["planning_s"], "of which after the notice (s)": event["seconds"],
            }  # fmt: skip
        rows.append(row)
        if not recovered:
            break
    problem = run.end()
    got = run.losses()
    wrong = [n for n, loss in unbroken.items() if n in got and abs(got[n] - loss) > TOLERANCE * abs(loss)]
    unknown = [n for n in unbroken if n not in got]
    for row in rows:
        row |= {"losses that differ": len(wrong), "losses unknown": len(unknown), "problem": problem}
    return rows


def main() -> int:
    """Run the benchmark; the exit status is 0 if all kills were survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=100)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed, and when")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of skippipe train")
    options = parser.parse_args()
    kills: int = options.kills
    chance, rows = random.Random(options.seed), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        whole = Run(Path(folder) / "unbroken", options)
        assert not whole.end(), "the run that loses nobody"
        unbroken = whole.losses()
        while len(rows) < kills:
            path = Path(folder) / f"after-{len(rows)}"
            rows += kill_some(path, min(PER_RUN, kills - len(rows)), chance, unbroken, options)
    good = [row for row in rows if row["recovered"] and not row["losses that differ"] and not row["problem"]]
    times = [row["kill to new plan (s)"] for row in rows if row["recovered"]]
    summary = f"{len(good)} of {len(rows)} recovered"
    if times:
        summary += f"; from kill to new plan {statistics.median(times):.2f} s (median), {max(times):.2f} s at most"
    keys = list(dict.fromkeys(key for row in rows for key in row))
    save(
        "kills",
        vars(options),
        rows,
        markdown([{key: row.get(key) for key in keys} for row in rows]) + f"\n{summary}\n",
    )
    return 0 if len(good) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
