"""Kill processes of local runs with SIGKILL at random moments, and check that the others go on.

`python benchmarks/kills.py [kills] [--processes 8] [--seed 0] [--set KEY=VALUE ...]`, where `skippipe[train]` is
installed; 100 kills by default. Eight processes serve four stages of two nodes each; each run loses up to three of
them, that of the reporting rank too, as long as every stage has a node left. On two GPUs: `--processes 2 --set
runtime.device=cuda`. Without skips and swaps, and in float64, the loss curve does not depend on who serves the stages:
it is compared with that of a run that loses nobody. Writes out/kills.json and out/kills.md, one row for each kill.

`python benchmarks/kills.py --churn 600` makes one event every 15 s for so many seconds, without help: a machine of one
process is killed, or one that was killed comes back and joins. Each machine is a `skippipe node` on this one; the first
one, which serves the rendezvous, stays. Writes out/churn.json and out/churn.md, with the goodput: iterations that count
in a second of churn, also as a fraction of those in the quiet seconds before it.
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from output import Row, markdown, save
from runs import PROCESS, Machine, events, free_port, losses, until

TO_ACTION, DETECTION, PLANNING = "kill to next action (s)", "of which detection (s)", "of which planning (s)"
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
        self.port = free_port()
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
            if (found := PROCESS.search(line)) is not None:
                self.workers[int(found[1])] = int(found[2])

    def going_on(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def done(self) -> int:
        """How many iterations it has reported; one that is reported again after a loss counts once."""
        return len(losses(self.folder))

    def recoveries(self) -> int:
        """How often it has gone on after a loss."""
        return len(events(self.folder, "recovered"))

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
    until(run.done, 2, run.going_on, PATIENCE_S)
    stages, living = json.loads((folder / "plan.json").read_text())["stages"], set(range(options.processes))
    for number in range(kills):
        candidates = expendable(stages, living, options.processes)
        if not candidates:
            break
        rank = chance.choice(candidates)
        living.remove(rank)
        until(run.done, run.done() + 1, run.going_on, PATIENCE_S)
        time.sleep(chance.uniform(0, 1.5) * statistics.median(e["iteration_s"] for e in events(folder, "iteration")))
        before = max(losses(folder), default=0)
        os.kill(run.workers[rank], signal.SIGKILL)
        begin = time.monotonic()
        recovered = until(run.recoveries, number + 1, run.going_on, PATIENCE_S)
        waited_s = time.monotonic() - begin
        row: Row = {"rank": rank, "recovered": recovered}
        if recovered:
            event = events(folder, "recovered")[number]
            # It is reported with the first action of the next iteration, and says how long ago the loss was noticed.
            row |= {
                "iterations lost that were done": max(before - event["iteration"], 0), TO_ACTION: waited_s,
                DETECTION: max(waited_s - event["seconds"], 0.0), PLANNING: event["planning_s"],
            }  # fmt: skip
        rows.append(row)
        if not recovered:
            break
    problem = run.end()
    got = losses(folder)
    wrong = [n for n, loss in unbroken.items() if n in got and abs(got[n] - loss) > TOLERANCE * abs(loss)]
    unknown = [n for n in unbroken if n not in got]
    for row in rows:
        row |= {"losses that differ": len(wrong), "losses unknown": len(unknown), "problem": problem}
    return rows


def churn(folder: Path, options: argparse.Namespace) -> tuple[list[Row], str]:
    """One run in which machines are killed and come back; a row for each event, and a summary."""
    chance, port = random.Random(options.seed), free_port()
    endless = ["train.iterations=1000000", "checkpoint.every=null"]
    settings = [*JOB, *endless, *options.set]

    def start(node: int) -> Machine:
        return Machine(node, port, folder, settings)

    def done() -> int:
        return len(losses(folder))

    running: dict[int, Machine] = {}
    rows: list[Row] = []
    try:
        for node in range(options.processes):
            running[node] = start(node)
            if not node:
                time.sleep(options.every / 5)  # so that this one serves the rendezvous
        if not until(done, 2):
            raise TimeoutError("the run does not begin")
        before, began = done(), time.monotonic()
        time.sleep(options.every)
        quiet = (done() - before) / (time.monotonic() - began)
        before, began = done(), time.monotonic()
        while time.monotonic() - began < options.churn and running[0].process.poll() is None:
            down = [node for node in range(options.processes) if node not in running]
            stages = latest_stages(folder)
            expendable_now = [node for node in expendable(stages, set(running), options.processes) if node]
            comes = bool(down) and (not expendable_now or chance.random() < 0.5)
            node = chance.choice(down if comes else expendable_now)
            if comes:
                running[node] = start(node)
            else:
                running.pop(node).lose()
            rows.append({"at (s)": time.monotonic() - began, "event": "returns" if comes else "killed", "node": node})
            time.sleep(max(began + len(rows) * options.every - time.monotonic(), 0.0))
        goodput = (done() - before) / (time.monotonic() - began)
        alive = running[0].process.poll() is None
    finally:
        for machine in running.values():
            machine.lose()
    summary = (
        f"{len(rows)} events: {len(events(folder, 'recovered'))} recoveries, {len(events(folder, 'joined'))} joins, "
        f"{len(events(folder, 'run_ended'))} restarts; goodput {goodput:.2f} iterations/s, "
        f"{goodput / quiet if quiet else 0.0:.0%} of the {quiet:.2f} before"
    )
    return rows, summary if alive else f"{summary}; the run ended"


def latest_stages(folder: Path) -> list[list[int]]:
    """Nodes of each stage by the plan in use."""
    changes = [event for kind in ("recovered", "joined") for event in events(folder, kind)]
    latest = max(changes, key=lambda event: (event["attempt"], event["iteration"]), default=None)
    name = "plan.json" if latest is None else list(latest["plan_files"].values())[-1]
    stages: list[list[int]] = json.loads((folder / name).read_text())["stages"]
    return stages


def main() -> int:
    """Run the benchmark; the exit status is 0 if all kills were survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=100)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed, and when")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of skippipe train")
    parser.add_argument("--churn", type=float, metavar="SECONDS", help="machines come and go for so long")
    parser.add_argument("--every", type=float, default=15.0, help="seconds from one event of the churn to the next")
    options = parser.parse_args()
    if options.churn is not None:
        with tempfile.TemporaryDirectory() as folder:
            rows, summary = churn(Path(folder) / "run", options)
        save("churn", vars(options), rows, markdown(rows) + f"\n{summary}\n")
        return int(summary.endswith("ended"))
    kills: int = options.kills
    chance, rows = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as folder:
        whole = Run(Path(folder) / "unbroken", options)
        assert not whole.end(), "the run that loses nobody"
        unbroken = losses(whole.folder)
        while len(rows) < kills:
            path = Path(folder) / f"after-{len(rows)}"
            rows += kill_some(path, min(PER_RUN, kills - len(rows)), chance, unbroken, options)
    good = [row for row in rows if row["recovered"] and not row["losses that differ"] and not row["problem"]]
    summary = f"{len(good)} of {len(rows)} recovered"
    for key in (TO_ACTION, DETECTION, PLANNING):
        times = [row[key] for row in rows if row["recovered"]]
        if times:
            summary += (
                f"; {key.removesuffix(' (s)')} {statistics.median(times):.2f} s (median), {max(times):.2f} s at most"
            )
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
