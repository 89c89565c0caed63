"""From the lines of a run to what it has come to."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from skippipe.study.metrics import Point, read_progress
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
    """What a process reports that goes on after `first`: its validation, and iterations, one after every third."""
    events: list[Event] = [replace(PLAN, attempt=process), validation(first, process)]
    for number in range(first + 1, last + 1):
        events.append(iteration(number, process))
        if number % 3 == 0:
            events.append(validation(number, process))
    return events


def test_a_run_in_one_go() -> None:
    events = [*reported(0, 7, 0), ValidationDone(iteration=7, loss=8.0, tokens=60, training_loss=7.5)]
    progress = read_progress(events)
    assert progress is not None
    assert progress.tokens == 7 * 60
    assert progress.seconds == 3.5
    assert progress.curve == [Point(0, 9.0, None), Point(180, 8.7, None), Point(360, 8.4, None), Point(420, 8.0, 7.5)]
    assert progress.summary is None
    assert read_progress([*events, SUMMARY]).summary is not None  # type: ignore[union-attr]
    assert read_progress([]) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5))
def test_whatever_was_killed_the_later_lines_count(stretches: list[tuple[int, int]]) -> None:
    """Each process goes on from somewhere in what was done, and each iteration is known from the last that did it."""
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
    progress = read_progress(events)
    assert progress is not None
    assert {n: e.iteration_s - 0.5 for n, e in progress.iterations.items()} == expected
    assert {n: e.attempt for n, e in progress.validations.items()} == validated
    assert progress.plan.attempt == len(stretches) - 1


def test_losses_that_are_no_numbers_are_no_points() -> None:
    """A run that diverges may be validated before it fails; its records are JSON."""
    events = [*reported(0, 2, 0), iteration(3, 0), replace(validation(3, 0), loss=float("nan"))]
    events += [iteration(6, 0), replace(validation(6, 0), training_loss=float("inf"))]
    progress = read_progress(read_events(map(to_json, events)))
    assert progress is not None
    assert progress.curve == [Point(0, 9.0, None)]
    assert progress.tokens == 6 * 60


def test_lines_that_are_torn() -> None:
    events = reported(0, 4, 0)
    lines = [to_json(event) for event in events]
    torn = [*lines[:3], lines[3][:20], "", "[1, 2]", '"event"', *lines[4:], lines[-1][: len(lines[-1]) // 2]]
    assert read_events(torn) == [*events[:3], *events[4:]]


def test_a_run_that_goes_on_after_its_end_is_not_finished() -> None:
    events = [*reported(0, 4, 0), SUMMARY, *reported(4, 6, 1)]
    progress = read_progress(events)
    assert progress is not None
    assert progress.summary is None
    assert progress.tokens == 6 * 60


def test_an_attempt_makes_void_what_came_later() -> None:
    """Also before it has told of an iteration of its own."""
    first = [AttemptStarted(attempt=1, iteration=0, time=""), *reported(0, 7, 0), SUMMARY]
    progress = read_progress([*first, AttemptStarted(attempt=2, iteration=4, time="")])
    assert progress is not None
    assert sorted(progress.iterations) == [1, 2, 3, 4]
    assert sorted(progress.validations) == [0, 3]
    assert progress.summary is None
