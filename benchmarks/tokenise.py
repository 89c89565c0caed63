"""MB/s of `skippipe data prepare` vs. plain `datasets.map` with the same number of processes and tokenizer.

    python benchmarks/tokenise.py FOLDER [FOLDER ...] [--repetitions 5] [--workers 1 2]

FOLDER: written by `skippipe data fetch`. Every repetition runs both, alternating, each in a process of its own that
times the work without imports: from files to tokens on disk. Reported are the median speeds, and median, minimum and
maximum of the ratios of neighbouring runs (above 1: `skippipe` is faster).
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

BOTH = ("ours", "plain")
END_OF_TEXT = "<|endoftext|>"


def ours(files: list[str], tokenizer: str, folder: Path) -> float:
    """Seconds of `prepare`, but for the validation text, which is one short file."""
    import datasets  # noqa: F401, PLC0415 - imported before the clock runs, as below

    from skippipe.data.config import DataConfig  # noqa: PLC0415
    from skippipe.data.prepare import prepare  # noqa: PLC0415

    held_out = folder / "held-out.txt"
    held_out.write_text("A text.\n", encoding="utf-8")
    config = DataConfig(training=files, validation=[str(held_out)], tokenizer=tokenizer)
    began = time.perf_counter()
    prepare(config, folder / "prepared")
    return time.perf_counter() - began


def plain(files: list[str], tokenizer: str, folder: Path, workers: int) -> float:
    """Seconds of loading one document a file, and of a batched map that tokenises."""
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    datasets.disable_progress_bars()
    fast = PreTrainedTokenizerFast(tokenizer_file=tokenizer, eos_token=END_OF_TEXT)

    def tokenise(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = fast(batch["text"], add_special_tokens=False, return_attention_mask=False, verbose=False)
        return {"input_ids": encoded["input_ids"]}

    began = time.perf_counter()
    loaded = datasets.load_dataset(
        "text", data_files={"part": files}, split="part", sample_by="document", cache_dir=str(folder)
    )
    loaded.map(tokenise, batched=True, num_proc=workers, remove_columns=["text"])
    return time.perf_counter() - began


@dataclass(frozen=True)
class Times:
    """Times of one run."""

    wall_s: float
    cpu_s: float
    """of all its processes, imports included: what others do on the machine changes it less"""


def measure(what: str, files: Path, tokenizer: str, workers: int) -> Times:
    """Run one of both in a process of its own."""
    environment = os.environ | {"RAYON_NUM_THREADS": str(workers)}
    if what == "plain":  # each of its processes would else start threads of its own, one for each processor
        environment["TOKENIZERS_PARALLELISM"] = "false"
    command = [sys.executable, __file__, "--run", what, str(files), tokenizer, str(workers)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return Times(*map(float, done.stdout.splitlines()[-1].split()))


def run(what: str, listed: str, tokenizer: str, workers: str) -> None:
    """Print the seconds that one of both takes, by the clock and of the processors."""
    files = json.loads(Path(listed).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        seconds = (
            ours(files, tokenizer, Path(folder))
            if what == "ours"
            else plain(files, tokenizer, Path(folder), int(workers))
        )
    print(seconds, sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def main() -> None:
    """Measure all, print a row for each folder and number of workers."""
    parser = argparse.ArgumentParser(description="MB/s of tokenising")
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--entries", type=int, default=8192)
    parser.add_argument("--run", nargs=4)
    arguments = parser.parse_args()
    if arguments.run:
        run(*arguments.run)
        return
    headings = ("corpus", "MB", "workers", "skippipe MB/s", "datasets.map MB/s", "ratio", "ratio of CPU time")
    print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    for folder in arguments.folders:
        names = sorted(str(path.resolve()) for path in (folder / "training").rglob("*.txt"))
        size = sum(Path(name).stat().st_size for name in names) / 1e6
        with tempfile.TemporaryDirectory() as temporary:
            tokenizer = train_tokenizer(names, arguments.entries, Path(temporary))
            listed = Path(temporary) / "files.json"
            listed.write_text(json.dumps(names), encoding="utf-8")
            for workers in arguments.workers:
                pairs = [interleaved(i, listed, tokenizer, workers) for i in range(arguments.repetitions)]
                speeds = (f"{statistics.median(size / pair[what].wall_s for pair in pairs):.2f}" for what in BOTH)
                wall = spread([pair["plain"].wall_s / pair["ours"].wall_s for pair in pairs])
                cpu = spread([pair["plain"].cpu_s / pair["ours"].cpu_s for pair in pairs])
                print(f"| {folder.name} | {size:.1f} | {workers} | {' | '.join([*speeds, wall, cpu])} |", flush=True)


def interleaved(repetition: int, files: Path, tokenizer: str, workers: int) -> dict[str, Times]:
    """Run both, now one first and now the other."""
    order = BOTH if repetition % 2 == 0 else BOTH[::-1]
    return {what: measure(what, files, tokenizer, workers) for what in order}


def spread(ratios: list[float]) -> str:
    """Write the median, the least and the most."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def train_tokenizer(files: list[str], entries: int, folder: Path) -> str:
    """Train the tokenizer that both use, on the first 20 MB; returns its file."""
    from skippipe.data.tokenizer import train_encoder  # noqa: PLC0415

    texts, size = [], 0
    for name in files:
        if size < 20_000_000:
            texts.append([Path(name).read_text(encoding="utf-8")])
            size += len(texts[-1][0])
    path = folder / "tokenizer.json"
    path.write_text(train_encoder(texts, entries).json, encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    main()
