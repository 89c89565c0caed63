"""Emulated links: delivery times, values, order, and the executor over them."""

import time
from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from pool import Pool
from runtime.fakes import MESSAGE_SPEC, expected_ends, failing, numbered, serving, stages_of
from runtime.models import make_plan
from torch import Tensor

from skippipe import Cluster, Plan
from skippipe.config import Contention, LinkChange
from skippipe.errors import ActionError, InputError
from skippipe.ranks import NO_RANK
from skippipe.runtime.actions import TAGS_PER_MICROBATCH, Norm, Program, Reduce
from skippipe.runtime.deadlock import min_recv_buffers
from skippipe.runtime.executor import Executor
from skippipe.runtime.links import emulated
from skippipe.runtime.links.collectives import RingSums, tree_sum
from skippipe.runtime.links.emulated import EmulatedLink, Uplink, uplink_of, uplinks_of
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.lower import lower
from skippipe.runtime.message import MessageBuffers

P2P = TAGS_PER_MICROBATCH
"""A tag of a message between tasks."""


def cluster(nodes: int, *, whole: bool = False) -> Cluster:
    """Links that all differ, by rate or by whole times only."""
    latency = [[0.0 if i == j else 0.1 * i + 0.01 * j for j in range(nodes)] for i in range(nodes)]
    bandwidth = [[1e6 * (1 + i + nodes * j) for j in range(nodes)] for i in range(nodes)]
    rated = {"latency_s": latency, "bandwidth": bandwidth, "overhead_s": 0.25}
    seconds = [1.0] * nodes
    links = {"transfer_s": latency} if whole else rated
    return Cluster([f"n{i}" for i in range(nodes)], seconds, seconds, seconds, [1] * nodes, **links)


@pytest.mark.parametrize("whole", [False, True])
def test_an_uplink_is_that_of_the_rank_s_node(whole: bool) -> None:
    """Nodes and ranks are numbered differently, and node 1 serves no stage."""
    network, rank_of = cluster(4, whole=whole), [2, NO_RANK, 0, 1]
    for rank, node in enumerate([2, 3, 0]):
        for scale in (1.0, 0.1):
            uplink = uplink_of(network, rank_of, rank, scale)
            for to_rank, to in enumerate([2, 3, 0]):
                for size in (0, 1, 4096, 10**9) if to != node else ():
                    wanted = scale * float(network.transfer_matrix(size)[node, to])
                    assert uplink.transfer_s(to_rank, size) == pytest.approx(wanted, rel=1e-9)


def test_nodes_that_share_a_rank_need_the_same_links() -> None:
    rank_of = [0, 1, 0, 1, NO_RANK]
    with pytest.raises(InputError, match=r"runtime\.links: expected real, got emulated; nodes of ranks 1 and 0 have"):
        uplink_of(cluster(5), rank_of, 1)
    seconds = [1.0] * 5
    equal = [[0.5 if i % 2 else 0.2] * 5 for i in range(5)]  # between even and odd nodes
    network = Cluster([f"n{i}" for i in range(5)], seconds, seconds, seconds, [1] * 5, transfer_s=equal)
    assert [uplink_of(network, rank_of, rank).fixed_s[1 - rank] for rank in (0, 1)] == [0.2, 0.5]


def test_links_change_after_so_many_iterations() -> None:
    """Factors of several changes are multiplied; what they do not name stays, and so does the overhead."""
    network, changes = cluster(3), [
        LinkChange(4, 4.0, ["n0"], ["n1", "n2"]), LinkChange(2, 0.5, [], ["n2"]), LinkChange(4, 3.0, ["n0"], ["n1"]),
    ]  # fmt: skip
    size, factors = 1000, {0: (1.0, 1.0), 2: (1.0, 0.5), 4: (12.0, 2.0)}
    uplinks = uplinks_of(network, range(3), 0, 0.1, changes)
    link = EmulatedLink(Loopback(), uplinks[0], changes=uplinks)
    assert list(uplinks) == [0, 2, 4]
    for iteration, after in ((1, 0), (2, 0), (3, 2), (4, 2), (5, 4), (99, 4)):
        link.begin_iteration(iteration)
        for receiver, factor in zip((1, 2), factors[after], strict=True):
            wanted = 0.25 + factor * (float(network.transfer_matrix(size)[0, receiver]) - 0.25)
            assert link.uplink.transfer_s(receiver, size) == pytest.approx(0.1 * wanted)


def test_a_change_names_nodes_of_the_cluster() -> None:
    with pytest.raises(InputError, match=r"runtime\.link_changes\[1\]\.receivers\[0\]: expected one of n0, n1, got n7"):
        uplinks_of(cluster(2), range(2), 0, 1.0, [LinkChange(1, 2.0), LinkChange(1, 2.0, ["n0"], ["n7"])])


# --- on a clock of its own


@dataclass
class Clock:
    """Time that passes in sleep only."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Loopback(RingSums):
    """A link from a rank to itself that delivers at once, whenever the receive is posted."""

    def __init__(self) -> None:
        self.sent: dict[int, deque[Tensor]] = {}

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> "Loopback":
        self.sent.setdefault(tag, deque()).append(tensor.clone())
        return self

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> "Loopback":
        tensor.copy_(self.sent[tag].popleft())
        return self

    def wait(self, timeout_s: float) -> None:
        """Done already."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(emulated, "time", clock)
    return clock


def loopback(contention: Contention = "none") -> EmulatedLink:
    """To rank 0: 1 s + 0.5 s per byte; to rank 1: 3 s + 0.25 s per byte."""
    return EmulatedLink(Loopback(), Uplink((1.0, 3.0), (0.5, 0.25)), contention)


def arrival(link: EmulatedLink, clock: Clock, tag: int) -> float:
    """When a message of four bytes arrives, received from now on."""
    link.irecv(torch.empty(1), 0, tag).wait(99.0)
    return clock.now - 100.0


def test_time_counts_from_the_send(clock: Clock) -> None:
    """Neither a receive posted late nor one waited for late adds to it."""
    link = loopback()
    link.isend(torch.zeros(1), 0, P2P)
    clock.now += 2.5
    assert arrival(link, clock, P2P) == 3.0
    link.isend(torch.zeros(1), 0, P2P)
    clock.now += 50.0
    assert arrival(link, clock, P2P) == 53.0
    assert clock.slept == [0.5]


def test_a_sender_is_free_at_once_but_for_collectives(clock: Clock) -> None:
    link = loopback()
    link.isend(torch.zeros(1), 0, P2P).wait(99.0)
    assert clock.slept == []
    link.isend(torch.zeros(1), 1, P2P - 1).wait(99.0)
    assert clock.slept == [4.0]


@pytest.mark.parametrize(
    ("contention", "wanted"),
    [("none", [3.0, 3.0, 4.0, 3.0]), ("link", [3.0, 5.0, 4.0, 7.0]), ("uplink", [3.0, 5.0, 8.0, 8.0])],
)
def test_messages_that_share_a_link_leave_one_after_the_other(
    contention: Contention, wanted: list[float], clock: Clock
) -> None:
    """Bytes take turns, latency does not; four messages at once, the third to another rank."""
    link = loopback(contention)
    arrivals = []
    for number, to_rank in enumerate([0, 0, 1, 0]):
        link.isend(torch.zeros(1), to_rank, P2P + number)
    for number in range(4):
        clock.now = 100.0
        arrivals.append(arrival(link, clock, P2P + number))
    assert arrivals == wanted
    clock.now = 200.0
    link.isend(torch.zeros(1), 0, P2P)
    assert arrival(link, clock, P2P) == 103.0, "an idle link keeps nobody waiting"


def test_a_delivery_after_the_timeout(clock: Clock) -> None:
    link = loopback()
    link.isend(torch.zeros(1), 0, P2P)
    with pytest.raises(TimeoutError, match=r"timed out 1 s before the delivery over the emulated link"):
        link.irecv(torch.empty(1), 0, P2P).wait(2.0)
    assert clock.slept == [2.0]


# --- between processes

SHAPES = [
    ((3, 5), torch.float64),
    ((1,), torch.uint8),
    ((2, 2), torch.bfloat16),
    ((0,), torch.float32),
    ((7,), torch.int64),
]


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(100 * torch.rand(shape, generator=generator)).to(dtype) for shape, dtype in SHAPES]


def send_and_receive(rank: int, uplink: Uplink) -> list[float] | list[tuple[Tensor, float]]:
    """Rank 0 sends, two messages of every tag; rank 1 receives the tags in the opposite order."""
    link = EmulatedLink(GlooLink(), uplink)
    if rank == 0:
        issued, works = [], []
        for seed in (1, 2):
            for tag, tensor in enumerate(tensors(seed)):
                issued.append(time.monotonic())
                works.append(link.isend(tensor, 1, P2P + tag))
        for work in works:
            work.wait(20.0)
        return issued
    into = {(seed, tag): torch.empty_like(t) for seed in (1, 2) for tag, t in enumerate(tensors(seed))}
    posted = {key: link.irecv(tensor, 0, P2P + key[1]) for key, tensor in into.items()}
    found = []
    for seed, tag in sorted(into, key=lambda key: (-key[1], key[0])):
        posted[seed, tag].wait(20.0)
        found.append(((seed, tag), into[seed, tag], time.monotonic()))
    return [(tensor, arrived) for _, tensor, arrived in sorted(found, key=lambda item: item[0])]


def test_values_tags_and_order_are_exact_and_nothing_arrives_early(pool: Pool) -> None:
    uplink = Uplink((0.0, 0.03), (0.0, 1e-3))
    issued, received = pool.run(send_and_receive, [(uplink,)] * 2)
    sent = [tensor for seed in (1, 2) for tensor in tensors(seed)]
    for begin, tensor, (value, arrived) in zip(issued, sent, received, strict=True):
        assert torch.equal(value, tensor)
        assert arrived >= begin + uplink.transfer_s(1, tensor.nbytes)


@dataclass(frozen=True)
class Ended:
    """A program's results on one rank."""

    ended: dict[int, float]
    gradients: dict[int, list[list[float]]]
    spans: dict[str, float]
    """seconds of its collectives"""


def run_emulated(rank: int, program: Program, stages: list[int], uplink: Uplink, buffers: int) -> Ended:
    served = stages_of(program, stages)
    executor = Executor(
        program, served, EmulatedLink(GlooLink(), uplink), buffers=MessageBuffers(MESSAGE_SPEC),
        recv_buffers=buffers, sends_in_flight=1,
    )  # fmt: skip
    timings = executor.run(numbered, lambda _: None, 20.0)
    spans = {
        str(action): end - start
        for action, start, end in zip(timings.actions, timings.starts, timings.ends, strict=True)
        if isinstance(action, Reduce | Norm)
    }
    return Ended(
        {b: n for stage in served.values() for b, n in stage.ended.items()},
        {s: [g.flatten().tolist() for g in stage.gradients()] for s, stage in served.items()},
        spans,
    )


def test_a_program_runs_as_over_real_links(pool: Pool) -> None:
    """One link of the ring is slow; each of its 2 (r - 1) steps takes that long on the ranks beside it."""
    plan = Plan.from_json(make_plan(Random(5), [3, 1], 0.0, 2))
    ranks = range(4)
    programs = lower(plan, ranks)
    buffers = min_recv_buffers(programs, 1, 1)
    ring = plan.stages[0]
    slow_s = 0.04
    uplinks = [
        Uplink(tuple(slow_s if (r, to) == (ring[0], ring[1]) else 0.001 for to in ranks), (0.0,) * 4) for r in ranks
    ]
    by_rank = [(p, serving(ranks, plan.stages, p.rank), uplinks[p.rank], buffers) for p in programs]
    ran: list[Ended] = pool.run(run_emulated, by_rank)
    assert {b: n for one in ran for b, n in one.ended.items()} == expected_ends(programs)
    total = [[sum(float(r) for r in ring)] * 6, [sum(1.0 + r for r in ring)] * 5]
    assert all(ran[r].gradients[0] == total for r in ring)
    for rank in ring[:2]:
        assert ran[rank].spans["REDUCE s0"] >= 2 * (len(ring) - 1) * slow_s


def exchange_norm(rank: int, uplink: Uplink, world: int) -> tuple[list[float], float]:
    values = torch.arange(3, dtype=torch.float64) + rank
    begin = time.monotonic()
    tree_sum(EmulatedLink(GlooLink(), uplink), values, rank, range(world), 20.0)
    return values.tolist(), time.monotonic() - begin


def test_an_exchange_of_the_norm_takes_a_way_up_and_one_down(pool: Pool) -> None:
    results = pool.run(exchange_norm, [(Uplink((0.03,) * 3, (0.0,) * 3), 3)] * 3)
    assert [values for values, _ in results] == [[3.0, 6.0, 9.0]] * 3
    assert max(seconds for _, seconds in results) >= 2 * 0.03


def never_delivered(rank: int, program: Program, buffers: int) -> str:
    link = EmulatedLink(GlooLink(), Uplink((1e6, 1e6), (0.0, 0.0)))
    executor = Executor(
        program, stages_of(program, [rank]), link, buffers=MessageBuffers(MESSAGE_SPEC), recv_buffers=buffers
    )
    with pytest.raises(ActionError) as caught:
        executor.run(numbered, lambda _: None, 1.0)
    return str(caught.value)


def test_a_timeout_names_the_peer(pool: Pool) -> None:
    plan = Plan.from_json(make_plan(Random(1), [1, 1], 0.0, 1))
    ranks = [0, 1] if plan.stages[0] == [0] else [1, 0]
    programs = lower(plan, ranks)
    messages = pool.run(never_delivered, [(program, 1) for program in programs])
    assert messages[1].startswith("RECV 0F0 <- 0, peer rank 0: timed out ")
    assert "before the delivery over the emulated link" in messages[1]
    assert "peer rank 1: " in messages[0]
    pool.attempt(failing, [()] * 2)  # the group is of no more use
