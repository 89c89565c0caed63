"""The phases of a run as a table."""

from collections.abc import Sequence

from skippipe.phases import PhaseSummary, average_iteration_s, stages_text
from skippipe.report.format import percent, seconds

HEADINGS = (
    "phase", "share", "stages in use", "skip ratio", "layer executions left out", "iteration", "lower bound",
    "share of time", "change before it", "rules bent",
)  # fmt: skip


def phase_lines(phases: Sequence[PhaseSummary], iterations: int | None = None) -> list[str]:
    """Table of the phases of a run and its average iteration time, line by line; none for a single phase.

    Args:
        phases: in order.
        iterations: of the run, over which the changes of phases are spread; None: unknown.

    """
    if len(phases) < 2:
        return []
    average_s = average_iteration_s(phases)
    rows = [HEADINGS, *(_row(number, phase, average_s) for number, phase in enumerate(phases, 1))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join([*map(str.rjust, row[:-1], widths[:-1]), row[-1]]) for row in rows]
    left_out = sum(phase.share * phase.left_out for phase in phases)
    average = f"iteration time {seconds(average_s)}, layer executions left out {percent(left_out)}"
    return [*table, f"average over the run: {average}", *_changes(phases, iterations)]


def _changes(phases: Sequence[PhaseSummary], iterations: int | None) -> list[str]:
    """What the changes of phases take, if they move anything or it is unknown whether they do."""
    changes = [phase.change_s for phase in phases]
    known = [change for change in changes if change is not None]
    if not any(changes) and len(known) == len(changes):
        return []
    taken = f"changes of phases: {seconds(sum(known)) if len(known) == len(changes) else 'unknown'} in all"
    if iterations is None or len(known) < len(changes):
        return [f"{taken}, not in this average"]
    with_them = average_iteration_s(phases, iterations)
    return [f"{taken}; iteration time with them, over {iterations:,} iterations, {seconds(with_them)}"]


def _row(number: int, phase: PhaseSummary, average_s: float | None) -> tuple[str, ...]:
    time = None if phase.iteration_s is None or not average_s else phase.share * phase.iteration_s / average_s
    return (
        str(number),
        percent(phase.share),
        stages_text(phase.stages_in_use, phase.stages),
        f"{phase.skip_ratio:.4g}",
        percent(phase.left_out),
        seconds(phase.iteration_s),
        seconds(phase.lower_bound_s),
        percent(time),
        seconds(phase.change_s),
        ", ".join(phase.bent_rules) or "none",
    )
