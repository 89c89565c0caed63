"""The history of a run from its events."""

import json

from hypothesis import given
from hypothesis import strategies as st

from skippipe.study.run_history import Point, parse_lines, read_run_history
from skippipe.train.events import Event, strict

PLAN = {"event": "plan", "microbatches": 3, "microbatch_size": 2, "sequence": 10}


def iteration(number: int, process: int) -> Event:
    return {"event": "iteration", "iteration": number, "loss": 9 - number / 10, "iteration_s": 0.5 + process}


def validation(number: int, process: int) -> Event:
    return {"event": "validation", "iteration": number, "loss": 9 - number / 10, "process": process}


def told(first: int, last: int, process: int) -> list[Event]:
    """Events of a process that resumes after `first`: a validation first and after every third iteration."""
    events: list[Event] = [PLAN | {"process": process}, validation(first, process)]
    for number in range(first + 1, last + 1):
        events.append(iteration(number, process))
        if number % 3 == 0:
            events.append(validation(number, process))
    return events


def test_an_uninterrupted_run() -> None:
    events = [*told(0, 7, 0), {"event": "validation", "iteration": 7, "loss": 8.0, "training_loss": 7.5}]
    history = read_run_history(events)
    assert history is not None
    assert history.tokens == 7 * 60
    assert history.seconds == 3.5
    assert history.curve == [Point(0, 9.0, None), Point(180, 8.7, None), Point(360, 8.4, None), Point(420, 8.0, 7.5)]
    assert history.summary is None
    assert read_run_history([*events, {"event": "summary", "iterations": 7}]).summary is not None  # type: ignore[union-attr]
    assert read_run_history([]) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5))
def test_later_events_supersede_earlier_ones(stretches: list[tuple[int, int]]) -> None:
    """Each process resumes somewhere, and each iteration comes from the last process that ran it."""
    events: list[Event] = []
    expected: dict[int, int] = {}
    validated: dict[int, int] = {}
    for process, (back, more) in enumerate(stretches):
        reached = max(expected, default=0)
        first = max(reached - back, 0)
        last = first + more
        events += told(first, last, process)
        expected = {n: p for n, p in expected.items() if n <= first} | dict.fromkeys(
            range(first + 1, last + 1), process
        )
        validated = {n: p for n, p in validated.items() if n < first} | {first: process}
        validated |= {n: process for n in range(first + 1, last + 1) if n % 3 == 0}
    history = read_run_history(events)
    assert history is not None
    assert {n: e["iteration_s"] - 0.5 for n, e in history.iterations.items()} == expected
    assert {n: e["process"] for n, e in history.validations.items()} == validated
    assert history.plan["process"] == len(stretches) - 1


def test_non_finite_losses_are_no_points() -> None:
    """A run that diverges may be validated before it fails; its records are JSON."""
    events = told(0, 6, 0)
    for event in events:
        if event["event"] == "validation" and event["iteration"] == 3:
            event["loss"] = float("nan")
        if event["event"] == "validation" and event["iteration"] == 6:
            event["training_loss"] = float("inf")
    lines = [json.dumps(strict(event), allow_nan=False) for event in events]
    history = read_run_history(parse_lines(lines))
    assert history is not None
    assert history.curve == [Point(0, 9.0, None)]
    assert history.tokens == 6 * 60


def test_incomplete_lines() -> None:
    lines = [json.dumps(event) for event in told(0, 4, 0)]
    torn = [*lines[:3], lines[3][:20], "", "[1, 2]", '"event"', *lines[4:], lines[-1][: len(lines[-1]) // 2]]
    assert parse_lines(torn) == [json.loads(line) for line in [*lines[:3], *lines[4:]]]


def test_a_run_resumed_after_its_end_is_unfinished() -> None:
    events = [*told(0, 4, 0), {"event": "summary", "iterations": 4}, *told(4, 6, 1)]
    history = read_run_history(events)
    assert history is not None
    assert history.summary is None
    assert history.tokens == 6 * 60


def test_an_attempt_voids_later_events() -> None:
    """Even before its first iteration."""
    first = [{"event": "attempt", "attempt": 1, "iteration": 0}, *told(0, 7, 0), {"event": "summary", "iterations": 7}]
    history = read_run_history([*first, {"event": "attempt", "attempt": 2, "iteration": 4}])
    assert history is not None
    assert sorted(history.iterations) == [1, 2, 3, 4]
    assert sorted(history.validations) == [0, 3]
    assert history.summary is None
