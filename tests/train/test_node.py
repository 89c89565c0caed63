"""Several `skippipe node`, each as if on a machine of its own: those that are left go on, or all start again."""

import contextlib
import itertools
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist
from train.alone import free_port
from train.jobs import make_cluster, make_job
from train.running import Running, is_alive, signal_to
from warm import FIRST

from skippipe.application import compose
from skippipe.context import Context
from skippipe.errors import InputError
from skippipe.train.connect.activity import Activity, announce_death, announce_leaving, beat_key, presence_key
from skippipe.train.connect.store import StoreClient
from skippipe.train.launch.node import Service, train_node
from skippipe.train.resolve.resolve import resolve

SETTINGS = [
    "data.validation_blocks=64", "train.validate_every=null", "runtime.calibrate=false", "runtime.heartbeat_s=3",
    "checkpoint.every=1",
]  # fmt: skip
REPLICAS = ["schedule.stages=2", "allocate.sizes=[2,2]", "schedule.skip_ratio=0", "schedule.max_swaps=0"]
AT_LEISURE = ["runtime.links=emulated", "runtime.time_scale=4000"]
"""Iterations take a second, in which processors have nothing to do."""
SECONDS = 240.0


@contextlib.contextmanager
def machines(folder: Path, names: list[str], *arguments: str) -> Iterator[list[Running]]:
    """A command for each entry of `names`, the nodes of a machine; the first one serves the rendezvous."""
    port = free_port()
    running: list[Running] = []
    try:
        for nodes in names:
            mine = [f"rendezvous=127.0.0.1:{port}", f"runtime.node={nodes}", *SETTINGS, *arguments]
            running.append(Running(folder, *mine, command="node"))
            await_listener(port)
        yield running
    finally:
        for each in running:
            for process in each.workers.values():
                with contextlib.suppress(ProcessLookupError):
                    signal_to(process, signal.SIGKILL)
            each.close()


def await_listener(port: int) -> None:
    """Wait until somebody listens at a port."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at {port}")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_machine_is_lost_and_comes_back(tmp_path: Path) -> None:
    """Rank 0, which reports, and whatever else runs on its machine: another machine goes on to report, also when the
    same command has the lost one join again, with its weights. With another secret it ends, and nobody notices.
    """
    names = ["local-2,local-3", "local-0", "local-1"]
    settings = [
        *REPLICAS, *AT_LEISURE, "train.iterations=100000", "runtime.restarts=0", "checkpoint.enabled=false",
    ]  # fmt: skip
    (tmp_path / "secret").write_text("another secret of many bytes")
    (tmp_path / "secret").chmod(0o600)
    with machines(tmp_path, names, *settings) as running:
        server, first, other = running
        first.until(lambda line: line.startswith("iteration    3"))
        server.started(2)
        other.started(1)
        signal_to(first.process.pid, signal.SIGKILL)  # its workers end with it
        status, err = first.end(SECONDS)
        assert status == -signal.SIGKILL
        other.until(lambda line: line.startswith("lost node local-0: training goes on after iteration "))
        server.until(lambda line: line.startswith("lost node local-0: training goes on; node local-1 shows how it"))
        wrong = Running(tmp_path, *first.arguments, f"checkpoint.key={tmp_path / 'secret'}", command="node")
        running.append(wrong)
        status, err = wrong.end(SECONDS)
        assert status == 2
        assert f"checkpoint.key: expected that of node local-0 (rank 0), got another secret in {tmp_path}" in err
        again = Running(tmp_path, *first.arguments, command="node")
        running.append(again)
        other.until(lambda line: line.startswith("joined after iteration "))
        assert other.lines[-1].endswith("node local-0 serves stage 0\n")
        again.until(lambda line: line.startswith("others train already; node local-0 asks to join"))
        for machine in (again, server):
            machine.until(lambda line: line.startswith("node local-0 joined: training goes on; node local-1 shows how"))
        other.until(lambda line: line.startswith("iteration"))
        signal_to(again.process.pid, signal.SIGTERM)
        for machine in (other, server, again):
            status, err = machine.end(SECONDS)
            assert (status, err) == (0, "")
        assert other.lines[-1].startswith("stopped on request"), "which reports at the end"
        assert any(line.startswith("training; node local-0 shows how it proceeds") for line in server.lines)
    events = lines(tmp_path / "run" / "metrics.jsonl")
    iterations = [event["iteration"] for event in events if event["event"] == "iteration"]
    assert list(dict.fromkeys(iterations)) == [*range(1, max(iterations) + 1)]
    (recovered,) = [event for event in events if event["event"] == "recovered"]
    assert (recovered["lost"], recovered["lost_names"], recovered["processes"]) == ([0], ["local-0"], 3)
    assert recovered["reason"] == "node local-0 (rank 0) has died", "nobody waits until it has been silent for long"
    (joined,) = [event for event in events if event["event"] == "joined"]
    assert (joined["joined"], joined["joined_names"], joined["processes"]) == ([4], ["local-0"], 4)
    assert [event["outcome"] for event in events if event["event"] == "run_ended"] == ["stopped"]
    (failure,) = lines(tmp_path / "run" / "failures.jsonl")
    assert (failure["outcome"], failure["lost"][0]["names"]) == ("recovered", ["local-0"])


FAULT = """
from skippipe.train import rank

facts_of = rank.facts_of

def facts_of_some(spec, layout, names, message_spec):
    assert "local-1" not in names, "a fault of its own"
    return facts_of(spec, layout, names, message_spec)

rank.facts_of = facts_of_some
"""
"""With this node local-1 cannot join."""


def test_one_of_two_that_join_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an assertion of its own: the other one of its machine joins, the run goes on, and the record has the error."""
    (tmp_path / "stages.json").write_text(json.dumps({"stages": [[0], [2]], "absent_nodes": [1, 3]}))
    (tmp_path / "fault.py").write_text(FAULT)
    settings = [
        "schedule.stages=2", "schedule.skip_ratio=0", "schedule.max_swaps=0", *AT_LEISURE, "train.iterations=100000",
        "runtime.restarts=0", "checkpoint.enabled=false", "allocate.stages=stages.json",
    ]  # fmt: skip
    with machines(tmp_path, ["local-0,local-2"], *settings) as running:
        (first,) = running
        first.until(lambda line: line.startswith("iteration    1"))
        monkeypatch.setenv(FIRST, str(tmp_path / "fault.py"))
        arguments = [each for each in first.arguments if not each.startswith("runtime.node=")]
        second = Running(tmp_path, *arguments, "runtime.node=local-1,local-3", command="node")
        running.append(second)
        second.until(lambda line: line == "AssertionError: a fault of its own\n")
        assert any(
            line.startswith("node local-1 has failed, the others go on without it: Traceback") for line in second.lines
        )
        first.until(lambda line: line.startswith("joined after iteration "))
        assert "node local-3 serves " in first.lines[-1]
        second.until(lambda line: line.startswith("node local-3 joined: training goes on"))
        first.until(lambda line: line.startswith("iteration"))
        signal_to(second.process.pid, signal.SIGTERM)
        assert [machine.end(SECONDS) for machine in running] == [(0, "")] * 2
    (failure,) = lines(tmp_path / "run" / "failures.jsonl")
    assert failure["outcome"] == "recovered"
    assert [(lost["names"], lost["message"].splitlines()[-1]) for lost in failure["lost"]] == [
        (["local-1"], "AssertionError: a fault of its own")
    ]


def test_a_stage_is_lost(tmp_path: Path) -> None:
    """The process of its only node is killed: all machines start again, from the latest checkpoint. Then one of them
    is asked to stop, which the other one reports.
    """
    names = ["local-0,local-1", "local-2,local-3"]
    with machines(tmp_path, names, "train.iterations=5000", "runtime.restarts=1") as (server, other):
        server.until(lambda line: line.startswith("iteration    3"))
        other.started(2)
        victim = other.workers[2]
        signal_to(victim, signal.SIGKILL)
        server.until(lambda line: line.startswith("resumed after iteration"))
        assert any("starting again (0 restarts left)" in line for line in server.lines)
        server.until(lambda line: line.startswith("iteration"))
        signal_to(other.process.pid, signal.SIGTERM)
        for machine in (server, other):
            status, err = machine.end(SECONDS)
            assert (status, err) == (0, "")
        assert any(f"process {victim} was killed" in line and "starting again" in line for line in other.lines)
    events = lines(tmp_path / "run" / "metrics.jsonl")
    assert [event["outcome"] for event in events if event["event"] == "run_ended"] == ["failed", "stopped"]
    iterations = [event["iteration"] for event in events if event["event"] == "iteration"]
    assert list(dict.fromkeys(iterations)) == [*range(1, max(iterations) + 1)]
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_a_stage_of_a_lost_machine_comes_from_a_copy(tmp_path: Path) -> None:
    """The machine with the only node of a stage is lost: another one has a copy, and goes on with it."""
    names = ["local-0,local-1", "local-2", "local-3"]
    settings = [
        "schedule.stages=3", "allocate.sizes=[2,1,1]", "schedule.skip_ratio=0", "schedule.max_swaps=0", *AT_LEISURE,
        "train.iterations=100000", "runtime.restarts=0", "checkpoint.enabled=false", "train.redundancy=1",
        "train.redundancy_every=1", "runtime.lost_stage=copy",
    ]  # fmt: skip
    with machines(tmp_path, names, *settings) as (server, other, victim):
        server.until(lambda line: line.startswith("iteration    3"))
        victim.started(1)
        signal_to(victim.process.pid, signal.SIGKILL)  # its worker ends with it
        assert victim.end(SECONDS)[0] == -signal.SIGKILL
        server.until(lambda line: line.startswith("lost node local-3: training goes on after iteration "))
        server.until(lambda line: line.startswith("iteration"))
        signal_to(other.process.pid, signal.SIGTERM)
        for machine in (server, other):
            assert machine.end(SECONDS) == (0, "")
    events = lines(tmp_path / "run" / "metrics.jsonl")
    (recovered,) = [event for event in events if event["event"] == "recovered"]
    assert recovered["lost_names"] == ["local-3"]
    assert recovered["restored_by"] == ["copy"]
    assert 0 <= recovered["iteration"] - recovered["restored_from"][0] <= 1, "or the one that was under way"
    done = [event["iteration"] for event in events if event["event"] == "iteration"]
    assert list(dict.fromkeys(done)) == [*range(1, max(done) + 1)]
    assert max(done) > recovered["iteration"]


def test_a_machine_that_does_not_see_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    settings = [f"rendezvous=127.0.0.1:{free_port()}", "runtime.node=local-2", "runtime.start_timeout_s=0.5"]
    alone = Running(tmp_path / "elsewhere", *settings, command="node")
    status, err = alone.end(SECONDS)
    assert status == 2
    assert "folder: expected the folder of the run, got run without config.yaml for 0.5 s" in err
    assert "the machine of node local-0 makes it" in err


@pytest.mark.parametrize(
    ("changes", "rendezvous", "message"),
    [
        ({}, "anna", "rendezvous: expected HOST:PORT, got anna"),
        ({}, "anna:0", "rendezvous: expected HOST:PORT, got anna:0"),
        ({"runtime__node": "mars"}, "127.0.0.1:1", "runtime.node: expected nodes of the plan"),
        ({"runtime__node": "local-1,local-1"}, "127.0.0.1:1", "runtime.node: expected each node once"),
        ({"runtime__processes": 2}, "127.0.0.1:1", "runtime.processes: expected null"),
        ({"folder": None}, "127.0.0.1:1", "folder: expected a folder that all machines see"),
    ],
)
def test_settings_that_cannot_be_used(
    changes: dict[str, Any], rendezvous: str, message: str, prepared: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"runtime__node": "local-1", "data__prepared": str(prepared), "folder": "run"}
    spec = resolve(make_job(cluster=make_cluster(), **settings | changes))
    with pytest.raises(InputError) as refused:
        train_node(spec, rendezvous, Context(tmp_path, None, (), compose))
    assert str(refused.value).startswith(message)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def client() -> Iterator[StoreClient]:
    """The client of a store with the open attempt `a` of two ranks."""
    store = StoreClient(
        lambda: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),  # type: ignore[attr-defined]
        5.0,
    )
    with contextlib.closing(store):
        yield store


def open_attempt(client: StoreClient) -> None:
    client.set("attempt", "a")
    presences = [[f"process-{rank}.token", "a", [f"n{rank}"], "", None] for rank in range(2)]
    client.set("a/ranks", json.dumps(presences))
    for rank, presence in enumerate(presences):
        client.set(presence_key(rank), json.dumps(presence))


@pytest.mark.parametrize("in_order", [False, True])
def test_an_attempt_that_is_over(client: StoreClient, *, in_order: bool) -> None:
    """However its ranks have ended: they have left, died, failed, or show no sign of life any more."""
    activity = Activity(client, 1e9)
    assert activity.is_over(), "nobody has come"
    open_attempt(client)
    assert not activity.is_over()
    announce_death(client, 1, "process-1")
    assert not activity.is_over()
    announce_leaving(client, "a", 0, in_order=in_order)
    assert activity.is_over()
    assert activity.ended_in_order == in_order


def test_an_attempt_that_fails(client: StoreClient) -> None:
    open_attempt(client)
    activity = Activity(client, 1e9)
    client.set("left", json.dumps({"message": "", "tokens": ["token-of-another-attempt"], "stopped": False}))
    assert not activity.is_over()
    client.set("left", json.dumps({"message": "", "tokens": ["process-1.token"], "stopped": False}))
    assert activity.is_over()


def test_ranks_that_are_silent(client: StoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sign of life, of any rank that has not died, counts."""
    now = itertools.count()
    monkeypatch.setattr("skippipe.train.connect.activity.time.monotonic", lambda: float(next(now)))
    open_attempt(client)
    activity = Activity(client, 10.0)
    for look in range(30):
        client.set(beat_key("a", look % 2), str(look))
        assert not activity.is_over()
    announce_death(client, 0, "process-0")
    found = [activity.is_over() for _ in range(30)]
    assert found == sorted(found)
    assert 9 <= found.index(True) <= 12


@pytest.mark.usefixtures("fresh")
def test_the_service_lasts_as_long_as_others_need_it(tmp_path: Path) -> None:
    """It ends with the machine that serves it if nobody trains, and is started again if it is killed."""
    port = free_port()
    with Service("127.0.0.1", port, 1.0) as service, Service("127.0.0.1", port, 1.0) as second:
        service.ensure()
        process = service.process
        assert process is not None
        second.ensure()
        assert second.process is None, "the first one serves already"
        signal_to(process, signal.SIGKILL)
        while is_alive(process):
            time.sleep(0.01)
        service.ensure()
        assert service.process not in {None, process}
        process = service.process
    assert process is not None
    assert not is_alive(process)
