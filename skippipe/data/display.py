"""Progress and summary of `skippipe data prepare`."""

import time

from skippipe.console.progress import ProgressDisplay
from skippipe.data.corpus import SPLITS, Corpus
from skippipe.data.prepare import PreparationProgress
from skippipe.errors import printable

STAGES = {"tokenizer": "train tokenizer", "training": "training text", "validation": "validation text"}


class PrepareDisplay:
    """Shows the progress of a preparation, and measures how fast it is."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display
        self._stage = ""
        self._began = self._latest = time.monotonic()
        self._first = self._done = 0
        """bytes of the stage at the start of this run, and now"""
        self._bytes, self._seconds = 0, 0.0
        """bytes tokenised by this run, and the time taken"""

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
        rate = _rate(self._done - self._first, now - self._began)
        self._display.update(progress.text_bytes, _state(progress, rate), total=progress.size)

    def _begin(self, progress: PreparationProgress, now: float) -> None:
        self._stage, self._began, self._first = progress.stage, now, progress.text_bytes
        if progress.text_bytes:
            self._display.write_line(f"{STAGES[progress.stage]}: resumes after {progress.text_bytes / 1e6:,.1f} MB")
        self._display.begin(STAGES[progress.stage], progress.size)


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
