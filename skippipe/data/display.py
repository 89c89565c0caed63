"""Progress and summary of `skippipe data prepare`: a bar on a terminal, periodic lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from skippipe.data.corpus import SPLITS, Corpus
from skippipe.data.prepare import PreparationProgress
from skippipe.errors import printable

LINE_EVERY_S = 10.0
"""Where there is no terminal."""
STAGES = {"tokenizer": "train tokenizer", "training": "training text", "validation": "validation text"}


class Display:
    """Shows progress; a context manager that ends the bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn(),
            console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None, state="")
        self._stage = ""
        self._began = self._told = self._latest = time.monotonic()
        self._first = self._done = 0
        """bytes of the stage at the start of this run, and now"""
        self._bytes, self._seconds = 0, 0.0
        """bytes tokenised by this run, and the time taken"""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of text tokenised per second by this run; None if none were."""
        return _rate(self._bytes, self._seconds)

    def __call__(self, progress: PreparationProgress) -> None:
        """Show the progress."""
        now = time.monotonic()
        if progress.stage != self._stage:
            self._begin(progress, now)
        elif progress.stage != "tokenizer":
            self._bytes += progress.text_bytes - self._done
            self._seconds += now - self._latest
        self._done, self._latest = progress.text_bytes, now
        state = _state(progress, _rate(self._done - self._first, now - self._began))
        self._bar.update(self._task, completed=progress.text_bytes, state=state)
        if not self._console.is_terminal and now - self._told >= LINE_EVERY_S:
            self._told = now
            self._print(f"{STAGES[progress.stage]}: {state}")

    def _begin(self, progress: PreparationProgress, now: float) -> None:
        self._stage, self._began, self._first = progress.stage, now, progress.text_bytes
        if progress.text_bytes:
            self._print(f"{STAGES[progress.stage]}: resumes after {progress.text_bytes / 1e6:,.1f} MB")
        self._bar.reset(self._task, description=STAGES[progress.stage], total=progress.size)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if amount and seconds else None


def _state(progress: PreparationProgress, bytes_per_s: float | None) -> str:
    of = "" if progress.size is None else f" of {progress.size / 1e6:,.1f}"
    rate = "" if bytes_per_s is None else f", {bytes_per_s / 1e6:,.1f} MB/s"
    tokens = f", {progress.tokens:,} tokens" if progress.tokens else ""
    return f"{progress.text_bytes / 1e6:,.1f}{of} MB{rate}, {progress.documents:,} documents{tokens}"


def summary_lines(corpus: Corpus, bytes_per_s: float | None, name: str) -> list[str]:
    """Summary of a prepared corpus, its speed (None: it existed before), and how to train on it."""
    lines = [] if bytes_per_s is not None else [f"{name} is already complete; nothing to do"]
    for split in SPLITS:
        part = corpus.splits[split]
        files = f"{len(part.files):,} files" if len(part.files) > 1 else printable(str(part.files[0]["name"]))
        lines.append(
            f"{split}: {part.tokens:,} tokens, {part.documents:,} documents, {part.bytes / max(part.tokens, 1):.2f} "
            f"bytes/token, of {files}"
        )
    held_out = [printable(str(file["name"])) for file in corpus.splits["validation"].files]
    more = f" and {len(held_out) - 5} more" if len(held_out) > 5 else ""
    lines.append(f"validation files: {', '.join(held_out[:5])}{more}")
    if bytes_per_s is not None:
        lines.append(f"tokenised at {bytes_per_s / 1e6:.2f} MB/s")
    lines.append(f"next: skippipe train data.prepared={name} model.vocab_size={corpus.vocabulary}")
    return lines
