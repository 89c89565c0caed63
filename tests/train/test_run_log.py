"""What a run leaves in its folder, however often it starts and however it ends."""

import contextlib
import dataclasses
import json
import math
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pool as pools
import pytest
from train.alone import EventDict, free_port, of_kind, only_rank, train_alone
from train.conftest import Folder
from train.jobs import make_job
from train.test_resume import ITERATIONS, NEVER, back_to, job_of, one_rank, with_every

from skippipe import Plan
from skippipe.config import ScheduleConfig
from skippipe.errors import InputError
from skippipe.phases import PhaseSummary
from skippipe.plan_file import load_plan
from skippipe.planning import make_plan, planning_job
from skippipe.study.run_history import read_run_history
from skippipe.train.loop.engine import DivergedError, RankFlags, check_validation
from skippipe.train.observe.events import (
    EVENTS,
    Event,
    IterationDone,
    LogFailed,
    RunFiles,
    RunStopped,
    RunSummary,
    TimeBreakdown,
    ValidationDone,
    from_json,
    read_events,
    to_json,
)
from skippipe.train.observe.run_log import METRICS, RunLog, logged_end
from skippipe.train.rank import train_rank
from skippipe.train.resolve.resolve import resolve
from skippipe.train.signals import SIGNALS


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def validation(loss: float) -> Event:
    return ValidationDone(iteration=0, loss=loss, tokens=8)


def summary(breakdown: TimeBreakdown) -> Event:
    return RunSummary(
        iterations=4, loss_before=2.0, loss_after=1.0, predicted_s=1.0, measured_s=1.5, reasons=[], device="cpu",
        breakdown=breakdown,
    )  # fmt: skip


def iteration(number: int) -> Event:
    return IterationDone(
        iteration=number, loss=1.0, tokens=8, tokens_per_s=16.0, iteration_s=0.5, norm=1.0, learning_rate=0.1
    )


def lines_of(run: Path) -> list[EventDict]:
    """The events of a run, read as strictly as JSON is defined."""
    return [json.loads(line, parse_constant=refuse) for line in (run / METRICS).read_text().splitlines()]


@pytest.mark.parametrize(
    ("event", "written"),
    [
        (validation(1.5), {"loss": 1.5}),
        (validation(math.nan), {"loss": None, "not_finite": {"loss": "NaN"}}),
        (
            summary(TimeBreakdown(4, math.inf, {"loss": 0.5, "idle": -math.inf}, [("gemm", 0.5), ("adam", math.inf)])),
            {
                "breakdown": {
                    "iterations": 4, "seconds": None, "shares": {"loss": 0.5, "idle": None},
                    "slowest": [["gemm", 0.5], ["adam", None]],
                },
                "not_finite": {
                    "breakdown.seconds": "Infinity", "breakdown.shares.idle": "-Infinity",
                    "breakdown.slowest.1.1": "Infinity",
                },
            },
        ),
    ],
)  # fmt: skip
def test_numbers_that_are_not_finite(event: Event, written: EventDict) -> None:
    """They are null in the file, and are restored when it is read."""
    line = to_json(event)
    content = json.loads(line, parse_constant=refuse)
    assert content.items() >= written.items()
    assert ("not_finite" in content) == ("not_finite" in written)
    again = from_json(line)
    assert again is not None
    assert to_json(again) == line


def test_every_event_is_read_as_it_is_written() -> None:
    """With all optional fields, and without any."""
    for kind, event in EVENTS.items():
        values: dict[str, Any] = {item.name: item.name for item in dataclasses.fields(event)}
        values |= {"files": RunFiles({"0": "plan.json"}, "cluster.json", "config.yaml")} if kind == "plan" else {}
        values |= {"breakdown": TimeBreakdown(1, 2.0, {}, [])} if kind == "summary" else {}
        phase = PhaseSummary(1.0, 3, [0, 1, 2], 0.5, 0.5, ["CC1 off"], 2.0, None, 0.5)
        values |= {"phases": (phase,)} if kind == "plan" else {}
        full = event(**values)
        assert from_json(to_json(full)) == full
        least = event(**{i.name: values[i.name] for i in dataclasses.fields(event) if i.default is dataclasses.MISSING})
        line = to_json(least)
        assert "null" not in line, "fields that are None by default are omitted"
        assert from_json(line.replace("{", '{"later": 1, ', 1)) == least, "unknown fields are ignored"


def test_lines_that_are_no_events() -> None:
    line = to_json(validation(1.0))
    for torn in (line[:-5], "", "[1]", '"event"', "[" * 100_000, '{"event": "other"}', '{"event": []}', "{}"):
        assert from_json(torn) is None, torn
    with pytest.raises(InputError, match="event validation: expected a field 'tokens', got none"):
        read_events([line, line.replace("tokens", "words")])


def test_a_run_that_diverges_leaves_json(folder: Folder) -> None:
    run = folder("run")
    job = make_job(
        train__learning_rate=1e10, train__clip_norm=None, train__iterations=6, train__validate_every=1,
        checkpoint__every=1, checkpoint__keep=100,
    )  # fmt: skip
    spec = resolve(job)
    with (
        pytest.raises(DivergedError, match="the validation loss after iteration 1 is nan on the validation text;"),
        logged_end(run, lambda _: None) as log,
    ):
        train_rank(spec, only_rank(spec), run, log.report)
    *_, validation, end = lines_of(run)
    assert (validation["event"], validation["loss"], validation["not_finite"]) == ("validation", None, {"loss": "NaN"})
    assert (end["event"], end["outcome"], end["error"]) == ("run_ended", "failed", "DivergedError")
    assert end["message"].startswith("training has diverged: the validation loss")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["iteration-000000"], "what is finite is kept"


def test_all_ranks_end_where_a_validation_is_not_finite(pool: pools.Pool, folder: Folder) -> None:
    job = make_job(train__learning_rate=1e10, train__clip_norm=None, train__iterations=6, train__validate_every=1)
    run, port = folder("run"), free_port()
    for result in pool.attempt(one_rank, [(resolve(job), 4, run, port, NEVER)] * 4):
        assert isinstance(result, pools.Failure)
        assert result.kind == "DivergedError"
        assert "the validation loss after iteration 1 is nan" in result.message


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_validation_that_is_not_finite(loss: float) -> None:
    check_validation(5.0, 3, "the validation text")
    with pytest.raises(DivergedError, match=f"the validation loss after iteration 3 is {loss} on the validation text;"):
        check_validation(loss, 3, "the validation text")


def test_attempts_are_told_apart(folder: Folder) -> None:
    run = folder("run")
    job = with_every(job_of())
    first = train_alone(job, run)
    at = back_to(run, 3)
    second = train_alone(job, run)
    events = lines_of(run)
    assert [event["attempt"] for event in events] == [1] * len(first) + [2] * len(second)
    attempts = of_kind(events, "attempt")
    assert [event["iteration"] for event in attempts] == [0, at]
    assert events[0] == attempts[0]
    progress = read_run_history(read_events((run / METRICS).read_text().splitlines()))
    assert progress is not None
    assert {number: event.attempt for number, event in progress.iterations.items()} == {
        number: 1 if number <= at else 2 for number in range(1, ITERATIONS + 1)
    }


def test_tensorboard_shows_each_iteration_once(folder: Folder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    run = folder("run")
    job = with_every(job_of())
    train_alone(job, run)
    at = back_to(run, 3)
    train_alone(job, run)
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    steps = [point.step for point in board.Scalars("train/loss")]
    assert steps == list(range(1, ITERATIONS + 1)), f"those after {at} are of the second attempt alone"


def test_each_phase_keeps_its_plan(folder: Folder) -> None:
    """Going on by another plan overwrites neither plan nor cluster nor settings of what was trained before."""
    run = folder("run")
    job = with_every(job_of())
    first = train_alone(job, run)
    (reported,) = of_kind(first, "plan")
    assert reported["files"] == {"plans": {"0": "plan.json"}, "cluster": "cluster.json", "settings": "config.yaml"}
    kept = {name: (run / name).read_bytes() for name in ("plan.json", "cluster.json", "config.yaml")}
    at = back_to(run, 4)
    other = with_every(job_of(schedule=ScheduleConfig(microbatches_per_source=3, skip_ratio=0.0)))
    (reported,) = of_kind(train_alone(other, run), "plan")
    plan, settings = f"plan_after_{at}.json", f"config_after_{at}.yaml"
    assert reported["files"] == {"plans": {"0": plan}, "cluster": "cluster.json", "settings": settings}
    assert {name: (run / name).read_bytes() for name in kept} == kept
    assert (load_plan(str(run / "plan.json")).skip_ratio, load_plan(str(run / plan)).skip_ratio) != (0.0, 0.0)
    assert load_plan(str(run / plan)).skip_ratio == 0.0
    files = sorted(path.name for path in run.iterdir())
    assert back_to(run, at) == at
    (reported,) = of_kind(train_alone(other, run), "plan")
    assert reported["files"]["settings"] == settings
    third = sorted(path.name for path in run.iterdir())
    assert third == files or reported["files"]["plans"]["0"] not in {"plan.json", plan}, "the same plan is kept once"


def test_phases_and_attempts_together(tmp_path: Path) -> None:
    """Plans of phases to come keep their names as long as they are the same; those of phases that are over stay."""
    job = make_job()
    question = dataclasses.replace(planning_job(job.cluster, job.allocate, job.schedule), scope=None)
    made = make_plan(question, "full", job.planner)
    a, b, c, d = (
        Plan.from_json(json.dumps(json.loads(made.to_json()) | {"model": {"layers": number}})) for number in range(4)
    )

    def plans(iteration: int, first: Plan, second: Plan) -> dict[str, str]:
        record = recorder(tmp_path, iteration)
        files = record.keep_files("seed: 0\n", {0: first, 80: second}).plans
        record.close()
        for after, name in files.items():
            kept = load_plan(str(tmp_path / name)).to_json()
            assert kept == {"0": first, "80": second}[after].to_json()
        return files

    assert plans(0, a, b) == {"0": "plan.json", "80": "plan_after_80.json"}
    assert plans(40, a, b) == {"0": "plan.json", "80": "plan_after_80.json"}
    assert plans(40, c, d) == {"0": "plan_after_40.json", "80": "plan_after_80_2.json"}
    assert plans(40, d, b) == {"0": "plan_after_80_2.json", "80": "plan_after_80.json"}, "kept once"
    assert plans(90, c, b) == {"80": "plan_after_80.json"}
    assert plans(90, c, c) == {"80": "plan_after_40.json"}
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "plan.json", "plan_after_40.json", "plan_after_80.json", "plan_after_80_2.json", "cluster.json",
    }  # fmt: skip
    assert [path.name for path in tmp_path.glob("*.yaml")] == ["config.yaml"]


def recorder(run: Path, iteration: int = 0) -> RunLog:
    return RunLog(run, lambda _: None, iteration)


@pytest.mark.parametrize(
    ("error", "asked", "outcome"),
    [
        (None, None, {"outcome": "finished"}),
        (None, signal.SIGHUP, {"outcome": "stopped", "signal": "SIGHUP"}),
        (KeyboardInterrupt(), None, {"outcome": "stopped", "signal": "SIGINT"}),
        (SystemExit(143), None, {"outcome": "stopped", "signal": "SIGTERM"}),
        (InputError("x: expected y"), None, {"outcome": "failed", "error": "InputError", "message": "x: expected y"}),
    ],
)
def test_how_it_ended(
    error: BaseException | None, asked: signal.Signals | None, outcome: EventDict, tmp_path: Path
) -> None:
    """After the process that wrote has torn its last line."""
    leaves = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with leaves, logged_end(tmp_path, lambda _: None) as log:
        record = RunLog(tmp_path, log.report, 3)
        record(iteration(4))
        record.close()
        with (tmp_path / METRICS).open("a") as file:
            file.write('{"event": "iterat')
        log.stopped_by = asked
        if error is not None:
            raise error
    *_, before, last = lines_of(tmp_path)
    assert before["iteration"] == 4
    assert last == {"event": "run_ended", "attempt": 1, "iteration": 4} | outcome


def test_the_signal_may_have_come_to_another_machine(tmp_path: Path) -> None:
    with logged_end(tmp_path, lambda _: None) as log:
        record = RunLog(tmp_path, log.report, 3)
        record(RunStopped(iteration=4, saved=True, signal="SIGINT"))
        record.close()
        log.stopped_by = signal.SIGTERM  # as this process ends
    assert lines_of(tmp_path)[-1]["signal"] == "SIGINT"


@pytest.mark.parametrize("number", SIGNALS)
def test_all_ranks_learn_which_signal_has_come(number: signal.Signals) -> None:
    flags = [RankFlags(**RankFlags.asked_to_stop(by)) for by in (None, number, None)]
    assert RankFlags(*map(any, zip(*flags, strict=True))).stopped_by == number
    assert RankFlags(saving=True, replan=True, join=True).stopped_by is None


def test_an_attempt_that_tells_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError), logged_end(tmp_path, lambda _: None):
        raise InputError("no such thing")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_tears_no_line(tmp_path: Path) -> None:
    reported: list[Event] = []
    record = RunLog(tmp_path, reported.append, 0)
    record(iteration(1))
    record(LogFailed(message="x" * 10_000))  # the limit below is not to be met by TensorBoard's file
    size = (tmp_path / METRICS).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
        record(iteration(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    record(iteration(3))
    record.close()
    assert [event.get("iteration") for event in lines_of(tmp_path)] == [0, 1, None, 3]
    assert [event.message for event in reported if isinstance(event, LogFailed)][1:] == [
        f"{tmp_path / METRICS} cannot be written: File too large"
    ]


def test_a_file_of_another_name_keeps_what_it_has(tmp_path: Path) -> None:
    """A snapshot made of hard links is not written to."""
    snapshot, run = tmp_path / "snapshot.jsonl", tmp_path / "run"
    run.mkdir()
    snapshot.write_text('{"event": "iteration", "attempt": 6}\n')
    os.link(snapshot, run / METRICS)
    record = recorder(run)
    record(iteration(1))
    record.close()
    assert snapshot.read_text() == '{"event": "iteration", "attempt": 6}\n'
    assert [event["attempt"] for event in lines_of(run)] == [6, 7, 7]
