"""Text of numbers with units, and Markdown tables."""

from collections.abc import Sequence

from skippipe.workload import Throughput

WORK_PER_S = {"microbatches/s": "microbatches_per_s", "tokens/s": "tokens_per_s"}
"""Fields of `Throughput` by unit."""


def seconds(value: float | None) -> str:
    """Format a time with its unit; a dash for None."""
    return "-" if value is None else f"{value:.3f} s"


def percent(value: float | None) -> str:
    """Format a fraction in percent; a dash for None."""
    return "-" if value is None else f"{value:.1%}"


def work_per_s(throughput: Throughput, unit: str) -> str:
    """Format throughput in a unit of `WORK_PER_S`; a dash if unknown."""
    value = getattr(throughput, WORK_PER_S[unit])
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def throughput_text(throughput: Throughput) -> str:
    """Known throughput as a suffix: `, 4.2 microbatches/s, 4,300 tokens/s`."""
    shown = [(work_per_s(throughput, unit), unit) for unit in WORK_PER_S]
    return "".join(f", {value} {unit}" for value, unit in shown if value != "-")


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int) -> str:
    """A Markdown table; the first `texts` columns are text, the others numbers."""
    rule = [":--"] * texts + ["--:"] * (len(headings) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *rows])
