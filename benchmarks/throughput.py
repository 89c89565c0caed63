"""Throughput without skips against PyTorch's own 1F1B pipeline: same model, same microbatches, same machine, in turn.

    python benchmarks/throughput.py ../shared/anchors/torch_1f1b.py [--ranks 2] [--ours 4,4 3,5] [--theirs 4,4 5,3]
        [--memory 2 3 4] [--rounds 3] [--compile] [--device cuda] [--dtype bfloat16] [--set KEY=VALUE ...]

The yardstick is a script that takes the options of the model, runs under torchrun, and prints a line of JSON with
`tokens_per_s` and `peak_memory_gib`. A round runs every partition of both, theirs before and after ours; a row has the
median over rounds, and its ratio to the yardstick's best partition. Head and loss are on the first stage here, and on
the last one there. `--set` gives settings of `skippipe train`. Writes out/throughput.json and out/throughput.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from output import Row, markdown, note, save


class Measured(NamedTuple):
    """One run."""

    tokens_per_s: float
    memory_gib: list[float]
    """peak, by rank; empty on CPUs"""
    predicted: float | None = None
    """iteration time, as a share of the measured one"""


Key = tuple[str, str, int | None]
"""Pipeline, layers by stage, microbatches that a node holds."""


def theirs(script: Path, split: str, options: argparse.Namespace) -> Measured:
    """Run the yardstick."""
    o = options
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(o.ranks), "--standalone", str(script),
        "--hidden", str(o.hidden), "--layers", str(o.layers), "--heads", str(o.heads), "--vocab", str(o.vocab),
        "--seq", str(o.seq), "--microbatch-size", str(o.microbatch_size), "--microbatches", str(o.microbatches),
        "--iters", str(o.iterations), "--warmup", str(o.warm_up), "--clip", "1.0", "--device", o.device,
        "--dtype", o.dtype, "--split", split, *(["--compile"] if o.compile else []),
    ]  # fmt: skip
    result = json.loads(next(line for line in _run(command).splitlines() if line.startswith("{")))
    return Measured(float(result["tokens_per_s"]), result["peak_memory_gib"] if o.device == "cuda" else [])


def ours(split: str, memory: int, options: argparse.Namespace) -> Measured:
    """Run `skippipe train`, everything between two iterations included."""
    o = options
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        settings = [
            f"cluster.stage_sizes={[1] * o.ranks}", f"cluster.nodes_per_site={o.ranks}",
            f"cluster.node.memory={memory}", f"model.hidden_size={o.hidden}",
            f"model.intermediate_size={int(o.hidden * 8 / 3 / 64) * 64}", f"model.num_attention_heads={o.heads}",
            f"model.num_key_value_heads={o.heads}", f"model.num_hidden_layers={o.layers}",
            f"model.vocab_size={o.vocab}", f"model.max_position_embeddings={o.seq}",
            "model.tie_word_embeddings=false", f"data.sequence={o.seq}",
            f"data.validation_blocks={max(4, o.microbatch_size)}",
            f"train.microbatch_size={o.microbatch_size}", f"schedule.microbatches_per_source={o.microbatches}",
            "schedule.skip_ratio=0", f"train.iterations={o.warm_up + o.iterations}", "train.validate_every=null",
            f"train.layers=[{split}]", "checkpoint.enabled=false", f"folder={folder}", f"train.dtype={o.dtype}",
            f"runtime.threads={max(1, (os.cpu_count() or 1) // o.ranks)}", f"runtime.compile={o.compile}",
            f"runtime.device={o.device}", *o.set,
        ]  # fmt: skip
        _run([sys.executable, "-m", "skippipe", "train", *settings])
        events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [event["tokens_per_s"] for event in events if event["event"] == "iteration"]
    (summary,) = (event for event in events if event["event"] == "summary")
    predicted = None if summary["predicted_s"] is None else summary["predicted_s"] / summary["measured_s"]
    gib = [round(size / 2**30, 2) for size in summary["peak_memory"]]
    return Measured(statistics.median(speeds[o.warm_up :]), gib, predicted)


def _run(command: Sequence[str]) -> str:
    """Standard output of a command; its other output is shown where it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        note(f"{' '.join(command)}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        raise SystemExit(result.returncode)
    return result.stdout


def main() -> None:
    """Run all in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("yardstick", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--microbatch-size", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--ours", nargs="*", default=["4,4", "3,5"], help="layers per stage")
    parser.add_argument("--theirs", nargs="*", default=["4,4", "5,3"], help="layers per stage")
    parser.add_argument("--memory", nargs="+", type=int, default=[4], help="microbatches that a node holds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--name", default="throughput", help="of the files written")
    options = parser.parse_args()
    runs: dict[Key, list[Measured]] = defaultdict(list)

    def yardstick() -> None:
        for split in options.theirs:
            runs["1F1B", split, None].append(theirs(options.yardstick, split, options))

    for number in range(options.rounds):
        note(f"round {number + 1} of {options.rounds}")
        yardstick()
        for split in options.ours:
            for memory in options.memory:
                runs["skippipe", split, memory].append(ours(split, memory, options))
        if options.ours:
            yardstick()
    save(options.name, {**vars(options), "yardstick": options.yardstick.name}, *_rows(runs))


def _rows(runs: dict[Key, list[Measured]]) -> tuple[list[Row], str]:
    medians = {key: statistics.median(run.tokens_per_s for run in found) for key, found in runs.items()}
    best = max((value for (name, _, _), value in medians.items() if name == "1F1B"), default=None)
    rows: list[Row] = [
        {
            "pipeline": name, "layers": split, "memory": memory, "tokens/s": medians[name, split, memory],
            "least": min(run.tokens_per_s for run in found), "most": max(run.tokens_per_s for run in found),
            "ratio": None if best is None else medians[name, split, memory] / best,
            "predicted / measured": found[-1].predicted,
            "peak GiB": ", ".join(f"{size:.2f}" for size in found[-1].memory_gib) or None,
        }
        for (name, split, memory), found in runs.items()
    ]  # fmt: skip
    return rows, markdown(rows)


if __name__ == "__main__":
    main()
