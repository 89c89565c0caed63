"""Real processes that are asked to stop or killed, while they train and while they save, and that go on."""

import functools
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from pool import Pool
from train.alone import EventDict, of_kind, train_in_pool
from train.conftest import Folder
from train.jobs import TINY, prepared_text
from train.running import Running, signal_to

from skippipe.application import compose
from skippipe.checkpoint import open_checkpoint
from skippipe.checkpoint.directory import CHECKPOINTS

ITERATIONS = 32
JOB = [
    f"train.iterations={ITERATIONS}", "train.validate_every=null", "checkpoint.every=2", "runtime.calibrate=false",
    "runtime.recover=false", "runtime.restarts=0",
]  # fmt: skip
PATIENCE_S = 60.0
ENOUGH = 5
"""so many kills, each a moment after a checkpoint was begun, leave one of them unfinished"""


def losses(events: list[EventDict]) -> dict[int, float]:
    """Loss by iteration, as last reported."""
    return {event["iteration"]: event["loss"] for event in of_kind(events, "iteration")}


def logged(run: Path) -> list[EventDict]:
    """The events of a run, as it has written them."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def latest_complete(run: Path) -> int:
    """Iteration of the latest complete checkpoint, 0 if there is none."""
    return open_checkpoint(run).state.iteration if any((run / CHECKPOINTS).glob("iteration-*")) else 0


def settings() -> list[str]:
    """Of all runs here, which read one text that is tokenised once."""
    return [*JOB, f"data.prepared={prepared_text()}"]


def begin(folder: Path) -> Running:
    running = Running(folder, *settings())
    running.started()
    return running


def kill_a_worker_while_training(run: Path, chance: random.Random) -> None:
    """The message names its node, the others end, and the record says how the run ended."""
    running = begin(run.parent)
    try:
        for _ in range(chance.randint(1, 4)):
            running.until(lambda line: line.startswith("iteration "))
        rank = chance.choice(list(running.workers))
        signal_to(running.workers[rank], signal.SIGKILL)
        status, err = running.end(15)
    finally:
        running.close()
    assert status == 1
    process = f"process {running.workers[rank]} was killed by signal 9 (SIGKILL)"
    assert err.startswith(f"skippipe train: node local-{rank} (rank {rank}): {process}")
    assert err.count("skippipe train") == 1
    assert "Traceback" not in err
    end = logged(run)[-1]
    assert (end["event"], end["outcome"]) == ("run_ended", "failed")
    assert end["message"] in err


def kill_while_saving(run: Path, chance: random.Random) -> bool:
    """Kill the supervisor a moment after a checkpoint, one of the next two, has been begun: all its workers end.

    Returns whether the checkpoint was left unfinished.
    """
    running = begin(run.parent)
    deadline = time.monotonic() + PATIENCE_S
    while drafts(run):  # what the one before has left
        assert time.monotonic() < deadline
        time.sleep(0.001)
    begun: set[str] = set()
    until = chance.randint(1, 2)
    while len(begun) < until:
        assert time.monotonic() < deadline
        begun |= {path.name for path in drafts(run)}
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.01))
    running.process.kill()
    running.process.wait(timeout=15)
    running.none_left(time.monotonic() + 15)
    running.close()
    return bool(drafts(run))


def drafts(run: Path) -> list[Path]:
    """Checkpoints that are being written, or were left unfinished."""
    return list((run / CHECKPOINTS).glob(".*.new"))


def test_killed_again_and_again(pool: Pool, folder: Folder) -> None:
    nodes = [(f"local-{rank}",) for rank in range(4)]
    unbroken = losses(train_in_pool(pool, compose("train", [*TINY, *settings()]), nodes, folder("unbroken")))
    broken = folder("broken") / "run"
    chance = random.Random(time.time_ns())
    kill_a_worker_while_training(broken, chance)
    newest = latest_complete(broken)
    for _ in range(ENOUGH):
        unfinished = kill_while_saving(broken, chance)
        assert latest_complete(broken) >= newest, "no complete checkpoint is lost"
        newest = latest_complete(broken)
        if unfinished:
            break
    else:
        raise AssertionError("none of them was being saved")
    running = begin(broken.parent)
    assert running.end(120) == (0, "")
    assert any(f"resumed after iteration {newest} from" in line for line in running.lines)
    assert losses(logged(broken)) == unbroken
    assert latest_complete(broken) == ITERATIONS == max(unbroken)
    assert not list((broken / CHECKPOINTS).glob(".*"))


def stop(tmp_path: Path, number: int) -> tuple[int, str, Running]:
    running = begin(tmp_path)
    running.until(lambda line: line.startswith("iteration "))
    running.process.send_signal(number)
    status, err = running.end(30)
    return status, err, running


def test_asked_to_stop(tmp_path: Path) -> None:
    for number, status, message in ((signal.SIGTERM, 0, ""), (signal.SIGINT, 130, "interrupted\n")):
        got, err, running = stop(tmp_path, number)
        assert (got, err) == (status, message)
        (line,) = [line for line in running.lines if line.startswith("stopped on request after iteration")]
        assert line.endswith("; the same command resumes from there\n")
        assert latest_complete(tmp_path / "run") == int(line.split("iteration ")[1].split(";")[0])
        assert list(losses(logged(tmp_path / "run")))[-1] == latest_complete(tmp_path / "run")
        end = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        assert end == {
            "event": "run_ended", "attempt": end["attempt"], "iteration": latest_complete(tmp_path / "run"),
            "outcome": "stopped", "signal": signal.Signals(number).name,
        }  # fmt: skip


def test_two_at_once_in_one_folder_and_a_worker_that_is_asked_to_stop(tmp_path: Path) -> None:
    # On a busy machine the other takes long to begin.
    running = Running(tmp_path, *settings(), "train.iterations=100000")
    running.started()
    try:
        running.until(lambda line: line.startswith("iteration    1"))
        status, err = Running(tmp_path, *settings()).end(60)
        assert (status, err) == (2, "skippipe train: folder: run cannot be written: another process trains there\n")
        signal_to(running.workers[2], signal.SIGTERM)
        assert running.end(30) == (0, "")
    finally:
        running.close()
    assert any(line.startswith("stopped on request after iteration") for line in running.lines)


def test_asked_to_stop_before_anything_was_trained(tmp_path: Path) -> None:
    running = Running(tmp_path, *settings(), "planner.work_limit=null", "planner.time_limit_s=60")
    try:
        running.started()
        running.process.send_signal(signal.SIGTERM)
        assert running.end(30) == (128 + signal.SIGTERM, "")
    finally:
        running.close()
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """The kernel sends SIGHUP then, and what is written to the terminal fails from there on."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "skippipe", "train", *TINY, "folder=run", *settings(), "train.iterations=100000"],
        cwd=tmp_path,
        stdin=end,
        stdout=end,
        stderr=end,
        preexec_fn=functools.partial(os.login_tty, 0),  # noqa: PLW1509 - nothing else runs here
    )
    os.close(end)
    try:
        deadline = time.monotonic() + PATIENCE_S
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and len(losses(logged(tmp_path / "run"))) >= 3):
            assert select.select([terminal], [], [], max(deadline - time.monotonic(), 0))[0]
            os.read(terminal, 65536)
        os.close(terminal)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [event["event"] for event in events[-2:]] == ["stopped", "run_ended"]
    assert latest_complete(tmp_path / "run") == events[-1]["iteration"] == list(losses(logged(tmp_path / "run")))[-1]
