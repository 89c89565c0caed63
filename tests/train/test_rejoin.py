"""`runtime.rejoin`: a process that `skippipe train` has lost is started again, and joins the others."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from train.jobs import make_job
from train.running import Running, children_of, signal_to

from skippipe.errors import InputError
from skippipe.train.config import NodeJob
from skippipe.train.launch.restarts import FIRST_PAUSE_S, MOST_PAUSE_S, Restarts
from skippipe.train.resolve.resolve import resolve

WITHIN_S = 120.0
REPLICAS = [
    "cluster.stage_sizes=[2,2]", "schedule.skip_ratio=0", "schedule.max_swaps=0", "train.dtype=float64",
    "train.validate_every=null", "train.warmup=0", "train.final_learning_rate=1", "runtime.calibrate=false",
    "checkpoint.enabled=false",
]  # fmt: skip
"""Losses depend neither on who serves the stages nor on the length of the run."""
AT_LEISURE = ["runtime.links=emulated", "runtime.time_scale=500", "train.iterations=100000", "runtime.heartbeat_s=3"]
REJOIN = ["runtime.rejoin=true", "runtime.restarts=0"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_those_that_are_lost_return(tmp_path: Path) -> None:
    """The one that reports is killed and one hangs, at the same time; then the one that came back is killed as well.
    The run learns what it would have learnt without all that.
    """
    running = Running(tmp_path, *REPLICAS, *AT_LEISURE, *REJOIN)
    victims: list[int] = []
    try:
        running.started()
        running.until(lambda line: line.startswith("iteration    2"))
        victims += [running.workers[0], running.workers[3]]
        for victim, number in zip(victims, (signal.SIGKILL, signal.SIGSTOP), strict=True):
            signal_to(victim, number)
        back = 0
        while back < 2:
            running.until(lambda line: line.startswith("joined after iteration "))
            back += running.lines[-1].count("local-")
        running.until(lambda line: line.startswith("iteration"))
        victims.append(running.workers[0])
        signal_to(victims[-1], signal.SIGKILL)
        running.until(lambda line: line.startswith("node local-0 is started again in 2 s"))
        running.until(lambda line: line.startswith("joined after iteration "))
        for _ in range(2):
            running.until(lambda line: line.startswith("iteration"))
        signal_to(running.process.pid, signal.SIGTERM)
        status, err = running.end(WITHIN_S)
    finally:
        running.close()
    assert (status, err) == (0, "")
    events = read(tmp_path / "run" / "metrics.jsonl")
    assert [event["processes"] for event in events if event["event"] == "joined"][-1] == 4
    failures = read(tmp_path / "run" / "failures.jsonl")
    assert {failure["outcome"] for failure in failures} == {"recovered"}
    assert sorted(lost["process"] for failure in failures for lost in failure["lost"]) == sorted(victims)
    done = {event["iteration"]: event for event in events if event["event"] == "iteration"}
    assert list(done) == [*range(1, max(done) + 1)]
    (tmp_path / "whole").mkdir()
    whole = Running(tmp_path / "whole", *REPLICAS, "runtime.processes=1", f"train.iterations={max(done)}")
    assert whole.end(WITHIN_S) == (0, "")
    expected = read(tmp_path / "whole" / "run" / "metrics.jsonl")
    for event in (event for event in expected if event["event"] == "iteration"):
        found = done[event["iteration"]]
        assert found["tokens"] == event["tokens"]
        assert found["loss"] == pytest.approx(event["loss"], rel=1e-9)


def test_a_crash_loop_ends(tmp_path: Path) -> None:
    """One that is killed whenever it is started stays lost; another one, which is held up before it joins, ends with
    the run.
    """
    running = Running(tmp_path, *REPLICAS, *AT_LEISURE, *REJOIN, "runtime.start_retries=2")
    try:
        running.started()
        running.until(lambda line: line.startswith("iteration    1"))
        for pause in ("1", "2"):
            signal_to(running.workers[1], signal.SIGKILL)
            running.until(lambda line: line.startswith("node local-1 is started again in "))
            assert running.lines[-1] == f"node local-1 is started again in {pause} s, to join the others\n"
            running.until(lambda line: line.startswith("node local-1: rank 1, process"))
        signal_to(running.workers[1], signal.SIGKILL)
        running.until(lambda line: "stays lost" in line)
        assert running.lines[-1] == (
            "node local-1 stays lost: 2 starts in a row have ended before it had trained an iteration "
            "(runtime.start_retries)\n"
        )
        signal_to(running.workers[3], signal.SIGKILL)
        running.until(lambda line: line.startswith("node local-3: rank 3, process"))
        signal_to(running.workers[3], signal.SIGSTOP)
        running.until(lambda line: line.startswith("iteration"))
        signal_to(running.process.pid, signal.SIGTERM)
        status, err = running.end(WITHIN_S)
    finally:
        running.close()
    assert (status, err) == (0, "")
    assert running.lines[-1].startswith("stopped on request")
    failures = read(tmp_path / "run" / "failures.jsonl")
    assert [lost["names"] for failure in failures for lost in failure["lost"]] == [["local-1"]] * 3 + [["local-3"]]
    assert not any(event["event"] == "joined" for event in read(tmp_path / "run" / "metrics.jsonl"))


def test_the_store_is_lost(tmp_path: Path) -> None:
    """The process that serves it: nobody can agree on anything, so the run starts again."""
    settings = ["checkpoint.every=1", "runtime.restarts=1", "runtime.calibrate=false", "train.iterations=12"]
    running = Running(tmp_path, *settings, *AT_LEISURE[:2])
    try:
        running.started()
        running.until(lambda line: line.startswith("iteration    3"))
        assert running.parent is not None
        (registrar,) = set(children_of(running.parent)) - set(running.workers.values())
        signal_to(registrar, signal.SIGKILL)
        running.until(lambda line: line.startswith("resumed after iteration"))
        status, err = running.end(WITHIN_S)
    finally:
        running.close()
    assert (status, err) == (0, "")
    assert any(
        line.startswith("the process that serves the store of the rendezvous was killed by signal 9")
        and "starting again (0 restarts left)" in line
        for line in running.lines
    )


def test_pauses_and_limit() -> None:
    """Starts that come to nothing count in a row, pauses over the run, each for the ranks apart."""
    restarts = Restarts(retries=2)
    assert [restarts.pause_s(1, trained=trained) for trained in (True, False, False)] == [
        FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, None,
    ]  # fmt: skip
    assert restarts.pause_s(2, trained=True) == FIRST_PAUSE_S
    assert [restarts.pause_s(2, trained=True) for _ in range(2000)][-1] == MOST_PAUSE_S
    assert [restarts.pause_s(2, trained=False) for _ in range(2)] == [MOST_PAUSE_S, None]


def test_settings_that_do_not_go_together() -> None:
    assert resolve(make_job(runtime__rejoin=True)).launch.start_retries == 3
    assert resolve(make_job()).launch.start_retries is None
    with pytest.raises(InputError, match=r"runtime.rejoin: expected false with runtime.recover=false, got true"):
        resolve(make_job(runtime__rejoin=True, runtime__recover=False))
    of_node = NodeJob(**vars(make_job(runtime__rejoin=True)), rendezvous="anna:1")
    with pytest.raises(InputError, match=r"runtime.rejoin: expected false with skippipe node, got true"):
        resolve(of_node)
