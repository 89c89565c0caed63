"""Proposals as tables, text and JSON."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from skippipe.console.output import Console, plain_table
from skippipe.evaluate.intervals import Interval
from skippipe.proposal.costs import CostTable
from skippipe.proposal.proposal import Candidate, Proposal
from skippipe.report.format import percent

HEADINGS = (
    "recipe", "seeds", "loss", "above full (95 % interval)", "iteration", "run", "of full's run",
    "to full's loss", "1/4, 1/2 of stages left out later",
)  # fmt: skip


def show_candidates(console: Console, proposal: Proposal) -> None:
    """Print the recipes of a regime, the fastest first."""
    by_time = sorted(proposal.candidates, key=lambda each: math.inf if each.run_s is None else each.run_s)
    console.print(plain_table(HEADINGS, [_row(each, proposal) for each in by_time], unbroken=(0,)))


def _row(each: Candidate, proposal: Proposal) -> list[str]:
    full_s, mark = proposal.full.run_s, " *" if each is proposal.chosen else ""
    run_s, timing = each.run_s, each.timing
    reaching = "-" if run_s is None else duration(run_s) if each.reaches else f"> {duration(run_s)}"
    return [
        each.recipe.name + mark,
        str(each.seeds),
        f"{each.loss:.4f}",
        "-" if each is proposal.full else difference(each.above_full),
        "not as measured" if timing is None else f"{timing.iteration_s:.3f} s",
        "-" if run_s is None else duration(run_s),
        "-" if run_s is None or not full_s else f"{run_s / full_s:.2f}",
        reaching,
        _left_out(each),
    ]


def proposal_lines(proposal: Proposal, costs: CostTable, iteration_tokens: int | None) -> list[str]:
    """What is proposed, how sure it is, what it gives up, and what it stands beside.

    Args:
        proposal: for one regime.
        costs: the table that it is from.
        iteration_tokens: on the cluster; None: unknown.

    """
    regime, chosen, full = proposal.regime, proposal.chosen, proposal.full
    if chosen is None or chosen.timing is None or chosen.run_s is None:
        return ["No proposal: no recipe that reaches the full pipeline's loss can run here as it was measured."]
    if chosen is full:
        lines = ["Proposal: the full pipeline. No measured recipe reaches its loss in less time."]
    else:
        less = "" if not full.run_s else f", {percent(1 - chosen.run_s / full.run_s)} less than the full pipeline"
        lines = [
            f"Proposal (*): {chosen.recipe.what}; {chosen.timing.how}.",
            f"  {duration(chosen.run_s)} to the full pipeline's loss{less}.",
            "  settings: " + " ".join(f"'{each}'" if "{" in each else each for each in chosen.timing.settings),
            *([] if chosen.recipe.tokens is None else [f"  tokens: {_longer(chosen.recipe.tokens, regime.tokens)}."]),
            f"  Peak learning rate where it was measured, hidden size {regime.hidden}: {chosen.learning_rate:g}.",
            f"  Rules bent: {', '.join(chosen.timing.bent_rules) or 'none'}.",
            f"  How sure: {certainty(chosen, full, costs)}.",
            f"  Robustness: {robustness(chosen, proposal)}.",
        ]
    dense = [each for each in proposal.candidates if each.recipe.phases is None]
    if dense:
        lines.append(f"  Dense models beside it: {'; '.join(_beside(each, chosen) for each in dense)}.")
    open_ = [each.recipe.name for each in proposal.faster]
    if open_:
        ending = "s" if len(open_) == 1 else ""
        lines.append(
            f"  Undecided: {', '.join(open_)} take{ending} less time and end{ending} above; with more "
            f"tokens that loss might be reached sooner, which was not measured."
        )
    unlike = [each.recipe.name for each in proposal.candidates if each.timing is None]
    if unlike:
        lines.append(
            f"  Not compared: {', '.join(unlike)} would leave out more here than was measured, or have no plan."
        )
    lines.append(_limits(proposal, iteration_tokens))
    return lines


def certainty(chosen: Candidate, full: Candidate, costs: CostTable) -> str:
    """How sure it is that a recipe reaches the full pipeline's loss."""
    seeds = f"{chosen.seeds} seed{'s' if chosen.seeds > 1 else ''} against {full.seeds}"
    if not math.isfinite(chosen.above_full.high):
        return f"not at all by an interval ({seeds}); two seeds of a recipe have differed by {costs.seeds_differ_by:g}"
    verdict = "below the full pipeline" if chosen.certain else "the interval includes a higher loss"
    return f"{difference(chosen.above_full)} nats over common seeds ({seeds}): {verdict}"


def robustness(chosen: Candidate, proposal: Proposal) -> str:
    """Losses with stages left out afterwards, against the full pipeline and the most robust recipe."""
    ours = (
        f"loss with a quarter, half of the stages left out later: {_left_out(chosen)} (full pipeline: "
        f"{_left_out(proposal.full)})"
    )
    known = [(each.half, number) for number, each in enumerate(proposal.candidates) if each.half is not None]
    robust = proposal.candidates[min(known)[1]] if known else chosen
    theirs = f"{robust.recipe.name} would have {_left_out(robust)} at a loss of {robust.loss:.4f}"
    return ours if robust is chosen else f"{ours}; {theirs}"


def _longer(tokens: float, others: float) -> str:
    """Tokens of a recipe that has more than the `others`."""
    return f"{tokens / 1e6:.0f} million, {tokens / others:.2f} times as many as the full pipeline has"


def _left_out(each: Candidate) -> str:
    """Losses with a quarter and with half of the stages left out later."""
    known = each.quarter is not None and each.half is not None
    return f"{each.quarter:.2f}, {each.half:.2f}" if known else "not evaluated"


def _beside(dense: Candidate, chosen: Candidate) -> str:
    tokens = "" if dense.recipe.tokens is None else f", {dense.recipe.tokens / 1e6:.0f} M tokens"
    what = f"{dense.recipe.depth} layers{tokens}"
    if dense.run_s is None or dense.timing is None or chosen.run_s is None:
        return f"{what}: no plan"
    verdict = (
        f"reaches that loss in {dense.run_s / chosen.run_s:.2f} of the time"
        if dense.reaches
        else "above it in more time"
        if dense.run_s >= chosen.run_s
        else f"above it in {dense.run_s / chosen.run_s:.2f} of the time"
    )
    return f"{what}, {dense.timing.how}: {difference(dense.above_full)}, {verdict}"


def _limits(proposal: Proposal, iteration_tokens: int | None) -> str:
    regime = proposal.regime
    here = (
        ", as here"
        if iteration_tokens == regime.iteration_tokens
        else ""
        if iteration_tokens is None
        else f", here {iteration_tokens:,}"
    )
    length = f"{regime.tokens / 1e6:g} M tokens (about {regime.tokens_per_parameter:g} a parameter)"
    iterations = f"{regime.iterations:,} iterations of {regime.iteration_tokens:,} tokens{here}"
    return (
        f"  Measured for {regime.layers} layers, {length} in {iterations}; nothing is extrapolated to other depths, "
        f"tokens or shares."
    )


def difference(interval: Interval) -> str:
    """A difference in nats with its interval, if it has one."""
    if not math.isfinite(interval.high):
        return f"{interval.value:+.4f} (one seed)"
    return f"{interval.value:+.4f} ({interval.low:+.4f} to {interval.high:+.4f})"


def duration(seconds: float) -> str:
    """A time in hours, or in seconds if it is short."""
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.1f} s"


def document(proposals: Sequence[Proposal], costs: CostTable) -> dict[str, Any]:
    """The proposals as plain values; times in seconds, losses in nats."""
    return {
        "format": "skippipe.proposal/1",
        "source": costs.source,
        "regimes": [
            {
                "name": proposal.regime.name,
                "chosen": None if proposal.chosen is None else proposal.chosen.recipe.name,
                "undecided": [each.recipe.name for each in proposal.faster],
                "recipes": [_entry(each) for each in proposal.candidates],
            }
            for proposal in proposals
        ],
    }


def _entry(each: Candidate) -> dict[str, Any]:
    bounds = (each.above_full.low, each.above_full.high)
    return {
        "name": each.recipe.name,
        "depth": each.recipe.depth,
        "tokens": each.recipe.tokens,
        "seeds": each.seeds,
        "learning_rate": each.learning_rate,
        "loss": each.loss,
        "above_full": each.above_full.value,
        "interval": list(bounds) if all(map(math.isfinite, bounds)) else None,
        "quarter_left_out": each.quarter,
        "half_left_out": each.half,
        "run_s": each.run_s,
        "reaches_full": each.reaches,
        "timing": None if each.timing is None else dataclasses.asdict(each.timing),
    }
