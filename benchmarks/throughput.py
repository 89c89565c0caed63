"""Throughput without skips against PyTorch's own 1F1B pipeline: same model, same microbatches, same machine, in turn.

    python benchmarks/throughput.py ../shared/anchors/torch_1f1b.py [--ranks 2] [--ours 4,4 3,5] [--theirs 4,4 5,3]
        [--memory 2 3 4] [--rounds 3] [--compile]

The yardstick is a script that takes the options of the model, runs under torchrun, and prints a line of JSON with
`tokens_per_s`. A round runs every partition of both, theirs before and after ours; a row has the median over rounds,
and its ratio to the yardstick's best partition. Head and loss are on the first stage here, and on the last one there.
Writes out/throughput.json and out/throughput.md.
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

from output import Row, markdown, note, save

HIDDEN, INTERMEDIATE, HEADS, VOCABULARY, SEQUENCE = 256, 640, 8, 1024, 128
MICROBATCH_SIZE, MICROBATCHES, WARM_UP, ITERATIONS = 4, 8, 3, 12


def theirs(script: Path, ranks: int, split: str, options: argparse.Namespace) -> float:
    """Tokens per second of the yardstick."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone", str(script),
        "--hidden", str(HIDDEN), "--layers", str(options.layers), "--heads", str(HEADS), "--vocab", str(VOCABULARY),
        "--seq", str(SEQUENCE), "--microbatch-size", str(MICROBATCH_SIZE), "--microbatches", str(MICROBATCHES),
        "--iters", str(ITERATIONS), "--warmup", str(WARM_UP), "--clip", "1.0", "--device", "cpu", "--split", split,
        *(["--compile"] if options.compile else []),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in result.stdout.splitlines() if line.startswith("{"))
    return float(json.loads(line)["tokens_per_s"])


def ours(ranks: int, split: str, memory: int, options: argparse.Namespace) -> float:
    """Tokens per second of `skippipe train`, everything between two iterations included."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        settings = [
            f"cluster.stage_sizes={[1] * ranks}", f"cluster.nodes_per_site={ranks}", f"cluster.node.memory={memory}",
            f"model.hidden_size={HIDDEN}", f"model.intermediate_size={INTERMEDIATE}",
            f"model.num_attention_heads={HEADS}", f"model.num_key_value_heads={HEADS}",
            f"model.num_hidden_layers={options.layers}", f"model.max_position_embeddings={SEQUENCE}",
            "model.tie_word_embeddings=false", f"data.sequence={SEQUENCE}", "data.validation_blocks=4",
            f"train.microbatch_size={MICROBATCH_SIZE}", f"schedule.microbatches_per_source={MICROBATCHES}",
            "schedule.skip_ratio=0", f"train.iterations={WARM_UP + ITERATIONS}", "train.validate_every=null",
            f"train.layers=[{split}]", "checkpoint.enabled=false", f"folder={folder}",
            f"runtime.threads={max(1, (os.cpu_count() or 1) // ranks)}", f"runtime.compile={options.compile}",
        ]  # fmt: skip
        subprocess.run(["skippipe", "train", *settings], capture_output=True, check=True)
        events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [event["tokens_per_s"] for event in events if event["event"] == "iteration"]
    return statistics.median(speeds[WARM_UP:])


def main() -> None:
    """Run all in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("yardstick", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ours", nargs="+", default=["4,4", "3,5"], help="layers per stage")
    parser.add_argument("--theirs", nargs="+", default=["4,4", "5,3"], help="layers per stage")
    parser.add_argument("--memory", nargs="+", type=int, default=[4], help="microbatches that a node holds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    speeds: dict[tuple[str, str, int | None], list[float]] = defaultdict(list)

    def yardstick() -> None:
        for split in options.theirs:
            speeds["1F1B", split, None].append(theirs(options.yardstick, options.ranks, split, options))

    for number in range(options.rounds):
        note(f"round {number + 1} of {options.rounds}")
        yardstick()
        for split in options.ours:
            for memory in options.memory:
                speeds["skippipe", split, memory].append(ours(options.ranks, split, memory, options))
        yardstick()
    save("throughput", {**vars(options), "yardstick": options.yardstick.name}, *_rows(speeds))


def _rows(speeds: dict[tuple[str, str, int | None], Sequence[float]]) -> tuple[list[Row], str]:
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    best = max(value for (name, _, _), value in medians.items() if name == "1F1B")
    rows: list[Row] = [
        {
            "pipeline": name, "layers": split, "memory": memory, "tokens/s": medians[name, split, memory],
            "least": min(values), "most": max(values), "ratio": medians[name, split, memory] / best,
        }
        for (name, split, memory), values in speeds.items()
    ]  # fmt: skip
    return rows, markdown(rows)


if __name__ == "__main__":
    main()
