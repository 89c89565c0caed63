"""The rendezvous of ranks in a store, in threads of this process, and everything that may prevent it."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist
from train.alone import free_port
from train.at_once import at_once
from train.jobs import make_job

from skippipe.errors import InputError, SchedulerError
from skippipe.model.settings import model_config
from skippipe.runtime.links.addresses import INTERFACE
from skippipe.train.connect.attempt import Attempt, PeerStoppedError, Presence, find_ranks
from skippipe.train.connect.rank_spec import RankSpec, check_node
from skippipe.train.connect.rendezvous import Rendezvous, check_reachable
from skippipe.train.connect.store import RendezvousError, StoreClient, open_store
from skippipe.train.rank import shared_settings
from skippipe.train.resolve.resolve import resolve

HOST = "127.0.0.1"
NODES = ("a", "b", "c", "d")


@pytest.fixture
def agent() -> Iterator[int]:
    """The port of a store that outlives the ranks, as that of torchrun's agent does."""
    store: Any = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    yield store.port
    del store


def come(port: int, rank: int, world: int = 2, timeout_s: float = 20.0, *, served: bool = True) -> Attempt:
    """Be a rank that comes to a rendezvous."""
    rank_spec = RankSpec(rank, world, (NODES[rank],), HOST, port, agent_store=served)
    return find_ranks(
        open_store(rank_spec, timeout_s), rank_spec, NODES[:world], timeout_s, time.monotonic() + timeout_s
    )


def test_an_attempt_does_not_meet_what_a_dead_one_has_left(agent: int) -> None:
    first = at_once(lambda: come(agent, 0), lambda: come(agent, 1))
    first[1].publish("settings/1", "of the first attempt")
    first[1].announce_end(RuntimeError("killed"), 0.0)

    def late() -> Attempt:
        time.sleep(0.3)  # rank 1 finds the dead attempt still open
        return come(agent, 0)

    second = at_once(late, lambda: come(agent, 1))
    assert second[0].names_by_rank == second[1].names_by_rank == [("a",), ("b",)]
    assert second[0].name == second[1].name != first[0].name
    with pytest.raises(RendezvousError, match=r"timed out after 0.2 s waiting for node b \(settings\)"):
        second[0].receive("settings/1", 0.2, "node b")
    # A rank of the dead attempt that is still there, as on another machine, does not wait for ever.
    with pytest.raises(RendezvousError, match="rank 0 was restarted, but this rank was not"):
        first[1].receive("settings/0", 20.0, "rank 0")


def test_whoever_has_not_come_is_named_on_every_rank() -> None:
    port = free_port()
    errors = at_once(*(lambda rank=rank: come(port, rank, 4, 3.0, served=False) for rank in (0, 1, 3)))
    expected = "timed out after 3 s waiting for rank 2; nodes of the plan that no rank serves yet: c"
    assert [str(error) for error in errors] == [expected] * 3


def test_rank_0_that_has_not_come(agent: int) -> None:
    for attempt in range(2):
        errors = at_once(lambda: come(agent, 1, 3, 2.0), lambda: come(agent, 2, 3, 2.0))
        expected = "timed out after 2 s waiting for rank 0; nodes of the plan that no rank serves yet: a"
        assert [str(error) for error in errors] == [expected] * 2
        if attempt == 0:  # the second time there is one of a dead attempt
            at_once(*(lambda rank=rank: come(agent, rank, 3) for rank in range(3)))


def test_a_rank_that_ends_is_no_riddle_to_those_that_wait(agent: int) -> None:
    for error, kind, why in (
        (InputError("data.training: no such file"), RendezvousError, "data.training: no such file"),
        (KeyboardInterrupt(), PeerStoppedError, "it was asked to stop"),
    ):
        ranks = at_once(lambda: come(agent, 0), lambda: come(agent, 1))
        reported, _ = at_once(
            lambda ranks=ranks: ranks[0].receive("start/1", 20.0, "b"),  # type: ignore[misc]
            lambda ranks=ranks, error=error: ranks[1].announce_end(error, 5.0),  # type: ignore[misc]
        )
        assert isinstance(reported, kind)
        assert str(reported) == f"node b (rank 1) has ended: {why}"


def slow_to_read(client: StoreClient) -> None:
    """Have the owner of this client pause after it has looked for a text in vain."""
    wait = client.wait

    def slow(key: str, deadline: float) -> Iterator[str | None]:
        for text in wait(key, deadline):
            if text is None:
                time.sleep(0.6)
            yield text

    client.wait = slow  # type: ignore[method-assign]


@pytest.mark.parametrize("served", [False, True], ids=["store of rank 0", "store of an agent"])
def test_a_difference_reaches_a_rank_that_is_slow_to_read_it(served: bool, agent: int) -> None:
    """Whichever rank finds it first, ends, and possibly takes the store along."""
    port = agent if served else free_port()

    def state(rank: int) -> str:
        attempt = come(port, rank, 3, served=served)
        names = attempt.names_by_rank
        group: Any = None
        rendezvous = Rendezvous(RankSpec(rank, 3, names[rank], HOST, port), names, attempt, group, 20.0)
        if rank == 1:
            slow_to_read(attempt.client)
        if rank == 2:
            time.sleep(0.3)  # so that the slow one looks for its text in vain at first
        try:
            rendezvous.check_equal("settings", {"rate": "0.2" if rank == 2 else "0.1"})
        except SchedulerError as error:
            attempt.announce_end(error, 0.0)
            return f"{type(error).__name__}: {error}"
        finally:
            attempt.client.close()
        return "no difference"

    answers = at_once(*(partial(state, rank) for rank in range(3)))
    assert answers == ["InputError: rate: expected 0.1 as on node a (rank 0), got 0.2 on node c (rank 2)"] * 3


@contextlib.contextmanager
def listener(kind: str) -> Iterator[int]:
    """Give the port of something that is no store."""
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(socket.socket())
        door.bind((HOST, 0))
        door.listen(0 if kind == "full" else 16)
        taken: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(door.accept()[0])
                    if kind == "other":
                        taken[-1].recv(64)
                        taken[-1].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        if kind == "full":
            for _ in range(3):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(door.getsockname())
        else:
            threading.Thread(target=serve, daemon=True).start()
        yield door.getsockname()[1]
        door.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


@pytest.mark.parametrize("kind", ["silent", "other", "full"])
def test_what_listens_is_no_rendezvous(kind: str) -> None:
    with listener(kind) as port, pytest.raises(RendezvousError) as caught:
        open_store(RankSpec(1, 2, ("b",), HOST, port), 1.0)
    assert str(caught.value).startswith(f"the rendezvous at {HOST}:{port} cannot be reached within 1 s: ")
    assert "frame #" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_listens() -> None:
    """That is found out without torch, which would wait for longer, and abort a process that ends in the meantime."""
    with socket.socket() as door:
        door.bind((HOST, 0))
        port = door.getsockname()[1]
        with pytest.raises(RendezvousError, match=f"{HOST}:{port} cannot be reached within 1 s: .*Connection refused"):
            open_store(RankSpec(1, 2, ("b",), HOST, port), 1.0)


def test_a_client_that_is_stuck_fails_at_once() -> None:
    release = threading.Event()
    client = StoreClient(lambda: None, 60.0)
    with contextlib.closing(client):
        with pytest.raises(TimeoutError):
            client.call(release.wait, 0.01)
        with pytest.raises(TimeoutError):
            client.get("key")
        release.set()


def test_an_unknown_host() -> None:
    with pytest.raises(
        RendezvousError, match=r"^the rendezvous at no.such.invalid:29500: unknown host 'no.such.invalid' \("
    ):
        open_store(RankSpec(1, 2, ("b",), "no.such.invalid", 29500), 1.0)


def test_settings_that_differ_are_told_key_by_key() -> None:
    mine, theirs = make_job(), make_job(train__learning_rate=0.5, schedule__skip_ratio=0.25)
    theirs.model |= {"hidden_size": 64}
    here, there = (shared_settings(resolve(job), model_config(job.model)) for job in (mine, theirs))
    assert {key: (here[key], there[key]) for key in here if here[key] != there[key]} == {
        "train.learning_rate": ("0.003", "0.5"),
        "schedule.skip_ratio": (str(mine.schedule.skip_ratio), "0.25"),
        "model.hidden_size": ("32", "64"),
        "model.head_dim": ("16", "32"),
    }


def test_a_node_that_is_not_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = "; RANK and WORLD_SIZE in the environment make this process one rank of a job"
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    for node, got in ((None, "null, which is the host name box"), ("a,box", "box")):
        with pytest.raises(InputError) as caught:
            check_node(node, NODES)
        assert str(caught.value).startswith(f"runtime.node: expected nodes of the plan (a, b, c, d), got {got}{preset}")
    check_node("a,d", NODES)


def test_gloo_that_listens_where_other_machines_cannot_reach_it() -> None:
    def rank(address: str, listens: str | None) -> Presence:
        return Presence("token", "attempt", (address,), address, listens)

    check_reachable([rank("10.0.0.1", "127.0.1.1"), rank("10.0.0.1", "127.0.1.1")])
    check_reachable([rank("10.0.0.1", None), rank("10.0.0.2", "10.0.0.2"), rank("::2", "fe80::1%eth0")])
    with pytest.raises(
        RendezvousError, match=rf"^node 10.0.0.2 \(rank 1\): the host name resolves to .*set {INTERFACE} to"
    ):
        check_reachable([rank("10.0.0.1", "10.0.0.1"), rank("10.0.0.2", "127.0.1.1")])


MEET = """\
import sys
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.connect.rendezvous import join
from skippipe.train.connect.store import RendezvousError
from skippipe.train.resolve.spec import CommunicationSpec
rank = int(sys.argv[1])
try:
    rank_spec = RankSpec(rank, 2, ("ab"[rank],), "10.77.0.1", 29600)
    with join(rank_spec, CommunicationSpec(start_timeout_s=60.0), "ab") as ranks:
        print(ranks.names_by_rank)
except RendezvousError as error:
    print(error)
"""


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Two network namespaces with a wire between them: as good as two machines."""
    names = [f"launch{os.getpid()}{end}" for end in "ab"]

    def ip(*arguments: str) -> int:
        return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode

    if not shutil.which("ip") or not shutil.which("unshare") or ip("netns", "add", names[0]):
        pytest.skip("needs ip netns, and the right to use it")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "wire")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "wire", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def test_two_machines_of_which_one_has_its_name_at_a_loopback_address(machines: list[str], tmp_path: Path) -> None:
    """As Debian has it in /etc/hosts."""
    for number, address in enumerate(("10.77.0.1", "127.0.1.1")):
        (tmp_path / f"hosts{number}").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
    script = 'mount --bind "$1" /etc/hosts && exec "$2" -c "$3" "$4"'
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--mount", "sh", "-c", script, "sh",
             str(tmp_path / f"hosts{rank}"), sys.executable, MEET, str(rank)],
            stdout=subprocess.PIPE, text=True,
        )
        for rank, name in enumerate(machines)
    ]  # fmt: skip
    for rank in ranks:
        said = rank.communicate(timeout=120)[0]
        assert said.startswith("node b (rank 1): the host name resolves to a loopback address there, which ranks on ")
        assert said.endswith("set GLOO_SOCKET_IFNAME to the network interface, on this machine one of wire\n")
