"""Time to the loss of a baseline: records of trainings, and predicted times of their iterations on a cluster. Pure."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from skippipe.report.format import markdown_table
from skippipe.study.comparison import t_interval
from skippipe.study.records import ArmRecord

HEADINGS = (
    "arm", "seeds", "iteration of each phase, s", "run, h", "final loss above the baseline's (95% CI)", "reaches it",
    "time to its loss, h", "of the baseline's",
)  # fmt: skip
NOTE = (
    "Times are predicted, with changes of phases; losses are measured. An arm reaches the baseline's final loss if its "
    "complete schedule ends at that loss or below it, on average over the seeds that both have. One that ends above "
    "needs more tokens, under a schedule of its own: its run is a lower bound (>). Intervals: Student's t over paired "
    "seeds."
)


@dataclass(frozen=True)
class RunTimes:
    """Predicted times of one experiment on a cluster."""

    experiment: str
    iterations: int
    shares: Sequence[float]
    """fraction of the iterations of each phase"""
    iteration_s: Sequence[float]
    """of each phase, in seconds"""
    changes_s: Sequence[float]
    """before each phase"""
    how: str = ""
    """what distinguishes it from other times of the same experiment"""

    @property
    def run_s(self) -> float:
        """Of the complete run."""
        return self.seconds_after(1.0)

    def seconds_after(self, fraction: float) -> float:
        """Seconds from the start until a fraction of the iterations is done."""
        begins = itertools.accumulate(self.shares[:-1], initial=0.0)
        passed = 0.0
        for begin, share, iteration_s, change_s in zip(
            begins, self.shares, self.iteration_s, self.changes_s, strict=True
        ):
            if fraction > begin or begin == 0.0:
                passed += change_s + min(max(fraction - begin, 0.0), share) * self.iterations * iteration_s
        return passed


@dataclass(frozen=True)
class Times:
    """Predicted times of the experiments of a study on one cluster."""

    cluster: str
    """its settings"""
    runs: Sequence[RunTimes]


def loss_over_time(entry: ArmRecord, times: RunTimes) -> list[tuple[float, float]]:
    """Seconds and validation loss at every validation of an arm after its start."""
    return [(times.seconds_after(point.tokens / entry.tokens), point.loss) for point in entry.curve if point.tokens]


def final_differences(entries: Sequence[ArmRecord], experiment: str, baseline: str) -> list[float]:
    """Final losses of complete arms minus those of the baseline with the same seed and corpus, however many tokens."""
    ours, theirs = _final_losses(entries, experiment), _final_losses(entries, baseline)
    return [ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys())]


def _final_losses(entries: Sequence[ArmRecord], experiment: str) -> dict[tuple[int, str], float]:
    """By seed and corpus."""
    return {
        (entry.seed, entry.text or ""): entry.latest.loss
        for entry in entries
        if entry.experiment == experiment and entry.finished and entry.latest is not None
    }


def time_text(entries: Sequence[ArmRecord], baseline: str, times: Times) -> str:
    """A table of all experiments with times, in the order of these, and how to read it."""
    reference = next((each for each in times.runs if each.experiment == baseline and not each.how), None)
    if reference is None:
        return f"The baseline {baseline} is not among the arms."
    rows = [_row(entries, baseline, each, reference.run_s) for each in times.runs]
    return markdown_table(HEADINGS, rows, texts=1) + f"\n\nOn {times.cluster}. {NOTE}"


def _row(entries: Sequence[ArmRecord], baseline: str, times: RunTimes, reference_s: float) -> list[str]:
    run_s, name = times.run_s, times.experiment + (f", {times.how}" if times.how else "")
    iterations = ", then ".join(f"{time_s:.2f}" for time_s in times.iteration_s)
    if times.experiment == baseline:
        final = list(_final_losses(entries, baseline).values())
        loss = f"the target, {statistics.fmean(final):.4f}" if final else "-"
        ratio = f"{run_s / reference_s:.3f}"
        return [name, str(len(final)), iterations, _hours(run_s), loss, "-", _hours(run_s), ratio]
    differences = final_differences(entries, times.experiment, baseline)
    if not differences:
        return [name, "0", iterations, _hours(run_s), "-", "unfinished", "-", "-"]
    interval = t_interval(differences)
    known = math.isfinite(interval.high)
    bounds = f" ({interval.low:+.4f} to {interval.high:+.4f})" if known else " (one seed)"
    reaches = interval.value <= 0
    sure = known and (interval.high <= 0 or interval.low > 0)
    prefix = "" if reaches else "> "
    return [
        name,
        str(len(differences)),
        iterations,
        _hours(run_s),
        f"{interval.value:+.4f}{bounds}",
        ("yes" if reaches else "no") + ("" if sure else ", within the interval" if known else ", one seed"),
        prefix + _hours(run_s),
        f"{prefix}{run_s / reference_s:.3f}",
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g}"
