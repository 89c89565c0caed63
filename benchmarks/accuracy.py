"""Predicted and measured iteration time of real training on this machine, over emulated links.

    python benchmarks/accuracy.py [--gpus] [--iterations 30] [--repeat 3] [--only demo ...]

Each case is a `skippipe train` that times its stages first, as it does by default, and so predicts the iteration; the
median of all iterations but the first two is compared with that. Processes that get a core each are pinned to it as
soon as they are there. For a quiet machine of two cores; with `--gpus` the cases for a machine with two GPUs. Writes
out/accuracy.json and out/accuracy.md.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from output import Row, markdown, note, percent, save
from watching import PROCESS, Events

LINKS = ["runtime.links=emulated", "cluster.inside={latency_s: 0.03, bandwidth: 12.5e6}"]
CASES: Mapping[str, Sequence[str]] = {
    "2 processes, a core each": [
        *LINKS,
        "cluster.nodes_per_site=2",
        "cluster.stage_sizes=[1,1]",
        "schedule.skip_ratio=0",
    ],
    "4 processes on 2 cores": [*LINKS, "cluster.stage_sizes=[1,1,1,1]", "schedule.skip_ratio=0"],
    "4 processes on 2 cores, 1/3 skipped": [*LINKS],
    "4 nodes on 2 processes": [*LINKS, "cluster.stage_sizes=[1,1,1,1]", "schedule.skip_ratio=0", "runtime.processes=2"],
    "4 nodes on 2 processes, 1/3 skipped": [*LINKS, "runtime.processes=2"],
    "demo": [],
}
"""The demo is `skippipe train` as it is: four processes, a third skipped, real links."""
ON_GPUS = [
    "runtime.device=cuda",
    "runtime.links=emulated",
    "runtime.autocast=bfloat16",
    "model=llama_124m",
    "data.sequence=1024",
]
NEAR = ["train.microbatch_size=24", "cluster.inside={latency_s: 0.03, bandwidth: 1.25e9}"]
GPU_CASES: Mapping[str, Sequence[str]] = {
    "a stage on each of 2 GPUs": [
        *ON_GPUS, *NEAR, "cluster.nodes_per_site=2", "cluster.stage_sizes=[1,1]", "schedule.skip_ratio=0",
    ],
    "4 nodes on 2 GPUs": [
        *ON_GPUS, *NEAR, "cluster.stage_sizes=[1,1,1,1]", "schedule.skip_ratio=0", "runtime.processes=2",
    ],
    "4 nodes on 2 GPUs, 1/3 skipped": [*ON_GPUS, *NEAR, "runtime.processes=2"],
    "20 processes on 2 GPUs, links of geo20, four times as fast": [
        *ON_GPUS, "cluster=geo20", "runtime.time_scale=0.25", "train.microbatch_size=8",
        "schedule.microbatches_per_source=2", "planner.work_limit=2000000",
    ],
}  # fmt: skip
"""A stage's work and a message take about as long as each other, but in the last case, whose links span continents."""
PINNED = "2 processes, a core each"
WARM_UP = 2


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=[*CASES, *GPU_CASES])
    parser.add_argument("--gpus", action="store_true")
    options = parser.parse_args()
    cases = {**CASES, **GPU_CASES}
    rows: list[Row] = []
    for _ in range(options.repeat):
        for case in options.only or (GPU_CASES if options.gpus else CASES):
            rows.append({"case": case} | measured(cases[case], options.iterations, pinned=case == PINNED))
            note(f"{rows[-1]}")
    save("accuracy", vars(options), rows, markdown(rows))


def measured(settings: Sequence[str], iterations: int, *, pinned: bool) -> Row:
    """Train once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "skippipe", "train", *settings, f"train.iterations={iterations}", f"folder={folder}",
            "checkpoint.enabled=false", "train.validate_every=null",
        ]  # fmt: skip
        began = os.getloadavg()[0]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
            assert training.stdout is not None
            for line in training.stdout:
                if pinned and (found := PROCESS.search(line)) is not None:
                    pin(int(found[2]), int(found[1]))
        if training.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with status {training.returncode}")
        events = Events(Path(folder))
        predicted_s = events.of("plan")[0]["predicted_s"]
        times = [event["iteration_s"] for event in events.of("iteration")][WARM_UP:]
        task_ratios = [event["task_ratio"] for event in events.of("iteration") if event.get("task_ratio")][WARM_UP:]
    median_s = statistics.median(times)
    tenths = statistics.quantiles(times, n=10)
    return {
        "predicted": predicted_s, "measured, median": median_s, "from (a tenth is faster)": tenths[0],
        "to (a tenth is slower)": tenths[-1], "measured above predicted": percent(median_s / predicted_s - 1),
        "tasks, measured over timed": statistics.median(task_ratios) if task_ratios else None, "load before": began,
    }  # fmt: skip


def pin(process: int, core: int) -> None:
    """Have all threads of a process run on one core."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {core % (os.cpu_count() or 1)})


if __name__ == "__main__":
    main()
