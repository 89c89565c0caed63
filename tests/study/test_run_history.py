"""The history of a run from its events."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from skippipe.study.run_history import Point, read_run_history
from skippipe.train.observe.events import (
    AttemptStarted,
    Event,
    IterationDone,
    PlanReady,
    RunSummary,
    ValidationDone,
    read_events,
    to_json,
)

PLAN = PlanReady(
    strategy="skippipe", skip_ratio=0.0, stages=3, nodes=4, microbatches=3, microbatch_size=2, sequence=10,
    predicted_s=None, lower_bound_s=None, prediction_note="", full={}, model="llama", parameters=1, layers=[1, 1, 1],
    processes=4, training_tokens=1, iterations=7, recv_buffers=2, device="cpu",
)  # fmt: skip
SUMMARY = RunSummary(
    iterations=7, loss_before=9.0, loss_after=8.0, predicted_s=None, measured_s=0.5, reasons=[], device="cpu"
)


def iteration(number: int, process: int) -> Event:
    return IterationDone(
        iteration=number, loss=9 - number / 10, tokens=60, tokens_per_s=120.0, iteration_s=0.5 + process, norm=1.0,
        learning_rate=0.1,
    )  # fmt: skip


def validation(number: int, process: int) -> ValidationDone:
    return ValidationDone(iteration=number, loss=9 - number / 10, tokens=60, attempt=process)


def reported(first: int, last: int, process: int) -> list[Event]:
    """Events of a process that resumes after `first`: its validation, and iterations, one after every third."""
    events: list[Event] = [replace(PLAN, attempt=process), validation(first, process)]
    for number in range(first + 1, last + 1):
        events.append(iteration(number, process))
        if number % 3 == 0:
            events.append(validation(number, process))
    return events


def test_a_run_in_one_go() -> None:
    events = [*reported(0, 7, 0), ValidationDone(iteration=7, loss=8.0, tokens=60, training_loss=7.5)]
    history = read_run_history(events)
    assert history is not None
    assert history.tokens == 7 * 60
    assert history.seconds == 3.5
    assert history.curve == [Point(0, 9.0, None), Point(180, 8.7, None), Point(360, 8.4, None), Point(420, 8.0, 7.5)]
    assert history.summary is None
    assert read_run_history([*events, SUMMARY]).summary is not None  # type: ignore[union-attr]
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
        events += reported(first, last, process)
        expected = {n: p for n, p in expected.items() if n <= first} | dict.fromkeys(
            range(first + 1, last + 1), process
        )
        validated = {n: p for n, p in validated.items() if n < first} | {first: process}
        validated |= {n: process for n in range(first + 1, last + 1) if n % 3 == 0}
    history = read_run_history(events)
    assert history is not None
    assert {n: e.iteration_s - 0.5 for n, e in history.iterations.items()} == expected
    assert {n: e.attempt for n, e in history.validations.items()} == validated
    assert history.plan.attempt == len(stretches) - 1


def test_non_finite_losses_are_no_points() -> None:
    """A run that diverges may be validated before it fails; its records are JSON."""
    events = [*reported(0, 2, 0), iteration(3, 0), replace(validation(3, 0), loss=float("nan"))]
    events += [iteration(6, 0), replace(validation(6, 0), training_loss=float("inf"))]
    history = read_run_history(read_events(map(to_json, events)))
    assert history is not None
    assert history.curve == [Point(0, 9.0, None)]
    assert history.tokens == 6 * 60


def test_lines_that_are_torn() -> None:
    events = reported(0, 4, 0)
    lines = [to_json(event) for event in events]
    torn = [*lines[:3], lines[3][:20], "", "[1, 2]", '"event"', *lines[4:], lines[-1][: len(lines[-1]) // 2]]
    assert read_events(torn) == [*events[:3], *events[4:]]


def test_a_run_that_goes_on_after_its_end_is_not_finished() -> None:
    events = [*reported(0, 4, 0), SUMMARY, *reported(4, 6, 1)]
    history = read_run_history(events)
    assert history is not None
    assert history.summary is None
    assert history.tokens == 6 * 60


def test_an_attempt_makes_void_what_came_later() -> None:
    """Also before it has reported an iteration."""
    first = [AttemptStarted(attempt=1, iteration=0, time=""), *reported(0, 7, 0), SUMMARY]
    history = read_run_history([*first, AttemptStarted(attempt=2, iteration=4, time="")])
    assert history is not None
    assert sorted(history.iterations) == [1, 2, 3, 4]
    assert sorted(history.validations) == [0, 3]
    assert history.summary is None
