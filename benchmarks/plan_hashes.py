"""Regression test of plans: hashes of the plans for fixed questions, compared with a file.

    python benchmarks/plan_hashes.py                     plan all questions; status 1 if a plan has changed
    python benchmarks/plan_hashes.py geo20               only those whose name contains the text
    python benchmarks/plan_hashes.py --write             record the current plans now

The questions go through `skippipe plan` with limits of work alone, so that plans depend on neither machine nor threads.
The hash is of what a plan decides (allocation, routes, order, times in whole nanoseconds) and of its lower bound; what
the search reports of itself is not in it. A change that is meant to leave plans alone has to leave
`plan_hashes.json` alone; one that is meant to change them records them anew.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from skippipe.cli import main as skippipe
from skippipe.files import write_text

RECORD = Path(__file__).with_suffix(".json")
SMALL = Path(__file__).parent / "small"
SITES = (f"cluster.file={Path(__file__).parent / 'two_sites.cluster.json'}", "schedule.stages=4")
DECIDED = ("strategy", "constraints", "skip_ratio", "stages", "layers", "absent_nodes", "absent_stages")


def small(name: str, *settings: str) -> list[str]:
    """One of the small instances, with its allocation, counts and rules."""
    asked = json.loads((SMALL / f"{name}.json").read_text())
    return [
        f"cluster.file={SMALL / name}.cluster.json",
        f"allocate.stages={SMALL / name}.json",
        *rules(asked),
        *settings,
    ]


def free(name: str, *settings: str) -> list[str]:
    """The cluster, counts and rules of one of the small instances; its allocation is searched, with the same sizes."""
    asked = json.loads((SMALL / f"{name}.json").read_text())
    sizes = json.dumps([len(stage) for stage in asked["stages"]])
    return [f"cluster.file={SMALL / name}.cluster.json", f"allocate.sizes={sizes}", *rules(asked), *settings]


def rules(asked: dict[str, Any]) -> list[str]:
    """Settings for the rules, the skip ratio and the counts of a small instance."""
    settings = {key: asked[key] for key in ("skip_ratio", "microbatches_per_source")} | asked["rules"]
    return [f"schedule.{key}={json.dumps(value)}" for key, value in settings.items()]


def strategy(name: str) -> str:
    """Abbreviation of a setting that most questions have."""
    return f"schedule.strategy={name}"


GIVEN = "allocate.objective=surrogate"
FREE12 = (
    "cluster=synthetic",
    "cluster.nodes=12",
    "cluster.regions=3",
    "cluster.gradient_bytes=5e7",
    "schedule.stages=4",
)
FREE8 = ("cluster=synthetic", "cluster.nodes=8", "cluster.regions=2", "cluster.gradient_bytes=5e7", "schedule.stages=3")

QUESTIONS: dict[str, tuple[int, list[str]]] = {
    # The published cluster, on the surrogate's allocation.
    "geo20 given skippipe": (480_000, [GIVEN]),
    "geo20 given skippipe seed 7, 2 threads": (480_000, [GIVEN, "planner.seed=7", "planner.threads=2"]),
    "geo20 given full": (160_000, [GIVEN, strategy("full")]),
    "geo20 given full-routed": (480_000, [GIVEN, strategy("full-routed")]),
    "geo20 given random-skip": (480_000, [GIVEN, strategy("random-skip"), "planner.seed=3"]),
    "geo20 given no-tc2": (480_000, [GIVEN, strategy("skippipe-no-tc2")]),
    "geo20 given reference rules": (480_000, [GIVEN, "schedule=reference"]),
    "geo20 given reference rules, no-tc2": (480_000, [GIVEN, "schedule=reference", strategy("skippipe-no-tc2")]),
    "geo20 given reference rules, random-skip": (480_000, [GIVEN, "schedule=reference", strategy("random-skip")]),
    "geo20 given tc1 off, two swaps": (480_000, [GIVEN, "schedule.tc1=off", "schedule.max_swaps=2"]),
    "geo20 given jump 2": (480_000, [GIVEN, "schedule.max_stage_jump=2"]),
    # Its allocation searched.
    "geo20 skippipe": (2_400_000, []),
    "geo20 skippipe seed 5, 2 threads": (2_400_000, ["planner.seed=5", "planner.threads=2"]),
    "geo20 skippipe half": (1_600_000, ["schedule.skip_ratio=0.5", "schedule.microbatches_per_source=4"]),
    "geo20 full": (1_600_000, [strategy("full")]),
    "geo20 full-routed": (2_400_000, [strategy("full-routed")]),
    "geo20 random-skip": (1_600_000, [strategy("random-skip")]),
    "geo20 no-tc2": (1_600_000, [strategy("skippipe-no-tc2")]),
    "geo20 reference rules": (1_600_000, ["schedule=reference"]),
    "geo20 gradients": (2_400_000, ["cluster.gradient_bytes=2e8"]),
    "geo20 gradients, full-routed": (2_400_000, ["cluster.gradient_bytes=2e8", strategy("full-routed")]),
    "geo20 gradients, random-skip": (1_600_000, ["cluster.gradient_bytes=2e8", strategy("random-skip")]),
    "geo20 near replicas": (1_600_000, ["allocate.max_replica_transfer_s=4.5"]),
    # Layers chosen too; sources given; unequal counts; nodes kept.
    "unequal layers": (2_400_000, [*FREE12, "allocate.layers=auto"]),
    "unequal layers, full": (1_600_000, [*FREE12, "allocate.layers=auto", strategy("full")]),
    "unequal layers, full-routed": (2_400_000, [*FREE12, "allocate.layers=auto", strategy("full-routed")]),
    "unequal layers, no-tc2": (1_600_000, [*FREE12, "allocate.layers=auto", strategy("skippipe-no-tc2")]),
    "unequal layers, sizes": (1_600_000, [*FREE12, "allocate.layers=auto", "allocate.sizes=[4,3,3,2]"]),
    "unequal sources": (1_600_000, [*FREE12, "allocate.sources=[0,5,7]", "schedule.microbatches_per_source=[3,5,2]"]),
    "unequal forbid": (1_600_000, [*FREE12, "allocate.unused=forbid", "cluster.seed=4"]),
    "unequal, no cc1": (1_600_000, [*FREE12, "schedule.cc1=false"]),
    "unequal, no cc2, no cc3": (1_600_000, [*FREE12, "schedule.cc2=false", "schedule.cc3=false"]),
    # So small that every allocation is looked at.
    "two sites": (2_000_000, [*SITES, "schedule.skip_ratio=0.25"]),
    "two sites, full": (800_000, [*SITES, "schedule.skip_ratio=0.25", strategy("full")]),
    "two sites, full-routed": (3_200_000, [*SITES, "schedule.skip_ratio=0.25", strategy("full-routed")]),
    "eight nodes": (3_200_000, [*FREE8]),
    "eight nodes, no-tc2": (800_000, [*FREE8, strategy("skippipe-no-tc2")]),
    "eight nodes, random-skip": (800_000, [*FREE8, strategy("random-skip"), "cluster.seed=2"]),
    "eight nodes, two threads": (2_400_000, [*FREE8, "planner.threads=2", "planner.seed=11", "cluster.seed=2"]),
    "local4": (1_600_000, ["cluster=local4"]),
    "six nodes, few microbatches": (1_600_000, free("held-3s-06n-04m")),
    "five clusters": (1_600_000, ["cluster=five_clusters"]),
    # Small instances with their allocations.
    "small held 4 stages": (800_000, small("held-4s-10n-08m")),
    "small held 5 stages, 2 threads": (800_000, small("held-5s-12n-08m", "planner.threads=2")),
    "small held, conflict-based": (800_000, small("held-3s-07n-05m", "planner.method=cbs")),
    "small held, within 10 %": (800_000, small("held-4s-09n-06m", "planner.method=cbs", "planner.suboptimality=1.1")),
    "small reference 4 stages": (800_000, small("reference-4s-10n-09m")),
    "small held, full-routed": (480_000, small("held-3s-09n-09m", strategy("full-routed"))),
    "small reference, tc2 off": (480_000, small("reference-5s-12n-08m", "schedule.tc2=false")),
    "small impossible": (480_000, small("held-4s-08n-06m-impossible")),
}


def answer(name: str) -> str:
    """Hash of the plan for a question, or the exit status if there is none."""
    work, settings = QUESTIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "plan.json"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = skippipe(["plan", *settings, f"planner.work_limit={work}", f"output={output}"])
        return hashed(json.loads(output.read_text())) if output.exists() else f"exit status {status}"


def hashed(plan: dict[str, Any]) -> str:
    """Hash of what a plan decides, and of its lower bound."""
    decided = {key: plan[key] for key in DECIDED}
    # Recorded before there were these two.
    unused = {"profile": None, "classes": None}.items()
    decided["constraints"] = {rule: value for rule, value in plan["constraints"].items() if (rule, value) not in unused}
    decided["microbatches_per_source"] = sorted(plan["microbatches_per_source"].items())
    decided["microbatches"] = [
        [microbatch[key] for key in ("id", "source", "nodes", "stages", "route", "wave")]
        for microbatch in plan["microbatches"]
    ]
    decided["tasks"] = [
        [task["node"], task["microbatch"], task["kind"], task["hop"], nanoseconds(task["start_s"])]
        for task in plan["tasks"]
    ]
    decided["iteration"] = nanoseconds(plan["predicted"]["iteration_s"])
    decided["bound"] = nanoseconds(plan["predicted"]["lower_bound_s"])
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:16]


def nanoseconds(seconds: float) -> int:
    """A time as the search counts it."""
    return round(seconds * 1e9)


def main() -> int:
    """Plan the questions; report changed plans, or record the new ones."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("part", nargs="?", default="", help="only questions whose name contains this")
    parser.add_argument("--write", action="store_true", help="record the current plans now")
    asked = parser.parse_args()
    names = [name for name in QUESTIONS if asked.part in name]
    known: dict[str, str] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    os.chdir(tempfile.gettempdir())  # a folder without settings
    found = {}
    for name in names:
        begun = time.process_time()
        found[name] = answer(name)
        if not asked.write and found[name] != known.get(name):
            sys.stdout.write(f"{name}: expected {known.get(name, 'no such question')}, got {found[name]}\n")
        sys.stderr.write(f"{time.process_time() - begun:6.2f} s  {found[name]}  {name}\n")
    if asked.write:
        kept = {name: (known | found)[name] for name in QUESTIONS if name in known | found}
        write_text(RECORD, json.dumps(kept, indent=1) + "\n")
        return 0
    changed = sum(found[name] != known.get(name) for name in names)
    unasked = sorted(set(known) - set(QUESTIONS))
    sys.stdout.writelines(f"{name}: is recorded, but no question\n" for name in unasked)
    sys.stdout.write(f"{len(names) - changed} of {len(names)} plans as recorded\n")
    return 1 if changed or unasked else 0


if __name__ == "__main__":
    sys.exit(main())
