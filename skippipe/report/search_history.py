"""History of the search for a plan, from the plan's file."""

from dataclasses import dataclass, field

from skippipe._scheduler import SearchReport


@dataclass(frozen=True)
class SearchEvent:
    """Best plan and best bound at a point of the search."""

    elapsed_s: float
    work: float
    upper_s: float | None
    """best iteration in seconds; None before the first plan"""
    lower_s: float | None
    """best lower bound in seconds; None if unknown (0 carries no information)"""


@dataclass(frozen=True)
class SearchHistory:
    """Search data in a plan's `solver`; empty if there is none."""

    events: list[SearchEvent] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)


def read_search_history(report: SearchReport) -> SearchHistory:
    """Read the events and the statistics of a search's report."""
    events = [SearchEvent(event.elapsed_s, event.work, event.upper_s, event.lower_s) for event in report.events]
    return SearchHistory(events, report.statistics)
