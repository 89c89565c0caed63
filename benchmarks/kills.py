"""Kill processes of local runs with SIGKILL at random moments, and check that the others go on.

`python benchmarks/kills.py [kills] [--processes 8] [--seed 0] [--set KEY=VALUE ...]`, where `skippipe[train]` is
installed; 100 kills by default. Eight processes serve four stages of two nodes each; each run loses up to three of
them, that of the reporting rank too, as long as every stage has a node left. On two GPUs: `--processes 2 --set
runtime.device=cuda`. Without skips and swaps, and in float64, the loss curve does not depend on who serves the stages:
it is compared with that of a run that loses nobody. Writes out/kills.json and out/kills.md, one row for each kill.

`python benchmarks/kills.py --churn 600` has machines come and go, one event every 15 s: one is lost with all
of its processes, or one that was lost comes back by the same command and joins. Each is a `skippipe node` with one
node, on this machine; only the process that serves the rendezvous is never lost. Nobody helps those that train. Losses
are noticed by the others as silence, for two heartbeats of 2 s here. Writes out/churn.json and out/churn.md, with the
iterations that are kept in a second of churn, also as a fraction of those in the undisturbed time before.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from output import Row, markdown, save
from watching import PATIENCE_S, Events, Machine, Run, answers, free_port, until

from skippipe.train.launch.ending import ending_in_order

TO_ACTION, DETECTION, PLANNING = "kill to next action (s)", "of which detection (s)", "of which planning (s)"
PER_RUN, PER_KILL = 3, 6
"""Kills of a run, and iterations for each of them."""
ITERATIONS = PER_RUN * PER_KILL
TOLERANCE = 1e-9
JOB = [
    "cluster.nodes_per_site=8", "cluster.stage_sizes=[2,2,2,2]", "schedule.microbatches_per_source=3",
    "schedule.skip_ratio=0", "schedule.max_swaps=0", "planner.work_limit=200", "train.dtype=float64",
    f"train.iterations={ITERATIONS}", "train.validate_every=null", "checkpoint.every=4", "runtime.calibrate=false",
    "runtime.restarts=0",
]  # fmt: skip
CHURN = ["train.iterations=1000000", "checkpoint.every=100", "runtime.heartbeat_s=2"]


def expendable(stages: list[list[int]], living: set[int], processes: int) -> list[int]:
    """Ranks without which every stage has a node left; rank r serves the nodes r, r + processes, ..."""
    serving = [{node % processes for node in nodes} & living for nodes in stages]
    return [rank for rank in sorted(living) if all(ranks - {rank} for ranks in serving)]


def kill_some(
    folder: Path, kills: int, chance: random.Random, unbroken: dict[int, float], options: argparse.Namespace
) -> list[Row]:
    """One run with some kills, as many as there can be; a row for each."""
    run, rows = Run(folder, options.processes, [*JOB, *options.set]), list[Row]()
    until(run.done, 2, run.going_on)
    stages, living = json.loads((folder / "plan.json").read_text())["stages"], set(range(options.processes))
    for number in range(kills):
        candidates = expendable(stages, living, options.processes)
        if not candidates:
            break
        rank = chance.choice(candidates)
        living.remove(rank)
        until(run.done, run.done() + 1, run.going_on)
        time.sleep(chance.uniform(0, 1.5) * statistics.median(e["iteration_s"] for e in run.events.of("iteration")))
        before = run.events.latest()
        os.kill(run.workers[rank], signal.SIGKILL)
        begin = time.monotonic()
        recovered = until(run.events.count("recovered"), number + 1, run.going_on)
        waited_s = time.monotonic() - begin
        row: Row = {"rank": rank, "recovered": recovered}
        if recovered:
            event = run.events.of("recovered")[number]
            # It is reported with the first action of the next iteration, and says how long ago the loss was noticed.
            row |= {
                "iterations lost that were done": max(before - event["iteration"], 0), TO_ACTION: waited_s,
                DETECTION: max(waited_s - event["seconds"], 0.0), PLANNING: event["planning_s"],
            }  # fmt: skip
        rows.append(row)
        if not recovered:
            break
    problem = run.end()
    got = run.events.losses()
    wrong = [n for n, loss in unbroken.items() if n in got and abs(got[n] - loss) > TOLERANCE * abs(loss)]
    unknown = [n for n in unbroken if n not in got]
    for row in rows:
        row |= {"losses that differ": len(wrong), "losses unknown": len(unknown), "problem": problem}
    return rows


class Churn:
    """A run whose machines are lost and come back, without help for those that stay."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._port, self._every_s = folder, free_port(), options.every
        self._events, self._chance = Events(folder), random.Random(options.seed)
        self._settings = [*JOB, *CHURN, *options.set, f"runtime.restarts={options.churn}"]
        self._nodes = range(options.processes)
        self._running: dict[int, Machine] = {}
        self._rows: list[Row] = []
        self._ended: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self._running.values():
            machine.lose()
        deadline = time.monotonic() + PATIENCE_S
        while answers(self._port) and time.monotonic() < deadline:  # the rendezvous ends when nobody needs it
            time.sleep(0.1)

    def begin(self) -> None:
        """Start all machines, and wait until they train."""
        for node in self._nodes:
            self._start(node)
            while not answers(self._port):  # the first one serves the rendezvous, in a process that is never lost
                time.sleep(0.05)
        if not until(self._events.count("iteration"), 3, lambda: not self._that_ended()):
            raise RuntimeError(f"the run does not begin; {self._that_ended()}")

    def rate(self, seconds: float) -> float:
        """Iterations a second, while nothing happens for so long."""
        before, began = self._events.latest(), time.monotonic()
        time.sleep(seconds)
        return (self._events.latest() - before) / (time.monotonic() - began)

    def rate_of_churn(self, seconds: float) -> float:
        """Iterations a second that count, while one machine after the other is lost or returns."""
        before, began = self._events.latest(), time.monotonic()
        while time.monotonic() < began + seconds and self._running:
            deadline = time.monotonic() + self._every_s
            self._rows.append({"at (s)": time.monotonic() - began} | self._change(deadline))
            time.sleep(max(deadline - time.monotonic(), 0.0))
            self._rows[-1]["iterations kept"] = self._events.latest() - before
            for node in self._that_ended():
                self._ended.append(f"node {node} (status {self._running.pop(node).process.returncode})")
        return (self._events.latest() - before) / (time.monotonic() - began)

    def outcome(self, quiet: float, churned: float) -> tuple[list[Row], str]:
        """A row for each event, and a summary."""
        counts = {kind: self._events.count(kind)() for kind in ("recovered", "joined")}
        restarts = sum(event["outcome"] == "failed" for event in self._events.of("run_ended"))
        ended = f"; ended by themselves: {', '.join(self._ended)}" if self._ended else ""
        return self._rows, (
            f"{len(self._rows)} events, {counts['recovered']} recoveries, {counts['joined']} joins, {restarts} restarts"
            f"{ended}; {churned:.3f} iterations/s kept, {churned / quiet:.1%} of {quiet:.3f} undisturbed"
        )

    def _change(self, deadline: float) -> Row:
        """Have one machine go or come, and wait for the others to go on, at most until a moment."""
        down = [node for node in self._nodes if node not in self._running]
        can_go = expendable(self._events.stages(), set(self._running), len(self._nodes))
        comes = bool(down) and (not can_go or self._chance.random() < len(down) / len(self._nodes))
        node, kind = self._chance.choice(down if comes else can_go), "joined" if comes else "recovered"
        known, began = self._events.count(kind)(), time.monotonic()
        if comes:
            self._start(node)
        else:
            self._running.pop(node).lose()
        all_know = until(self._events.count(kind), known + 1, patience_s=deadline - began)
        after_s = time.monotonic() - began if all_know else None
        return {
            "event": "returns" if comes else "is lost",
            "node": node,
            "in the plan, or out of it, after (s)": after_s,
        }

    def _start(self, node: int) -> None:
        self._running[node] = Machine(node, self._port, self._folder, self._settings)

    def _that_ended(self) -> list[int]:
        return [node for node, machine in self._running.items() if machine.process.poll() is not None]


def main() -> int:
    """Run the benchmark; the exit status is 0 if all kills were survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=100)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed, and when")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of skippipe train or node")
    parser.add_argument("--churn", type=int, metavar="SECONDS", help="machines come and go for so long")
    parser.add_argument("--every", type=float, default=15.0, help="seconds from one event of the churn to the next")
    parser.add_argument("--quiet", type=float, default=60.0, help="undisturbed seconds before the churn")
    options = parser.parse_args()
    with ending_in_order(), tempfile.TemporaryDirectory() as folder:
        return kill_and_go_on(Path(folder), options) if options.churn is None else come_and_go(Path(folder), options)


def come_and_go(folder: Path, options: argparse.Namespace) -> int:
    """The churn; the exit status is 0 if no machine has ended by itself."""
    with Churn(folder / "run", options) as churn:
        churn.begin()
        quiet = churn.rate(options.quiet)
        rows, summary = churn.outcome(quiet, churn.rate_of_churn(options.churn))
    save("churn", vars(options), rows, markdown(rows) + f"\n{summary}\n")
    return int("by themselves" in summary)


def kill_and_go_on(folder: Path, options: argparse.Namespace) -> int:
    """So many kills; the exit status is 0 if all were survived."""
    kills: int = options.kills
    chance, rows = random.Random(options.seed), list[Row]()
    whole = Run(folder / "unbroken", options.processes, [*JOB, *options.set])
    assert not whole.end(), "the run that loses nobody"
    unbroken = whole.events.losses()
    while len(rows) < kills:
        rows += kill_some(folder / f"after-{len(rows)}", min(PER_RUN, kills - len(rows)), chance, unbroken, options)
    good = [row for row in rows if row["recovered"] and not row["losses that differ"] and not row["problem"]]
    summary = f"{len(good)} of {len(rows)} recovered"
    for key in (TO_ACTION, DETECTION, PLANNING):
        times = [row[key] for row in rows if row["recovered"]]
        if times:
            name = key.removesuffix(" (s)")
            summary += f"; {name} {statistics.median(times):.2f} s (median), {max(times):.2f} s at most"
    keys = list(dict.fromkeys(key for row in rows for key in row))
    shown = markdown([{key: row.get(key) for key in keys} for row in rows])
    save("kills", vars(options), rows, shown + f"\n{summary}\n")
    return int(len(good) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
