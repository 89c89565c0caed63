"""Kill the only node of a stage just after another process has joined, again and again: the others have to go on.

`python benchmarks/stress_joins.py [rounds] [--seeds 0 1 2] [--lost-stage skip] [--set KEY=VALUE ...]`, where
`skippipe[train]` is installed; 8 rounds for each seed by default. Six processes of a local run serve four stages of 3,
1, 1 and 1 nodes; messages take 50 ms. In a round, the only node of a stage is killed 0 to 2 s after the one before has
come back, often at once: while the others renew copies of stages, validate, save, or connect. The launcher starts it
again (`runtime.rejoin`), and the next round begins when it has joined. Writes out/stress_joins.json and
out/stress_joins.md, one row for each round. A run that does not go on for two minutes hangs: the stacks of its
processes are printed, and its other rounds are left out.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from output import Row, markdown, note, save
from watching import Run, until

from skippipe.train.launch.ending import ending_in_order
from skippipe.train.launch.failures import stacks_of

STAGES = [3, 1, 1, 1]
HANGS_AFTER_S = 120.0
POLICIES = ("skip", "copy")
JOB = [
    f"cluster.nodes_per_site={sum(STAGES)}", f"cluster.stage_sizes={STAGES}", "model.hidden_size=32",
    "model.intermediate_size=64", "model.num_hidden_layers=4", "model.num_attention_heads=2",
    "model.num_key_value_heads=2", "model.max_position_embeddings=64", "data.sequence=32", "data.validation_blocks=16",
    "train.microbatch_size=2", "schedule.microbatches_per_source=3", "schedule.skip_ratio=0", "schedule.max_swaps=0",
    "planner.work_limit=200", "train.iterations=1000000", "train.validate_every=5", "checkpoint.every=10",
    "train.redundancy=1", "train.redundancy_every=1", "runtime.links=emulated",
    "cluster.inside={latency_s: 0.05, bandwidth: 1e9}", "runtime.calibrate=false", "runtime.rejoin=true",
    "runtime.restarts=0",
]  # fmt: skip


def pause_s(chance: random.Random) -> float:
    """Between a join and the next loss."""
    return chance.choice([0.0, chance.uniform(0, 0.05), chance.uniform(0, 0.4), chance.uniform(0, 2)])


def kill_one(run: Run, number: int, chance: random.Random) -> Row:
    """A round: a process is lost, and comes back; what came to nothing is None."""
    recoveries, joins = run.events.count("recovered")(), run.events.count("joined")()
    alone = [(stage, *nodes) for stage, nodes in enumerate(run.events.stages()) if stage and len(nodes) == 1]
    stage, node = chance.choice(alone)
    delay_s = pause_s(chance)
    time.sleep(delay_s)
    before, began = run.events.latest(), time.monotonic()
    os.kill(run.workers[node], signal.SIGKILL)
    row: Row = {"round": number, "stage": stage, "node": node, "delay (s)": delay_s}
    recovered = until(run.events.count("recovered"), recoveries + 1, run.going_on, HANGS_AFTER_S)
    recovered_s = time.monotonic() - began
    joined = recovered and until(run.events.count("joined"), joins + 1, run.going_on, HANGS_AFTER_S)
    done = run.events.of("recovered")[recoveries]["iteration"] if recovered else None
    return row | {
        "recovered after (s)": recovered_s if recovered else None,
        "back after (s)": time.monotonic() - began if joined else None,
        "done iterations lost": None if done is None else max(before - done, 0),
    }


def rounds_of(folder: Path, seed: int, options: argparse.Namespace) -> list[Row]:
    """One run; a row for each round that it has come to."""
    settings = [*JOB, f"runtime.lost_stage={options.lost_stage}", f"train.seed={seed}", *options.set]
    run = Run(folder, sum(STAGES), settings)
    try:
        return go_through(run, folder, seed, options)
    finally:
        run.process.kill()  # its processes end with it


def go_through(run: Run, folder: Path, seed: int, options: argparse.Namespace) -> list[Row]:
    """The rounds of a run that has been started, and its end."""
    chance, rows = random.Random(seed), list[Row]()
    if not until(run.done, 3, run.going_on, HANGS_AFTER_S):
        raise RuntimeError(f"seed {seed}: the run does not begin")
    for number in range(options.rounds):
        rows.append({"seed": seed} | kill_one(run, number, chance))
        note(json.dumps(rows[-1]))
        if rows[-1]["back after (s)"] is None:
            show_stacks(run, folder)
            break
    else:
        if not until(run.done, run.done() + 2, run.going_on, HANGS_AFTER_S):
            show_stacks(run, folder)
        run.process.send_signal(signal.SIGTERM)
    if rows[-1]["back after (s)"] is None:
        run.process.kill()
    problem, losses = run.end(HANGS_AFTER_S), run.events.losses()
    unknown = sum(number not in losses for number in range(1, max(losses) + 1))
    for row in rows:
        row |= {"iterations unknown": unknown, "problem": problem}
    return rows


def show_stacks(run: Run, folder: Path) -> None:
    """Print what the processes of a run are doing."""
    alive = {rank: process for rank, process in run.workers.items() if Path(f"/proc/{process}").exists()}
    stacks = stacks_of([(process, folder / "log" / f"{rank}.txt") for rank, process in alive.items()])
    for rank, stack in zip(alive, stacks, strict=True):
        note(f"rank {rank}:\n{stack}")


def summary_of(rows: Sequence[Row]) -> str:
    """What became of all rounds."""
    lost, seeds = len(rows), {row["seed"] for row in rows}
    recovered = sum(row["recovered after (s)"] is not None for row in rows)
    back = sum(row["back after (s)"] is not None for row in rows)
    redone = sum(row["done iterations lost"] or 0 for row in rows)
    unknown = sum({row["seed"]: row["iterations unknown"] for row in rows}.values())
    failed = sorted({row["seed"] for row in rows if row["problem"]})
    return (
        f"{len(seeds)} runs, {lost} losses: {recovered} recovered, {back} back; {redone} done iterations lost, "
        f"{unknown} unknown; runs that did not end in order: {failed or 'none'}"
    )


def main() -> int:
    """Run the benchmark; the exit status is 0 if all came back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=8)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="of who is killed, and when; one run each"
    )
    parser.add_argument("--lost-stage", choices=POLICIES, default="skip", help="runtime.lost_stage")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of skippipe train")
    options = parser.parse_args()
    rows: list[Row] = []
    with ending_in_order(), tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            rows += rounds_of(Path(folder) / f"seed-{seed}", seed, options)
    summary = summary_of(rows)
    save("stress_joins", vars(options), rows, markdown(rows) + f"\n{summary}\n")
    return int(any(row["back after (s)"] is None or row["problem"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
