"""Kill a machine of a run, have it come back, again and again, and measure what its joining costs the others.

`python benchmarks/joins.py [joins] [--stages 2 2] [--gpus] [--set KEY=VALUE ...]`, where `skippipe[train]` is
installed; 6 joins by default. Several `skippipe node` on this machine, each with one node and with `--gpus` each with a
GPU, serve stages of so many nodes; the process of the last one is killed, and its supervisor starts it again. Writes
out/joins.json and out/joins.md, one row for each join: seconds from the knock to the first action of the next
iteration, which include the rest of the iteration in which it came, and those in which training was interrupted, with
those for the new plan and for moving weights apart. Without skips and swaps, and in float64, losses do not depend on
who takes part: they are compared with those of a run that loses nobody.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from output import Row, markdown, save
from watching import PATIENCE_S, Events, Machine, machines, until

TOLERANCE = 1e-9
JOB = [
    "schedule.microbatches_per_source=3", "schedule.skip_ratio=0", "schedule.max_swaps=0", "planner.work_limit=200",
    "train.dtype=float64", "train.validate_every=null", "train.iterations=1000000", "runtime.calibrate=false",
    "checkpoint.enabled=false",
]  # fmt: skip


def settings_of_all(options: argparse.Namespace, *more: str) -> list[list[str]]:
    """The settings of each machine of a run."""
    nodes = sum(options.stages)
    common = [*JOB, f"cluster.nodes_per_site={nodes}", f"cluster.stage_sizes={options.stages}", *options.set, *more]
    return [[*common, *([f"runtime.device=cuda:{node}"] if options.gpus else [])] for node in range(nodes)]


def await_event(events: Events, kind: str, count: int) -> dict[str, Any]:
    """Wait for so many events of a kind; gives the last one."""
    if not until(events.count(kind), count):
        raise TimeoutError(kind)
    return events.of(kind)[count - 1]


def stop(running: list[Machine]) -> None:
    """Have a run stop after its iteration."""
    running[0].process.send_signal(signal.SIGTERM)
    statuses = [machine.process.wait(PATIENCE_S) for machine in running]
    assert not any(statuses), statuses


def join_again_and_again(folder: Path, options: argparse.Namespace) -> list[Row]:
    """One run, whose last machine comes back so many times; a row for each."""
    rows, events = list[Row](), Events(folder)
    with machines(folder, settings_of_all(options, f"runtime.restarts={options.joins}")) as running:
        coming = running[-1]
        for number in range(options.joins):
            await_event(events, "iteration", events.count("iteration")() + 2)
            os.kill(coming.workers[-1], signal.SIGKILL)
            await_event(events, "recovered", number + 1)
            event = await_event(events, "joined", number + 1)
            row: Row = {
                "stage": event["stages"][0], "knock to next iteration (s)": time.monotonic() - coming.knocks[number],
                "interrupted (s)": event["seconds"], "of which planning (s)": event["planning_s"],
                "of which moving (s)": event["moving_s"],
            }  # fmt: skip
            rows.append(row)
        stop(running)
    return rows


def main() -> int:
    """Run the benchmark; the exit status is 0 if no loss differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("joins", type=int, nargs="?", default=6)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 2], help="nodes of each stage")
    parser.add_argument("--gpus", action="store_true", help="node n computes on GPU n")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of skippipe node")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        broken, whole = Path(name) / "broken", Path(name) / "whole"
        rows = join_again_and_again(broken, options)
        got = Events(broken).losses()
        with machines(whole, settings_of_all(options)) as running:
            await_event(Events(whole), "iteration", max(got))
            stop(running)
        expected = Events(whole).losses()
    wrong = [n for n, loss in got.items() if abs(expected[n] - loss) > TOLERANCE * abs(loss)]
    unknown = [n for n in range(1, max(got) + 1) if n not in got]
    summary = f"{len(rows)} joins; {len(wrong)} of {len(got)} losses differ, {len(unknown)} unknown; medians: "
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0] if key.endswith("(s)")}
    summary += ", ".join(f"{key} {value:.3f}" for key, value in medians.items())
    save("joins", vars(options), rows, markdown(rows) + f"\n{summary}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
