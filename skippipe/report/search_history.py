"""History of the search for a plan, from the plan's file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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


def read_search_history(solver: Mapping[str, Any]) -> SearchHistory:
    """Read `events` ([elapsed_s, work, upper_s or null, lower_s], in order) and `statistics` (numbers by name).

    Plans may come from other tools: malformed data counts as absent.
    """
    return SearchHistory(_events(solver.get("events")), _statistics(solver.get("statistics")))


def _events(rows: Any) -> list[SearchEvent]:
    if not isinstance(rows, list):
        return []
    events: list[SearchEvent] = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 4 and all(_is_time(row[i]) for i in (0, 1))):
            return []
        if not all(value is None or _is_time(value) for value in row[2:]):
            return []
        elapsed_s, work, upper_s, lower_s = row
        event = SearchEvent(elapsed_s, work, upper_s, lower_s or None)
        if events and (event.elapsed_s < events[-1].elapsed_s or event.work < events[-1].work):
            return []
        events.append(event)
    return events


def _statistics(found: Any) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    return {str(name): value for name, value in found.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value: Any) -> bool:
    return _is_number(value) and value >= 0
