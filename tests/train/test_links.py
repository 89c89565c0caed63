"""Which way messages travel, and which GPU a process takes."""

import time
from collections.abc import Collection
from typing import Literal
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from skippipe.devices import find_device
from skippipe.errors import ActionError, InputError
from skippipe.runtime.links.gpu import GpuLink
from skippipe.runtime.links.peer import Edge, PeerEdges, PeerWork
from skippipe.train.connect.links import ON_CPU, choose_backend

OBSTACLES = [
    (["a", ON_CPU], "rank 1 computes on its CPU"),
    ([ON_CPU], "rank 0 computes on its CPU"),
    (["a", "b", "a"], "ranks 0 and 2 share a GPU"),
    (["a"], "there is one rank only"),
]


@pytest.mark.parametrize(("devices", "reason"), OBSTACLES)
def test_where_nccl_cannot_be_used(devices: list[str], reason: str) -> None:
    assert choose_backend("auto", devices) == choose_backend("gloo", devices) == "gloo"
    with pytest.raises(InputError, match=f"runtime.backend: expected auto or gloo, got nccl.*{reason}"):
        choose_backend("nccl", devices)


@pytest.mark.parametrize(("wanted", "chosen"), [("auto", "nccl"), ("nccl", "nccl"), ("gloo", "gloo")])
def test_a_gpu_for_each_rank(
    wanted: Literal["auto", "gloo", "nccl"], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert choose_backend(wanted, ["a", "b", "c"]) == chosen


def test_without_nccl_messages_go_by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    assert choose_backend("auto", ["a", "b"]) == "gloo"
    with pytest.raises(InputError, match="this torch has no NCCL"):
        choose_backend("nccl", ["a", "b"])


def test_gpus_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    found = [find_device(name, "runtime.device", process) for name in ("auto", "cuda") for process in range(5)]
    assert found == [torch.device("cuda", number) for number in (0, 1, 2, 0, 1)] * 2
    assert find_device("cuda:1", "runtime.device", 2) == torch.device("cuda:1")
    assert find_device("cpu", "runtime.device", 2) == torch.device("cpu")


class Neighbours(PeerEdges):
    """Edges between ranks 0 and 1, the only ones on this machine, that carry nothing."""

    def __init__(self) -> None:
        self.reached: set[Edge] = set()
        self.asked: list[list[Edge]] = []
        self.carried: list[tuple[str, int]] = []
        self.released = self.released_closed = 0
        self.is_open = True

    def connect(self, edges: Collection[Edge]) -> None:
        self.asked.append(list(edges))
        self.reached |= {(0, 1), (1, 0)} & set(edges)

    def send(self, tensor: Tensor, to_rank: int) -> PeerWork:
        self.carried.append(("to", to_rank))
        return PeerWork(torch.cuda.Event())  # type: ignore[no-untyped-call]

    def receive(self, into: Tensor, from_rank: int) -> PeerWork:
        self.carried.append(("from", from_rank))
        return PeerWork(torch.cuda.Event())  # type: ignore[no-untyped-call]

    def release(self) -> None:
        self.released += 1
        self.released_closed += not self.is_open

    def close(self) -> None:
        self.is_open = False


class Group:
    """A communicator that never ends by itself."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


def test_what_waits_for_a_lost_rank_is_broken_off_until_the_gpu_rests() -> None:
    peers, groups = Neighbours(), [Group(), Group()]

    def rest(_: torch.device) -> None:
        while peers.released < 3 or not all(group.aborted for group in groups):
            time.sleep(0.001)

    def run(link: GpuLink, *, fails: bool) -> None:
        with link:
            link.connect([(0, 1), (0, 2)])
            if fails:
                raise ConnectionError

    with (
        patch.object(GpuLink, "_new_group", side_effect=lambda ranks, _: groups[ranks == (2, 0)]),
        patch.object(GpuLink, "_use_first"),
        patch("skippipe.runtime.links.gpu._failure_to_rest", rest),
        pytest.raises(ConnectionError),
    ):
        run(GpuLink(0, torch.device("cpu"), peers), fails=True)
    assert [group.aborted for group in groups] == [1, 1]
    assert not peers.is_open
    assert peers.released_closed == 0, "that would write into memory which is freed"

    unbroken = Neighbours()
    with (
        patch.object(GpuLink, "_new_group", return_value=None),
        patch.object(GpuLink, "_use_first"),
        patch("skippipe.runtime.links.gpu._failure_to_rest", return_value=None),
    ):
        run(GpuLink(0, torch.device("cpu"), unbroken), fails=False)
    assert (unbroken.released, unbroken.is_open) == (0, False)


def test_a_gpu_that_does_not_rest_ends_its_process() -> None:
    link = GpuLink(0, torch.device("cpu"))
    link.interrupt()
    with (
        patch("skippipe.runtime.links.gpu._failure_to_rest", return_value="still busy"),
        pytest.raises(ActionError, match="after the last transfer: still busy"),
    ):
        link.close()
    link.close()


def test_only_edges_to_other_machines_have_communicators() -> None:
    peers, made = Neighbours(), list[Edge]()
    link = GpuLink(0, torch.device("cpu"), peers)
    with (
        patch.object(GpuLink, "_new_group", side_effect=lambda ranks, _: made.append(ranks)),
        patch.object(GpuLink, "_use_first"),
    ):
        for pairs in ([(0, 1), (2, 0)], [(1, 0), (1, 2)], [(0, 2)]):
            link.connect(pairs)
    assert made == [(0, 2), (2, 0), (1, 2), (2, 1)], "each once, whichever pair was named"
    assert peers.asked == [[(0, 1), (1, 0), (0, 2), (2, 0)], [(1, 2), (2, 1)]], "what is connected is not asked again"
    link.isend(torch.zeros(1), 1, 0)
    link.irecv(torch.zeros(1), 1, 0)
    assert peers.carried == [("to", 1), ("from", 1)]
    with pytest.raises(AssertionError, match="no communicator from rank 0 to 2"):
        link.isend(torch.zeros(1), 2, 0)
