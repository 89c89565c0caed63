"""Kill a training repeatedly, during training and saving, and check that its losses are the same.

`python benchmarks/resume.py [kills]`, where `skippipe[train]` is installed; 20 kills by default. Each run resumes from
the latest complete checkpoint. Prints where each kill happened, whether it left a partial checkpoint, how long training
was blocked for checkpoints, and whether all losses equal those of a run that nobody has killed.
"""

import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ITERATIONS = 300
JOB = [
    f"train.iterations={ITERATIONS}", "train.validate_every=null", "checkpoint.every=5", "runtime.calibrate=false",
    "schedule.microbatches_per_source=3", "planner.work_limit=200",
]  # fmt: skip


def begin(folder: Path) -> subprocess.Popen[str]:
    """Start or resume a run."""
    command = [sys.executable, "-m", "skippipe", "train", *JOB, f"folder={folder}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def events(folder: Path) -> list[dict[str, Any]]:
    """Events of the run."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(folder: Path) -> dict[int, float]:
    """Latest loss reported for each iteration."""
    return {event["iteration"]: event["loss"] for event in events(folder) if event["event"] == "iteration"}


def hidden(folder: Path) -> set[str]:
    """Partial checkpoints."""
    return {path.name for path in (folder / "checkpoints").glob(".iteration-*.new")}


def kill(folder: Path, number: int, chance: random.Random) -> str:
    """Start, kill at a random moment, wait for the end of all processes; describe when the kill happened."""
    before = len(events(folder))
    left = hidden(folder)
    process = begin(folder)
    saving = number % 2 == 1
    until = chance.randint(1, 6)  # so many checkpoints are begun
    drafts: set[str] = set()
    while process.poll() is None:
        now = hidden(folder)
        left &= now  # what the run before has left is tidied up at the start
        drafts |= now - left
        if saving and len(drafts) == until:
            time.sleep(chance.uniform(0, 0.2))
            break
        if not saving and any(event["event"] == "iteration" for event in events(folder)[before:]):
            time.sleep(chance.uniform(0, 4))
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # ends when no worker holds standard output any more
    time.sleep(1.0)
    done = [event["iteration"] for event in events(folder)[before:] if event["event"] == "iteration"]
    what = "saving" if saving else "training"
    return f"{what}: killed after iteration {max(done, default=0)}, unfinished checkpoint: {bool(hidden(folder))}"


def main() -> int:
    """Run the benchmark; the exit status is 0 if all losses were equal."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        unbroken, broken = Path(folder) / "unbroken", Path(folder) / "broken"
        begin(unbroken).communicate()
        for number in range(kills):
            print(f"{number + 1:>3}  {kill(broken, number, chance)}", flush=True)
        begin(broken).communicate()
        ours, theirs = losses(broken), losses(unbroken)
        stood = [event["blocked_s"] for event in events(unbroken) if event["event"] == "checkpoint"]
        resumed = [event for event in events(broken) if event["event"] == "resumed"]
        same = ours == theirs and len(theirs) == ITERATIONS
        print(f"{len(resumed)} times resumed, skipped {sum(len(event['damaged']) for event in resumed)}")
        print(f"{len(stood)} checkpoints; training was blocked for {statistics.median(stood) * 1e3:.1f} ms "
              f"(median), {max(stood) * 1e3:.1f} ms at most")  # fmt: skip
        print(f"losses of all {ITERATIONS} iterations the same: {same}")
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
