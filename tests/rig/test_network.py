"""The network of namespaces itself: real sockets between its hosts, without torch."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.network import NAMESPACES, Direction, Network, missing

HERE = Path(__file__).parent
TALK = str(HERE / "talk.py")
LINKS = {
    ("a", "b"): Direction(0.02, 8e6), ("b", "a"): Direction(0.03, 2e6),
    ("a", "c"): Direction(0.005, 3e7), ("c", "a"): Direction(0.015, 4e6),
}  # fmt: skip
MESSAGE_S = 0.3
BRIDGE_S = 0.005
"""Most that the bridge may add to a round trip on a busy machine."""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(("a", "b", "c"), LINKS) as network:
        yield network


@contextlib.contextmanager
def running(network: Network, host: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`talk.py` on a host, once it is ready."""
    with network.start(host, [sys.executable, TALK, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def measured(network: Network, sender: str, receiver: str) -> dict[str, float]:
    size = int(network.direction(sender, receiver).bandwidth * MESSAGE_S)
    command = [sys.executable, TALK, "time", network.address(receiver), str(size)]
    with network.start(sender, command, stdout=subprocess.PIPE) as process:
        times: dict[str, float] = json.loads(process.communicate(timeout=60)[0])
    return times


def said(network: Network, sender: str, receiver: str) -> bool:
    """Whether datagrams arrive."""
    with running(network, receiver, "hear", network.address(receiver)) as listener:
        words = [sys.executable, TALK, "say", network.address(receiver)]
        with network.start(sender, words) as speaker:
            assert speaker.wait(20) == 0
        assert listener.stdout is not None
        return bool(listener.stdout.readline() == "heard\n")


def test_tcp_meets_delay_and_bandwidth_of_each_direction(network: Network) -> None:
    with contextlib.ExitStack() as servers:
        for host in network.hosts:
            servers.enter_context(running(network, host, "serve", network.address(host)))
        for (sender, receiver), direction in LINKS.items():
            times = measured(network, sender, receiver)
            there_and_back_s = direction.delay_s + LINKS[receiver, sender].delay_s
            assert there_and_back_s <= times["round_trip_s"] < 1.1 * there_and_back_s + BRIDGE_S
            assert times["bandwidth"] == pytest.approx(direction.bandwidth, rel=0.15)


def test_a_link_that_becomes_slower(network: Network) -> None:
    with running(network, "b", "serve", network.address("b")):
        before = measured(network, "a", "b")
        network.slow("a", "b", delay_s=0.12, bandwidth=1e6)
        after = measured(network, "a", "b")
    assert before["bandwidth"] / after["bandwidth"] == pytest.approx(8, rel=0.2)
    assert after["round_trip_s"] - before["round_trip_s"] == pytest.approx(0.1, abs=0.02)


def test_cuts_of_one_and_of_both_directions(network: Network) -> None:
    network.cut("a", "b", one_way=True)
    assert (said(network, "a", "b"), said(network, "b", "a"), said(network, "a", "c")) == (False, True, True)
    network.heal("a", "b")
    assert said(network, "a", "b")
    network.cut("a", "b")
    assert (said(network, "a", "b"), said(network, "b", "a")) == (False, False)


def test_what_a_crash_leaves_is_removed_at_the_next_start() -> None:
    script = """
import os, signal, subprocess
from rig.network import Direction, Network
links = {("a", "b"): Direction(0.0, 1e6), ("b", "a"): Direction(0.0, 1e6)}
with Network(("a", "b"), links) as network:
    print(network.namespace("a"), network.start("a", ["sleep", "60"], stdout=subprocess.DEVNULL).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    crash = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=HERE.parent, timeout=60
    )
    assert crash.returncode == -signal.SIGKILL
    namespace, sleeper = crash.stdout.split()
    assert (NAMESPACES / namespace).exists()
    with Network(("a", "b", "c"), LINKS) as network:
        assert not (NAMESPACES / namespace).exists()
        own = network.namespace("a")
        assert (NAMESPACES / own).exists()
    assert not (NAMESPACES / own).exists()
    status = Path(f"/proc/{sleeper}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_what_is_missing_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() is None
    monkeypatch.setenv("PATH", "")
    assert missing() == "a network of namespaces needs `ip`, which is not installed."
