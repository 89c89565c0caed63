"""How the search for a plan went, as far as its file says so."""

from dataclasses import dataclass, field

from skippipe._scheduler import SearchReport


@dataclass(frozen=True)
class Event:
    """Best plan and best bound from a moment of the search on."""

    elapsed_s: float
    work: float
    upper_s: float | None
    """seconds of the best iteration; None as long as there is no plan"""
    lower_s: float | None
    """seconds of the best lower bound; None where it is not known (0 tells nothing)"""


@dataclass(frozen=True)
class Search:
    """What a plan's `solver` says about its search; empty where it says nothing."""

    events: list[Event] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)


def read_search(report: SearchReport) -> Search:
    """Read the events and the statistics of a search's report."""
    events = [Event(event.elapsed_s, event.work, event.upper_s, event.lower_s) for event in report.events]
    return Search(events, report.statistics)
