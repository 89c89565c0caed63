"""Runs that stop and go on: as if nothing had been, on the same ranks, on others, by other plans."""

import dataclasses
import json
import os
import pickle
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pool as pools
import pytest
import torch
from effort import cases
from torch import Tensor
from train.alone import EventDict, free_port, of_kind, only_rank, plain, train_alone
from train.conftest import Folder
from train.jobs import make_cluster, make_job

from skippipe.checkpoint import open_checkpoint
from skippipe.checkpoint.directory import CHECKPOINTS
from skippipe.checkpoint.saving import CheckpointContents, CheckpointSaver
from skippipe.checkpoint.tensors import open_tensors
from skippipe.config import ScheduleConfig
from skippipe.errors import InputError
from skippipe.train.config import TrainJob
from skippipe.train.connect.rank_spec import Launcher, RankSpec, assign_nodes
from skippipe.train.loop.token_batches import TokenBatches
from skippipe.train.observe.events import Event, IterationDone, Report
from skippipe.train.rank import train_rank
from skippipe.train.resolve.layout import resolve_layout
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec

NEVER = 10**6
ITERATIONS = 5
DROPOUT = {"attention_dropout": 0.2}


def stopping_at(iteration: int, reported: list[EventDict]) -> Report:
    """A report that has this process asked to stop in the iteration after `iteration`."""

    def report(event: Event) -> None:
        reported.append(plain(event))
        if isinstance(event, IterationDone) and event.iteration == iteration:
            os.kill(os.getpid(), signal.SIGTERM)

    return report


def one_rank(rank: int, spec: RunSpec, processes: int | None, folder: Path, port: int, stop_at: int) -> list[EventDict]:
    """In a warm worker: leave its group, train, be asked to stop perhaps, and return to a group of the same size."""
    reported: list[EventDict] = []
    names = assign_nodes(spec.layout.cluster.names, processes)
    pools.leave()
    rank_spec = RankSpec(rank, len(names), names[rank], "127.0.0.1", port, launcher=Launcher.LOCAL)
    asked = train_rank(spec, rank_spec, folder, stopping_at(stop_at, reported))
    assert (asked is None) == (stop_at == NEVER)
    pools.join(rank, len(names), str(folder.parent / f"back-{port}"))
    return reported


Train = Callable[..., list[EventDict]]


@pytest.fixture
def train(pool: pools.Pool) -> Train:
    """Train with warm workers in a folder; returns the events of rank 0."""

    def call(job: TrainJob, folder: Path, processes: int | None = None, stop_at: int = NEVER) -> list[EventDict]:
        spec, port = resolve(job), free_port()
        world = processes or len(spec.layout.cluster.names)
        reported: list[Any] = pool.run(one_rank, [(spec, processes, folder, port, stop_at)] * world, timeout_s=120)
        return list(reported[0])

    return call


def job_of(**changes: Any) -> TrainJob:
    job = make_job(train__iterations=ITERATIONS, train__validate_every=None, **changes)
    return dataclasses.replace(job, model=job.model | DROPOUT)


def losses(events: Sequence[EventDict]) -> dict[int, float]:
    return {event["iteration"]: event["loss"] for event in of_kind(events, "iteration")}


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Everything that the newest checkpoint of a run holds."""
    checkpoint = open_checkpoint(folder)
    with open_tensors(checkpoint.path, checkpoint.manifest) as files:
        return {name: files.read(name).clone() for name in files}


def check_equal(one: Path, other: Path) -> None:
    """Two runs have come to the same, bit by bit."""
    ours, theirs = tensors_of(one), tensors_of(other)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 100
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    states = [open_checkpoint(folder).state for folder in (one, other)]
    assert states[0] == states[1]


@pytest.mark.parametrize("skip_ratio", cases([0.0, 1 / 3], [1 / 3]))
def test_a_run_that_was_stopped_comes_to_the_same(skip_ratio: float, train: Train, folder: Folder) -> None:
    schedule = ScheduleConfig(microbatches_per_source=3, skip_ratio=skip_ratio)
    job = job_of(schedule=schedule, checkpoint__every=2)
    unbroken = train(job, folder("unbroken"))
    broken = folder("broken")
    first = train(job, broken, stop_at=1)
    stopped = of_kind(first, "stopped")
    assert [event["saved"] for event in stopped] == [True]
    at = stopped[0]["iteration"]
    assert 1 <= at < ITERATIONS
    assert not of_kind(first, "summary")
    second = train(job, broken, stop_at=at + 1)
    third = train(job, broken)
    for events in (second, third):
        (resumed,) = of_kind(events, "resumed")
        assert resumed["plan_kept"]
        assert resumed["damaged"] == []
    assert losses(first) | losses(second) | losses(third) == losses(unbroken)
    assert of_kind(third, "summary")[0]["loss_after"] == of_kind(unbroken, "summary")[0]["loss_after"]
    check_equal(broken.with_name("unbroken"), broken)
    assert open_checkpoint(broken).state.iteration == ITERATIONS


def one_rank_without_pickle(*arguments: Any) -> list[EventDict]:
    """In a warm worker: as `one_rank`, where torch cannot make an object of what it is sent or reads."""
    from torch.distributed import distributed_c10d

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something is unpickled")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_tensor_to_object", "_unpickler", "_object_to_tensor"):
            patch.setattr(distributed_c10d, name, refuse)
        patch.setattr(torch, "load", refuse)
        patch.setattr(pickle, "loads", refuse)
        patch.setattr(pickle, "load", refuse)
        patch.setattr(pickle, "Unpickler", refuse)
        return one_rank(*arguments)


def test_nothing_is_unpickled(pool: pools.Pool, folder: Folder) -> None:
    """Four ranks join, measure, train, save, stop and go on: whatever they tell each other or read is no pickle."""
    run = folder("run")
    job = job_of(checkpoint__every=1, runtime__calibrate=True)
    reported: list[EventDict] = []
    for stop_at in (2, NEVER):
        port = free_port()
        reported = pool.run(one_rank_without_pickle, [(resolve(job), None, run, port, stop_at)] * 4, timeout_s=120)[0]
    assert of_kind(reported, "resumed")
    assert of_kind(reported, "checkpoint")


def test_checkpoints_are_made_while_training_goes_on(folder: Folder) -> None:
    run = folder("run")
    events = train_alone(job_of(checkpoint__every=1, checkpoint__keep=3), run)
    saved = of_kind(events, "checkpoint")
    assert saved[-1]["iteration"] == ITERATIONS
    assert [event["iteration"] for event in saved] == sorted({event["iteration"] for event in saved})
    assert all(event["bytes"] > 100_000 for event in saved)
    kept = sorted(path.name for path in (run / CHECKPOINTS).iterdir())
    assert kept == [f"iteration-{event['iteration']:06d}" for event in saved[-3:]]


def test_nothing_is_saved_where_nobody_asks(folder: Folder) -> None:
    run = folder("run")
    events = train_alone(job_of(checkpoint__enabled=False), run)
    assert not of_kind(events, "checkpoint")
    assert not (run / CHECKPOINTS).exists()


def test_a_run_at_its_end_goes_no_further(folder: Folder) -> None:
    run = folder("run")
    first = train_alone(job_of(), run)
    again = train_alone(job_of(), run)
    assert not of_kind(again, "iteration")
    (summary,) = of_kind(again, "summary")
    assert summary["loss_after"] == of_kind(first, "summary")[0]["loss_after"]
    assert summary["measured_s"] is None


OTHERS = {
    "2 ranks": (job_of(), 2),
    "3 ranks": (job_of(), 3),
    "6 ranks": (job_of(cluster=make_cluster(6, [2, 2, 2])), None),
    "2 stages": (job_of(cluster=make_cluster(3, [2, 1])), None),
    "other layers": (job_of(train__layers=[1, 2, 1]), None),
    "3 sources": (job_of(cluster=make_cluster(5, [3, 1, 1])), None),
    "full pipeline": (job_of(schedule=ScheduleConfig(microbatches_per_source=3, skip_ratio=0.0)), None),
    "other microbatches": (job_of(train__microbatch_size=1), None),
}
USUAL_OTHERS = ("2 ranks", "6 ranks", "other layers", "other microbatches")
"""One for each of what changes: who serves the nodes, who the sources are, where stages are cut, what a pass has."""


def with_every(job: TrainJob) -> TrainJob:
    """The same, validated and saved after every iteration."""
    return dataclasses.replace(
        job,
        train=dataclasses.replace(job.train, validate_every=1),
        checkpoint=dataclasses.replace(job.checkpoint, every=1, keep=100),
    )


def back_to(run: Path, latest: int) -> int:
    """Take away the newest checkpoints of a run; which iteration it then stands at, at most `latest`."""
    for path in (run / CHECKPOINTS).iterdir():
        if int(path.name.removeprefix("iteration-")) > latest:
            shutil.rmtree(path)
    at: int = open_checkpoint(run).state.iteration
    return at


def validations(events: Sequence[EventDict]) -> dict[int, float]:
    return {event["iteration"]: event["loss"] for event in of_kind(events, "validation")}


@pytest.fixture(scope="module")
def finished(pool: pools.Pool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[EventDict]]:
    """A run to its end, with a checkpoint of most iterations."""
    run = tmp_path_factory.mktemp("finished") / "run"
    run.mkdir()
    spec, port = resolve(with_every(job_of())), free_port()
    reported: list[Any] = pool.run(one_rank, [(spec, None, run, port, NEVER)] * 4, timeout_s=120)
    return run, list(reported[0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[EventDict]]:
    """The same, by one process."""
    run = tmp_path_factory.mktemp("trained") / "run"
    run.mkdir()
    return run, train_alone(with_every(job_of()), run)


@pytest.fixture
def copied(trained: tuple[Path, list[EventDict]], tmp_path: Path) -> Path:
    """A copy of that run, which a test may change."""
    return Path(shutil.copytree(trained[0], tmp_path / "copied"))


@pytest.mark.parametrize("other", cases([*OTHERS], USUAL_OTHERS))
def test_onto_others_and_back(other: str, train: Train, finished: tuple[Path, list[EventDict]], tmp_path: Path) -> None:
    """A change of plan leaves model and data position unchanged."""
    run, known = tmp_path / "run", validations(finished[1])
    shutil.copytree(finished[0], run)
    job, processes = OTHERS[other]
    at = back_to(run, 2)
    there = train(with_every(job), run, processes)
    # In microbatches of another size, torch rounds otherwise.
    rel = 1e-12 if job.train.microbatch_size == 2 else 1e-6
    assert validations(there)[at] == pytest.approx(known[at], rel=rel)
    assert [event["plan_kept"] for event in of_kind(there, "resumed")] == [processes is not None]
    blocks = job.train.microbatch_size * 3 * len(resolve_layout(job).stages[0])
    done = open_checkpoint(run).state
    before = open_checkpoint(run / CHECKPOINTS / f"iteration-{at:06d}").state
    assert (done.iteration, done.position) == (ITERATIONS, before.position + blocks * (ITERATIONS - at))
    assert done.tokens == done.position * job.data.sequence
    again = back_to(run, 4)
    assert again > at
    back = train(with_every(job_of()), run)
    assert validations(back)[again] == pytest.approx(validations(there)[again], rel=rel)
    assert validations(back)[ITERATIONS] < known[0], "it has learnt"
    assert of_kind(back, "summary")


def test_every_block_once_in_an_epoch_whatever_changes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder("run")
    read: list[int] = []
    used: list[int] = []
    real = TokenBatches.training_batches

    def noting(self: TokenBatches, position: int, count: int) -> list[tuple[Tensor, Tensor]]:
        read.extend(range(position, position + count * self.microbatch_size))
        return real(self, position, count)

    monkeypatch.setattr(TokenBatches, "training_batches", noting)
    jobs = [
        job_of(),
        job_of(cluster=make_cluster(5, [3, 1, 1])),
        job_of(train__microbatch_size=1),
        job_of(schedule=ScheduleConfig(microbatches_per_source=2, skip_ratio=0.0)),
    ]
    for job in jobs:
        reported: list[EventDict] = []
        spec = resolve(dataclasses.replace(job, train=dataclasses.replace(job.train, iterations=1000)))
        train_rank(spec, only_rank(spec), run, stopping_at(open_or_0(run) + 2, reported))
        trained_on = open_checkpoint(run).state.position
        used += [position for position in read if position < trained_on]  # what was read ahead was not used
        read.clear()
    positions = Counter(used)
    assert set(positions.values()) == {1}
    assert sorted(positions) == list(range(len(positions)))
    assert open_checkpoint(run).state.position == len(positions)


def open_or_0(run: Path) -> int:
    return open_checkpoint(run).state.iteration if (run / CHECKPOINTS).exists() else 0


def test_another_run_goes_on_from_a_checkpoint(trained: tuple[Path, list[EventDict]], folder: Folder) -> None:
    first, second = trained[0], folder("second")
    path = sorted((first / CHECKPOINTS).iterdir())[1]
    events = train_alone(job_of(checkpoint__resume=str(path)), second)
    assert of_kind(events, "resumed")[0]["path"] == str(path)
    check_equal(first, second)
    again = train_alone(job_of(checkpoint__resume=str(path)), second)
    assert of_kind(again, "resumed")[0]["iteration"] == ITERATIONS, "its own ones come first"


def test_a_damaged_one_is_passed_over(trained: tuple[Path, list[EventDict]], copied: Path) -> None:
    run, first = copied, trained[1]
    newest, before, *_ = sorted((run / CHECKPOINTS).iterdir(), reverse=True)
    file = max((newest / "tensors").iterdir(), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-100])
    again = train_alone(job_of(), run)
    (resumed,) = of_kind(again, "resumed")
    assert resumed["path"] == str(before)
    assert len(resumed["damaged"]) == 1
    assert str(file) in resumed["damaged"][0]
    assert losses(again).items() <= losses(first).items()
    assert open_checkpoint(run).state.iteration == ITERATIONS


def test_no_complete_checkpoint_is_no_fresh_start(copied: Path) -> None:
    run = copied
    for path in (run / CHECKPOINTS).iterdir():
        (path / "state.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"none of the checkpoints in .* is complete: .*state\.json: expected \d+ bytes, got 2"
    ):
        train_alone(job_of(), run)
    assert all((path / "manifest.json").exists() for path in (run / CHECKPOINTS).iterdir()), "what was there is there"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__seed": 5}, "train.seed: expected 0, got 5; the order of the text depends on it"),
        ({"data__sequence": 16}, r"checkpoint of another text \(data\.\*\)"),
        ({"model": {**make_job().model, **DROPOUT, "hidden_size": 64}}, "model.hidden_size: expected 32, got 64"),
        ({"model": make_job().model}, "model.attention_dropout: expected 0.2, got 0.0"),
    ],
)
def test_of_another_run(changes: dict[str, Any], message: str, copied: Path) -> None:
    model = changes.pop("model", job_of().model)
    with pytest.raises(InputError, match=message):
        train_alone(dataclasses.replace(job_of(**changes), model=model), copied)


def test_whole_ones_after_a_damaged_one_are_kept(copied: Path) -> None:
    """A damaged checkpoint of a later iteration does not displace those that a resumed run saves."""
    run = copied
    for path in (run / CHECKPOINTS).iterdir():
        if int(path.name.removeprefix("iteration-")) > 2:
            (path / "plan.json").write_text("{}")
    reported = train_alone(job_of(checkpoint__every=2, checkpoint__keep=1), run)
    assert of_kind(reported, "resumed")[0]["iteration"] <= 2
    left = {path.name for path in (run / CHECKPOINTS).iterdir()}
    assert {name for name in left if not name.startswith("damaged-")} == {f"iteration-{ITERATIONS:06d}"}
    assert f"damaged-iteration-{ITERATIONS:06d}" in left
    assert open_checkpoint(run).state.iteration == ITERATIONS


def test_before_the_first_iteration_one_stands(folder: Folder) -> None:
    """A run that is killed at once resumes with its plan, although it would measure and plan again."""
    run = folder("run")
    (run / "metrics.jsonl").write_text('{"event": "torn')
    job = job_of(runtime__calibrate=True, checkpoint__every=None, checkpoint__keep=9)
    first = train_alone(job, run)
    assert back_to(run, 0) == 0
    again = train_alone(job, run)
    assert of_kind(again, "resumed")[0]["plan_kept"]
    assert losses(again) == losses(first)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [*first, *again], "a torn line is cut off"


class SlowTensor(Tensor):
    """Takes longer than an iteration to be copied."""

    def detach(self) -> Tensor:
        time.sleep(0.3)
        return self.as_subclass(Tensor).detach()


def test_weights_do_not_change_before_they_are_copied(
    trained: tuple[Path, list[EventDict]], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the copy of a checkpoint takes, it holds what was there after its iteration."""
    plain, slow = trained[0], folder("slow")
    save = CheckpointSaver.save

    def save_slowly(self: CheckpointSaver, tensors: Mapping[str, Tensor], contents: CheckpointContents) -> None:
        first = next(iter(tensors))
        save(self, {**tensors, first: tensors[first].detach().as_subclass(SlowTensor)}, contents)

    monkeypatch.setattr(CheckpointSaver, "save", save_slowly)
    reported = train_alone(with_every(job_of()), slow)
    assert sum(event["blocked_s"] for event in of_kind(reported, "checkpoint")) > 0.1, "training had to wait"
    for path in (slow / CHECKPOINTS).iterdir():
        other = plain / CHECKPOINTS / path.name
        if other.exists():
            check_equal(other, path)
