"""A worker that is killed at the start or at the end, where the others are not to go on without it: its node is named,
and nobody is left (in the middle: `test_resume_processes.py`). And one without which nobody can go on: the run starts
again.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from train.running import Running, signal_to

from skippipe.train.launch import restarts, watch
from skippipe.train.launch.failures import STACK_S, stacks_of
from skippipe.train.launch.watch import ForwardedStop, Parent, Watch
from skippipe.train.launch.worker import Worker
from skippipe.train.observe.events import (
    Event,
    EventWriter,
    RankTraining,
    RunRecovered,
    ValidationDone,
    WorkerEnded,
    WorkerFailed,
    WorkerRestarting,
    WorkerStarted,
    WorkerStaysLost,
)

WITHIN_S = 15.0
LONG = [
    "cluster.nodes_per_site=2", "cluster.stage_sizes=[1,1]", "data.validation_blocks=400", "train.validate_every=null",
    "train.iterations=3", "runtime.calibrate=false",
]  # fmt: skip
SHORT = ["data.validation_blocks=100", "train.validate_every=null", "train.iterations=12", "runtime.calibrate=false"]
LAST = ["runtime.recover=false", "runtime.restarts=0"]


RECOVERED = RunRecovered(
    iteration=3,
    lost=[0],
    lost_names=["a"],
    reason="",
    processes=1,
    predicted_s=None,
    planning_s=0.0,
    seconds=0.0,
    plan_files={},
)
VALIDATED = ValidationDone(iteration=0, loss=1.0, tokens=1)
TRAINING = RankTraining(rank=1, reporter=1, reporter_names=["b"], predicted_s=None)
GOES_ON = RankTraining(rank=1, reporter=1, reporter_names=["b"], predicted_s=None, lost=[0], lost_names=["a"])


@contextlib.contextmanager
def two_workers(folder: Path) -> Iterator[tuple[Parent, dict[int, Worker], socket.socket, IO[bytes]]]:
    """A parent of workers that repeats what is written to it, the workers, where its orders arrive, and its input."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        workers = {rank: Worker(rank, (name,), folder / "log", process=process.pid) for rank, name in enumerate("ab")}
        yield Parent(process, folder / "parent.txt", ours), workers, theirs, process.stdin


def test_one_that_wakes_up_too_soon_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds that the others have agreed to go on, and ends, before they have said so."""
    monkeypatch.setattr(watch, "SETTLE_S", 0.0)
    seen: list[Event] = []
    with two_workers(tmp_path) as (parent, workers, theirs, told):
        tell_parent, pipes = EventWriter(told.fileno()), list[EventWriter]()

        def report(event: Event) -> None:
            seen.append(event)
            if isinstance(event, WorkerStarted):
                pipes.extend(EventWriter(socket.recv_fds(theirs, 4096, 1)[1][0]) for _ in workers)
                pipes[1](TRAINING)
                pipes[1](VALIDATED)
            elif isinstance(event, ValidationDone):
                pipes[0](WorkerFailed(status=1, message="gone on without it", cause="LeftBehindError"))
                os.close(pipes[0].descriptor)
                tell_parent(WorkerEnded(rank=0, status=1, names=[]))
            elif event == WorkerEnded(rank=0, status=1, names=["a"]):
                pipes[1](GOES_ON)
                pipes[1](RECOVERED)
                os.close(pipes[1].descriptor)
                tell_parent(WorkerEnded(rank=1, status=0, names=[]))
                told.close()

        tell_parent(WorkerStarted(rank=1, process=parent.process.pid))
        Watch(parent, workers, tmp_path, report, recovery_s=60.0).run()
    assert RECOVERED in seen
    assert workers[0].left_behind


@pytest.mark.parametrize("admitted", [False, True])
def test_one_that_is_started_again_and_fails_early_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, admitted: bool
) -> None:
    """Before it has asked to join, as where its GPU has no memory left; or killed once the others have admitted it,
    before it has said so itself. Each loss is put on record once.
    """
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.0)
    seen: list[Event] = []
    with two_workers(tmp_path) as (parent, workers, theirs, told):
        tell_parent, pipes = EventWriter(told.fileno()), list[EventWriter]()

        def end(rank: int, status: int) -> None:
            os.close(pipes[rank].descriptor)
            tell_parent(WorkerEnded(rank=rank, status=status, names=[]))

        def start_and_fail() -> None:
            pipes[0] = EventWriter(socket.recv_fds(theirs, 4096, 1)[1][0])
            if not admitted:
                pipes[0](WorkerFailed(status=1, message="CUDA error: out of memory", cause="AcceleratorError"))
            end(0, -signal.SIGKILL if admitted else 1)

        def report(event: Event) -> None:
            seen.append(event)
            if isinstance(event, WorkerStarted):
                pipes.extend(EventWriter(socket.recv_fds(theirs, 4096, 1)[1][0]) for _ in workers)
                pipes[1](TRAINING)
                pipes[1](VALIDATED)
            elif isinstance(event, ValidationDone):
                end(0, -signal.SIGKILL)
            elif event == WorkerEnded(rank=0, status=-signal.SIGKILL, names=["a"]) and RECOVERED not in seen:
                pipes[1](GOES_ON)
                pipes[1](RECOVERED)
            elif isinstance(event, WorkerRestarting):
                threading.Thread(target=start_and_fail).start()
            elif isinstance(event, WorkerStaysLost):
                if admitted:
                    pipes[1](replace(RECOVERED, lost=[2]))
                end(1, 0)
                told.close()

        tell_parent(WorkerStarted(rank=1, process=parent.process.pid))
        Watch(parent, workers, tmp_path, report, recovery_s=60.0, start_retries=1).run()
    assert [event.kind for event in seen if event.kind.startswith("worker_")].count("worker_restarting") == 1
    records = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert [lost.get("message") for record in records for lost in record["lost"]] == [
        None, None if admitted else "CUDA error: out of memory",
    ]  # fmt: skip


def test_ranks_that_begin_to_train_cost_no_time() -> None:
    """Nobody is lost, so there is no stack to wait for: what is told next is shown at once."""
    begin = time.monotonic()
    assert stacks_of([]) == []
    assert time.monotonic() - begin < STACK_S / 2


def test_a_request_to_stop_outlives_the_worker_that_has_got_it(tmp_path: Path) -> None:
    """It is forwarded again to those that are left."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(["sleep", "600"])) for _ in range(2)]
        for process in processes:
            stack.callback(process.kill)
        workers = {
            rank: Worker(rank, (f"n{rank}",), tmp_path / "log", process=process.pid)
            for rank, process in enumerate(processes)
        }
        stop = ForwardedStop(workers)
        stop.observe(TRAINING)
        stop._note(signal.SIGTERM, None)
        workers[0].status, workers[0].left_behind = processes[0].wait(60), True
        assert processes[1].poll() is None
        stop.observe(GOES_ON)
        assert processes[1].wait(60) == -signal.SIGTERM


@pytest.mark.parametrize(("moment", "sign"), [("start", None), ("end", lambda line: line.startswith("iteration    3"))])
def test_killed(moment: str, sign: Callable[[str], bool] | None, tmp_path: Path) -> None:
    running = Running(tmp_path, *LONG, *LAST, fresh=moment == "end")
    try:
        running.started(ranks=2)
        if sign is not None:
            running.until(sign)
        signal_to(running.workers[1], signal.SIGKILL)
        status, err = running.end(WITHIN_S)
    finally:
        running.close()
    assert status == 1
    assert err.startswith("skippipe train: node local-1 (rank 1): process ")
    assert f"process {running.workers[1]} was killed by signal 9 (SIGKILL), likely by the kernel because memory " in err
    assert "--dry-run estimates what each process needs); the others were ended" in err
    assert err.count("skippipe train") == 1
    assert "Traceback" not in err
    run = tmp_path / "run"
    if moment == "start":
        assert list(tmp_path.iterdir()) == []
    else:
        assert (run / "metrics.jsonl").read_bytes().endswith(b"}\n")
        end = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        assert (end["event"], end["outcome"], end["attempt"]) == ("run_ended", "failed", 1)
        assert end["message"] in err
        assert not list(run.rglob("*.tmp"))


def test_a_stage_that_is_lost_starts_the_run_again(tmp_path: Path) -> None:
    """Nobody else serves the stage of node local-2."""
    running = Running(tmp_path, *SHORT, "checkpoint.every=1", "runtime.restarts=1")
    try:
        running.started()
        running.until(lambda line: line.startswith("iteration    3"))
        victim = running.workers[2]
        signal_to(victim, signal.SIGKILL)
        running.until(lambda line: line.startswith("resumed after iteration"))
        status, err = running.end(120)
    finally:
        running.close()
    assert (status, err) == (0, "")
    assert any(
        f"process {victim} was killed" in line and "starting again (0 restarts left)" in line for line in running.lines
    )
    run = tmp_path / "run"
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [event["outcome"] for event in events if event["event"] == "run_ended"] == ["failed", "finished"]
    (failure,) = [json.loads(line) for line in (run / "failures.jsonl").read_text().splitlines()]
    assert (failure["outcome"], failure["lost"][0]["names"]) == ("ended", ["local-2"])
    assert (failure["lost"][0]["process"], failure["lost"][0]["signal"]) == (victim, "SIGKILL")
    others = {other["rank"]: other for other in failure["others"]}
    assert sorted(others) == [0, 1, 3]
    assert any("last actions of this rank" in other.get("message", "") for other in others.values())


def test_the_others_go_on_without_a_replica(tmp_path: Path) -> None:
    """Node local-0, of the rank that reports, stops, and local-1 serves its stage as well; nobody outlives the run."""
    running = Running(tmp_path, *SHORT, "runtime.heartbeat_s=2", "runtime.restarts=0")
    try:
        running.started()
        running.until(lambda line: line.startswith("iteration    2"))
        signal_to(running.workers[0], signal.SIGSTOP)
        running.until(lambda line: line.startswith("lost node local-0: training goes on after iteration "))
        status, err = running.end(60)
    finally:
        running.close()
    assert (status, err) == (0, "")
    run = tmp_path / "run"
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The attempt that follows reports the iteration before the loss again: the lost rank may not have done so.
    assert list(dict.fromkeys(event["iteration"] for event in events if event["event"] == "iteration")) == [
        *range(1, 13)
    ]
    (recovered,) = [event for event in events if event["event"] == "recovered"]
    assert (recovered["lost"], recovered["processes"], recovered["attempt"]) == ([0], 3, 2)
    assert (run / recovered["plan_files"]["0"]).exists()
    assert events[-1]["outcome"] == "finished"
    (failure,) = [json.loads(line) for line in (run / "failures.jsonl").read_text().splitlines()]
    (lost,) = failure["lost"]
    assert (failure["outcome"], lost["rank"]) == ("recovered", 0)
    assert "File " in lost["stack"], "where the one that hung was"
    assert all("File " in other["stack"] for other in failure["others"]), "where those were that waited for it"
