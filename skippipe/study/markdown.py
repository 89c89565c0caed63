"""A study's records as a page in Markdown. Records in, text out."""

import math
from collections.abc import Sequence

from skippipe.evaluate.table import markdown
from skippipe.report.format import percent
from skippipe.study.comparison import LossDifference, loss_differences, t_interval
from skippipe.study.records import ArmRecord

CURVES, OMITTED = "curves", "omitted"
"""What the figures are called, after the name of the study."""
RULES = ("cc1", "cc2", "cc3")
NONE = "-"
ARM_HEADINGS = (
    "arm", "seed", "skipped", "rules off", "tokens done", "left", "each seen", "validation loss", "training loss",
    "gap", "tokens/s", "MFU", "device", "date",
)  # fmt: skip

FROM = (
    "Made by `skippipe study` from `{name}.json`; what is asked, and how it is run, stands in [README.md](README.md)."
)
LEGEND = (
    "Tokens in millions. Each seen: how often each token of the training text was trained on. Losses are those of the "
    "whole model, in nats a token; gap: validation less training loss. MFU: share of what the device can do, over "
    "executed operations."
)


def study_page(name: str, entries: Sequence[ArmRecord], baseline: str | None, figures: Sequence[str]) -> str:
    """Write the page of a study; `figures` are those that there are."""
    parts = [
        f"# {name}",
        FROM.format(name=name),
        "## Arms",
        table(ARM_HEADINGS, [arm_cells(entry) for entry in entries], words=4),
        LEGEND,
        *notes(entries),
    ]
    if CURVES in figures:
        parts.append(f"![validation loss over tokens]({name}_{CURVES}.png)")
    if baseline is not None:
        parts += [f"## Distance from {baseline}", difference_text(entries, baseline)]
    evaluated = {entry.key.title: entry.evaluation for entry in entries if entry.evaluation}
    if evaluated:
        parts += [
            "## With layers left out",
            markdown(
                evaluated, ["by `skippipe evaluate`; intervals are over draws and text, of the one model"]
            ).strip(),
        ]
    if OMITTED in figures:
        parts.append(f"![perplexity with layers left out]({name}_{OMITTED}.png)")
    taken_apart = [entry for entry in entries if entry.breakdown]
    if taken_apart:
        kinds = list(dict.fromkeys(kind for entry in taken_apart for kind in entry.breakdown))
        rows = [
            [entry.key.title, *(percent(entry.breakdown.get(kind, 0.0)) for kind in kinds)] for entry in taken_apart
        ]
        parts += ["## Where the time went", table(["arm", *kinds], rows, words=1)]
    return "\n\n".join(parts) + "\n"


def arm_cells(entry: ArmRecord) -> list[str]:
    """One row of the table of arms."""
    latest = entry.latest
    training = None if latest is None else latest.training_loss
    return [
        entry.experiment,
        str(entry.seed),
        skipped(entry),
        ", ".join(rule.upper() for rule in RULES if entry.rules.get(rule) is False) or NONE,
        *tokens_cells(entry),
        NONE if entry.epochs is None else f"{entry.epochs:.2f}",
        NONE if latest is None else f"{latest.loss:.4f}",
        NONE if training is None else f"{training:.4f}",
        NONE if latest is None or training is None else f"{latest.loss - training:+.4f}",
        NONE if entry.tokens_per_s is None else f"{entry.tokens_per_s:,.0f}",
        NONE if entry.mfu is None else percent(entry.mfu),
        entry.device or NONE,
        entry.date or NONE,
    ]


def tokens_cells(entry: ArmRecord) -> list[str]:
    """Tokens done and left, in millions."""
    return [millions(entry.tokens_done), "done" if entry.finished else millions(entry.tokens_left)]


def millions(tokens: int) -> str:
    """A number of tokens in millions."""
    return f"{tokens / 1e6:,.1f}" if tokens >= 1e6 else f"{tokens / 1e6:.3g}"


def skipped(entry: ArmRecord) -> str:
    """Skip ratio, and what it becomes."""
    later = "".join(f", {percent(ratio)} from {percent(after)} on" for after, ratio in entry.skip_changes)
    return percent(entry.skip_ratio) + later


def notes(entries: Sequence[ArmRecord]) -> list[str]:
    """What there is to say about single arms."""
    failed = [f"- {entry.key.title} failed: {entry.note}" for entry in entries if entry.note]
    texts = {entry.text_tokens for entry in entries if entry.text_tokens}
    about = [f"{millions(count)} million different tokens to train on." for count in sorted(texts)]
    return [*about, *(["\n".join(failed)] if failed else [])]


def difference_text(entries: Sequence[ArmRecord], baseline: str) -> str:
    """How far every experiment is from the baseline: a row for each seed, and the mean where seeds are comparable."""
    rows: list[list[str]] = []
    for experiment in dict.fromkeys(entry.experiment for entry in entries):
        if experiment == baseline:
            continue
        found = loss_differences(entries, experiment, baseline)
        rows += [_difference_row(experiment, difference) for difference in found]
        rows += _mean_row(experiment, found)
    if not rows:
        return "No arm can be held against it yet."
    headings = ("arm", "seed", "after tokens", "loss", "of the baseline", "distance", "95 %", "perplexity")
    note = (
        "Validation losses after as many tokens, of the same seed. The interval is Student's t over seeds whose runs "
        "are done; of a single seed there is none."
    )
    return table(headings, rows, words=2) + "\n\n" + note


def _difference_row(experiment: str, difference: LossDifference) -> list[str]:
    share = "" if difference.complete else " (not done)"
    return [
        experiment,
        str(difference.seed),
        f"{millions(difference.tokens)}{share}",
        f"{difference.loss:.4f}",
        f"{difference.baseline:.4f}",
        f"{difference.value:+.4f}",
        NONE,
        _ratio(difference.value),
    ]


def _mean_row(experiment: str, found: Sequence[LossDifference]) -> list[list[str]]:
    whole = [difference.value for difference in found if difference.complete]
    if not whole:
        return []
    interval = t_interval(whole)
    known = math.isfinite(interval.low)
    bounds = f"{interval.low:+.4f} to {interval.high:+.4f}" if known else "none (one seed)"
    return [
        [f"**{experiment}**", f"n = {len(whole)}", NONE, NONE, NONE, f"**{interval.value:+.4f}**", bounds,
         _ratio(interval.value)]
    ]  # fmt: skip


def _ratio(difference: float) -> str:
    return f"{math.expm1(difference):+.2%}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A table in Markdown; the first columns hold words, the others numbers."""
    rule = [":--"] * words + ["--:"] * (len(headings) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *rows])
