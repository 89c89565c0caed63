"""What the loss of whole stages does to convergence, by policy (`runtime.lost_stage`), against an unbroken run.

`python benchmarks/lost_stages.py [--rates 0.05 0.1] [--iterations 100] [--seeds 3] [--jobs 1] [--minutes 60] [--set
KEY=VALUE ...]`, where `skippipe[train]` is installed. Six machines (`skippipe node`, one process each, all on this one)
train a small Llama in four stages of 3, 1, 1 and 1 nodes, without skips. A rate of 0.05 has one stage lost for every 20
iterations: all of its processes are killed at once, in an iteration that is drawn from the seed, as is the stage, of
those after stage 0. So runs of one seed differ in policy alone. Losses are spread over the first 85 % of them.

Each process that was killed is started again by its machine, and joins the others; the next loss waits for that. Where
the policy has another node take the stage over, that is one of stage 0, which has three for that reason. With `skip`,
the stage is served again by who joins. After a restart all are there from the beginning. Messages take 50 ms, so that
a process that starts anew is back after some ten iterations.

A run that is complete is one line of out/lost_stages.jsonl, and is not made again; after so many minutes what is not
complete is given up. Several `--jobs` at a time take a machine with five cores for each. Writes out/lost_stages.md,
with the validation loss at the end, and out/lost_stages.png.
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from output import OUT, Row, markdown, note
from watching import Events, Machine, machines, until

from skippipe.files import write_text
from skippipe.train.launch.ending import ending_in_order

UNBROKEN = "unbroken"
POLICIES: Mapping[str, Sequence[str]] = {
    UNBROKEN: [],
    "restart": ["runtime.lost_stage=restart"],
    "checkpoint": ["runtime.lost_stage=checkpoint"],
    "copy": ["runtime.lost_stage=copy", "train.redundancy=1", "train.redundancy_every=1"],
    "average": ["runtime.lost_stage=average"],
    "skip": ["runtime.lost_stage=skip", "train.redundancy=1", "train.redundancy_every=1"],
}
STAGES = [3, 1, 1, 1]
EVERY = 10
"""Iterations between checkpoints."""
JOB = [
    f"cluster.nodes_per_site={sum(STAGES)}", f"cluster.stage_sizes={STAGES}", "model.num_hidden_layers=8",
    "train.microbatch_size=4", "schedule.microbatches_per_source=4", "schedule.skip_ratio=0", "schedule.max_swaps=0",
    "planner.work_limit=200", "runtime.links=emulated", "cluster.inside={latency_s: 0.05, bandwidth: 1e9}",
    "runtime.calibrate=false", "runtime.restarts=1000", f"checkpoint.every={EVERY}",
]  # fmt: skip
LOST_WITHIN = 0.85
"""Losses are spread over this fraction of the iterations, so that every stage is served at the end."""
LOG = OUT / "lost_stages.jsonl"


@dataclass(frozen=True)
class Case:
    """A run."""

    policy: str
    rate: float
    """stages lost in an iteration, on average; 0 for the unbroken run"""
    seed: int
    iterations: int

    def losses(self) -> list[tuple[int, int]]:
        """After which iteration which stage is lost."""
        chance, count = random.Random(self.seed), round(self.rate * self.iterations)
        first, last = EVERY + 1, LOST_WITHIN * self.iterations
        places = [(number + chance.random()) / count for number in range(count)]
        return [(round(first + place * (last - first)), chance.randrange(1, len(STAGES))) for place in places]


def train(case: Case, folder: Path, options: argparse.Namespace, deadline: float) -> Row | None:
    """One run; None if it does not end in time."""
    settings = [
        *JOB, f"train.iterations={case.iterations}", f"train.seed={case.seed}",
        f"train.validate_every={max(case.iterations // 20, 1)}", *POLICIES[case.policy], *options.set,
    ]  # fmt: skip
    events, lost = Events(folder), list[list[int]]()
    with machines(folder, [settings] * sum(STAGES)) as running:

        def going_on() -> bool:
            return time.monotonic() < deadline and any(machine.process.poll() is None for machine in running)

        def all_serve() -> bool:
            return sum(map(len, events.stages())) == sum(STAGES)

        until(events.latest, 1, going_on)
        began = time.monotonic()
        for after, stage in case.losses():
            if until(events.latest, after, going_on) and until(all_serve, 1, going_on):
                lost.append([events.latest(), stage])
                lose(running, events, stage)
        until(events.count("summary"), 1, going_on)
        seconds = time.monotonic() - began
        if not events.of("summary"):
            note(f"{case}: not complete after {events.latest()} iterations")
            return None
    validations = {event["iteration"]: event["loss"] for event in events.of("validation")}
    restored = [event for kind in ("recovered", "joined") for event in events.of(kind)]
    restarts = [event for event in events.of("run_ended") if event["outcome"] == "failed"]
    return {
        "policy": case.policy, "rate": case.rate, "seed": case.seed, "iterations": case.iterations, "lost": lost,
        "restored by": [source for event in restored for source in event["restored_by"]],
        "joins": len(events.of("joined")), "restarts": len(restarts), "redone": redone(events),
        "seconds": seconds, "final": validations[case.iterations],
        "absent at the end": bool(events.of("validation")[-1].get("stages")), "validations": validations,
        "losses": events.losses(),
    }  # fmt: skip


def lose(running: Sequence[Machine], events: Events, stage: int) -> None:
    """Kill all processes of a stage at once, and wait until the others go on; their machines start them again."""
    known = len(events.all())
    for node in events.stages()[stage]:
        os.kill(running[node].workers[-1], signal.SIGKILL)
    until(lambda: any(event["event"] in {"recovered", "plan"} for event in events.all()[known:]), 1)


def redone(events: Events) -> int:
    """Iterations that were done, and done again."""
    total = latest = before = begin = 0
    for event in events.all():
        match event["event"]:
            case "attempt":
                before, begin = latest, event["iteration"]
                total, latest = total + max(before - begin, 0), begin
            case "recovered" | "joined":  # the iteration before may have been reported once more
                total -= max(min(before, event["iteration"]) - begin, 0)
                begin = max(begin, event["iteration"])
            case "iteration":
                latest = event["iteration"]
    return total


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row for each policy and rate, over the seeds."""
    shown: list[Row] = []
    unbroken = {row["seed"]: row["final"] for row in rows if row["policy"] == UNBROKEN}
    for rate, policy in sorted({(row["rate"], row["policy"]) for row in rows}):
        found = [row for row in rows if (row["rate"], row["policy"]) == (rate, policy)]
        worse = [row["final"] - unbroken[row["seed"]] for row in found if row["seed"] in unbroken]
        shown.append(
            {
                "rate": rate, "policy": policy, "seeds": len(found),
                "stages lost": sum(len(row["lost"]) for row in found),
                "restarts": sum(row["restarts"] for row in found),
                "without a stage at the end": sum(row["absent at the end"] for row in found),
                "validation loss": statistics.mean(row["final"] for row in found),
                "above unbroken": statistics.mean(worse) if worse else None,
                "from": min(worse, default=None), "to": max(worse, default=None),
                "iterations redone": statistics.mean(row["redone"] for row in found),
                "seconds": statistics.mean(row["seconds"] for row in found),
            }
        )  # fmt: skip
    return shown


def plot(rows: Sequence[Row], path: Path) -> None:
    """The unbroken runs, and how far above them the other policies are: thin lines for seeds, thick ones for means."""
    curves = {
        (row["policy"], row["rate"], row["seed"]): {int(at): loss for at, loss in row["validations"].items()}
        for row in rows
    }
    unbroken = {seed: curve for (policy, _, seed), curve in curves.items() if policy == UNBROKEN}
    rates = sorted({rate for _, rate, _ in curves} - {0.0})
    figure, axes = plt.subplots(1, 1 + len(rates), figsize=(5 * (1 + len(rates)), 4.5), squeeze=False)
    first, *others = axes[0]
    for seed, curve in sorted(unbroken.items()):
        first.plot([*curve], [*curve.values()], label=f"seed {seed}")
    first.set(xlabel="iterations", ylabel="validation loss (nats)", title="unbroken")
    first.legend()
    for rate, axis in zip(rates, others, strict=True):
        for number, policy in enumerate(policy for policy in POLICIES if policy != UNBROKEN):
            color, above = f"C{number}", list[dict[int, float]]()
            for seed, base in unbroken.items():
                curve = curves.get((policy, rate, seed), {})
                above.append({at: curve[at] - base[at] for at in sorted(curve.keys() & base.keys())})
                axis.plot([*above[-1]], [*above[-1].values()], color=color, linewidth=0.7, alpha=0.5)
            found = [curve for curve in above if curve]
            common = sorted(set.intersection(*map(set, found))) if found else []
            means = [statistics.mean(curve[at] for curve in found) for at in common]
            axis.plot(common, means, color=color, linewidth=2, label=f"{policy} ({len(found)})")
        axis.set(xlabel="iterations", ylabel="nats above unbroken", title=f"a stage lost in {rate:.0%} of iterations")
        axis.legend(title="policy (seeds)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def read_log() -> list[Row]:
    """The runs that are complete."""
    return [json.loads(line) for line in LOG.read_text().splitlines()] if LOG.exists() else []


def main() -> int:
    """Run the benchmark; the exit status is 0 if all runs are complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.1], help="stages lost in an iteration")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="then what is not complete is given up")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of skippipe node")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    OUT.mkdir(exist_ok=True)
    cases = dict.fromkeys(
        Case(policy, 0.0 if policy == UNBROKEN else rate, seed, options.iterations)
        for seed in range(options.seeds)
        for rate in options.rates
        for policy in options.policies
    )
    known = {(row["policy"], row["rate"], row["seed"], row["iterations"]) for row in read_log()}
    left = [case for case in cases if (case.policy, case.rate, case.seed, case.iterations) not in known]
    with ending_in_order(), tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as threads:

        def run(case: Case) -> None:
            if time.monotonic() > deadline:
                return
            row = train(case, Path(name) / f"{case.policy}-{case.rate}-{case.seed}", options, deadline)
            if row is not None:
                with LOG.open("a") as log:
                    log.write(json.dumps(row) + "\n")
                note(f"{case}: {row['final']:.4f} after {row['seconds']:.0f} s")

        for future in [threads.submit(run, case) for case in left]:
            future.result()
    rows = [row for row in read_log() if row["iterations"] == options.iterations]
    if rows:
        table = markdown(summary(rows))
        write_text(OUT / "lost_stages.md", table)
        sys.stdout.write(table)
        plot(rows, OUT / "lost_stages.png")
    done = {(row["policy"], row["rate"], row["seed"]) for row in rows}
    return int(any((case.policy, case.rate, case.seed) not in done for case in cases))


if __name__ == "__main__":
    sys.exit(main())
