"""Ranks that join, and those that do not."""

import contextlib
import os
import signal
import socket
import time
from functools import partial
from typing import Any

import pool as pools
import pytest
from torch import distributed as dist
from train.alone import free_port
from train.at_once import at_once

from skippipe.errors import InputError
from skippipe.train.connect.attempt import Attempt, PeerStoppedError, Presence, find_ranks
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.rendezvous import Rendezvous, join
from skippipe.train.connect.store import RendezvousError, StoreClient
from skippipe.train.resolve.spec import CommunicationSpec

QUICK = CommunicationSpec(start_timeout_s=1.0, timeout_s=5.0)


@pytest.fixture
def ranks() -> list[Rendezvous]:
    """Three ranks with a store between them, and no process group."""
    names: list[tuple[str, ...]] = [("a",), ("b", "c"), ("d",)]
    client = StoreClient(dist.HashStore, 5.0)  # type: ignore[attr-defined]
    ranks = tuple(Presence(f"{rank}", "0", names[rank], "host", None) for rank in range(3))
    group: Any = None
    return [
        Rendezvous(RankSpec(rank, 3, names[rank], "host", 1), names, Attempt(client, rank, "0", ranks), group, 5.0)
        for rank in range(3)
    ]


def together(ranks: list[Rendezvous], key: str, facts: list[dict[str, str]]) -> list[Any]:
    """Have all ranks state their facts at the same time; what each gets, errors too."""
    got = at_once(*(partial(rank.check_equal, key, stated) for rank, stated in zip(ranks, facts, strict=True)))
    return [str(result) if isinstance(result, InputError) else result for result in got]


def test_all_state_the_same(ranks: list[Rendezvous]) -> None:
    got = together(ranks, "facts", [{"plan": "x"}, {"plan": "x", "text": "y"}, {"plan": "x"}])
    assert got == [{"plan": "x", "text": "y"}] * 3


def test_the_node_that_differs_is_named_on_every_rank(ranks: list[Rendezvous]) -> None:
    got = together(ranks, "facts", [{"plan": "x"}, {"plan": "y"}, {"plan": "x"}])
    assert got == ["plan: expected x as on node a (rank 0), got y on node b, c (rank 1)"] * 3


def test_of_long_values_the_difference_is_told(ranks: list[Rendezvous]) -> None:
    got = together(ranks, "facts", [{"cut": f"[{'0, ' * 100}{end}]"} for end in (1, 1, 2)])
    zeros = "..., 0, 0, 0, 0, 0, 0, "
    assert got[0] == f"cut: expected {zeros}1] as on node a (rank 0), got {zeros}2] on node d (rank 2)"


def test_a_rank_that_says_nothing(ranks: list[Rendezvous]) -> None:
    slow = Rendezvous(ranks[0].rank_spec, ranks[0].names_by_rank, ranks[0].texts, ranks[0].group, 0.2)
    with pytest.raises(RendezvousError, match=r"timed out after 0.2 s waiting for node b, c \(rank 1\)"):
        slow.receive("facts", 1)


def test_what_rank_0_makes_all_get(ranks: list[Rendezvous]) -> None:
    assert ranks[0].broadcast("plan", lambda: "made") == "made"
    assert ranks[2].broadcast("plan", lambda: pytest.fail("only rank 0 makes")) == "made"


def test_nobody_at_the_rendezvous() -> None:
    port = free_port()
    with (
        pytest.raises(RendezvousError, match=rf"the rendezvous at 127.0.0.1:{port} cannot be reached within 1 s"),
        join(RankSpec(1, 2, ("b",), "127.0.0.1", port, launcher=Launcher.LOCAL), QUICK),
    ):
        pass


def test_a_port_in_use() -> None:
    with socket.socket() as door:
        door.bind(("", 0))
        door.listen()
        port = door.getsockname()[1]
        with (
            pytest.raises(RendezvousError, match=rf"127.0.0.1:{port}: the port is in use"),
            join(RankSpec(0, 2, ("a",), "127.0.0.1", port, launcher=Launcher.LOCAL), QUICK),
        ):
            pass


def test_a_rank_that_does_not_come() -> None:
    with (
        pytest.raises(RendezvousError, match="timed out after 1 s waiting for rank 1"),
        join(RankSpec(0, 2, ("a",), "127.0.0.1", free_port(), launcher=Launcher.LOCAL), QUICK),
    ):
        pass


def test_one_that_is_interrupted_while_it_connects() -> None:
    """It says so at once, though Gloo still waits for a rank that has come and does not connect."""
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    first, second = (RankSpec(rank, 2, (f"n{rank}",), "127.0.0.1", store.port, agent_store=True) for rank in range(2))
    process = pools.fork_context().Process(target=_join, args=(first,), daemon=True)
    process.start()
    with contextlib.closing(StoreClient(lambda: store, 5.0)) as client:
        attempt = find_ranks(client, second, [], 60.0, time.monotonic() + 60.0)
        assert [*client.wait(f"{attempt.name}/group/{CONNECTING}", time.monotonic() + 60.0)][-1] is not None
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        with pytest.raises(PeerStoppedError, match=r"node n0 \(rank 0\) has ended: it was asked to stop"):
            attempt.receive("never", 60.0, "rank 0")
        process.join(60.0)
    assert process.exitcode is not None


CONNECTING = "connecting"


def _join(rank_spec: RankSpec) -> None:
    init = dist.init_process_group

    def init_and_say_so(*arguments: Any, **named: Any) -> None:
        named["store"].set(CONNECTING, "")
        init(*arguments, **named)

    spec = CommunicationSpec(start_timeout_s=600.0, timeout_s=600.0)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(dist, "init_process_group", init_and_say_so)
        with join(rank_spec, spec):
            raise AssertionError("the other one never connects")
