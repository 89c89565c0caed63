"""Who is lost, what those left take as done, and what is left of a plan: without processes."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from train.at_once import at_once

from skippipe.remaining import redistributed
from skippipe.train.connect.activity import died_key
from skippipe.train.connect.attempt import LeftBehindError
from skippipe.train.connect.store import RendezvousError, StoreClient
from skippipe.train.loop.standing import CommonStanding, Standing, common_standing
from skippipe.train.membership.agreement import agree
from skippipe.train.membership.heartbeat import Loss, Monitor, Silence
from skippipe.train.membership.members import Survivors
from skippipe.train.prepare.remaining import NotRecoverableError
from skippipe.train.recovery import MOST_FRUITLESS, Progress

NODES = ("a", "b", "c")


def test_going_on_that_leads_nowhere_ends() -> None:
    nobody, somebody = Loss(frozenset(), "cut", ""), Loss(frozenset({1}), "died", "")
    progress = Progress()
    for iteration in (0, 0, 0, 1, 1, 1):
        progress.check(nobody, iteration)
    progress.check(somebody, 1)
    for _ in range(MOST_FRUITLESS - 1):
        progress.check(nobody, 1)
    with pytest.raises(NotRecoverableError, match="cut, 4 times in a row"):
        progress.check(nobody, 1)


@given(st.integers(1, 9), st.data())
def test_ranks_of_those_left_over_generations(world: int, data: st.DataObject) -> None:
    """Each rank of a generation is that of the same member in any earlier one; the others are lost."""
    generations = [tuple(range(world))]
    for _ in range(data.draw(st.integers(1, 4))):
        kept = data.draw(st.sets(st.sampled_from(generations[-1]), min_size=1))
        generations.append(tuple(sorted(kept)))
    before, after = data.draw(st.sampled_from(generations)), generations[-1]
    survivors = Survivors({}, after)
    new_rank = survivors.new_rank(before)
    assert sorted(new_rank.values()) == list(range(len(after)))
    assert all(before[old] == after[new] for old, new in new_rank.items())
    assert sorted([*survivors.lost(before), *after]) == sorted(before)


def test_ranks_after_a_generation_that_did_not_connect() -> None:
    """0 is lost, 1 to 3 agree, 2 dies while they connect: the ranks of the loop are still those of all four."""
    survivors = Survivors({}, (1, 3))
    assert survivors.new_rank((0, 1, 2, 3)) == {1: 0, 3: 1}
    assert survivors.lost((0, 1, 2, 3)) == [0, 2]


@given(st.lists(st.tuples(st.floats(0.01, 5), st.booleans()), max_size=40))
def test_silence(looks: list[tuple[float, bool]]) -> None:
    """A member is lost once the looks at it add up to the limit, each at most two pauses long; a beat begins anew."""
    silence, silent_s, beat = Silence([7], limit_s=3.0, pause_s=0.5), 0.0, 0
    for elapsed_s, beats in looks:
        beat += beats
        silent_s = 0.0 if beats else silent_s + min(elapsed_s, 1.0)
        assert silence.observe({7: str(beat)} if beat else {}, elapsed_s) == ({7} if silent_s >= 3.0 else set())


@given(st.integers(0, 50), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_all_step_if_one_has(done: int, ranks: list[tuple[bool, bool]]) -> None:
    standings = [
        Standing(
            done + stepped, norm=float(done + stepped).hex(), latest="{}", latest_iteration=done + (stepped and told)
        )
        for stepped, told in ranks
    ]
    common = common_standing([Standing.from_json(standing.to_json()) for standing in standings])
    assert common.iteration == done + any(stepped for stepped, _ in ranks)
    assert common.norm == float(common.iteration)
    assert (common.latest is not None) == (common.iteration == done or any(stepped and told for stepped, told in ranks))


def test_what_only_some_have_completed_is_done_again() -> None:
    ahead = Standing(3, norm=(2.5).hex(), newest=2, validated=3, phase=2)
    behind = Standing(3, norm=(2.5).hex(), newest=0, validated=0, phase=0)
    assert common_standing([ahead, behind]) == CommonStanding(3, 2.5, None, None, newest=2, validated=0, phase=0)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9), min_size=1), st.data())
def test_microbatches_of_lost_sources_go_to_the_others(counts: dict[int, int], data: st.DataObject) -> None:
    left = data.draw(st.lists(st.sampled_from(sorted(counts)), min_size=1, unique=True))
    found = dict(zip(left, redistributed(counts, left), strict=True))
    assert sum(found.values()) == sum(counts.values())
    assert all(found[source] >= counts[source] for source in left)
    grown = [source for source in left if found[source] > counts[source]]
    assert all(found[source] <= min(found.values()) + 1 for source in grown), "as even as possible"


@pytest.fixture
def store() -> Iterator[Any]:
    """A store that outlives all members."""
    served: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    yield served
    del served


def client_of(store: Any) -> StoreClient:
    def connect() -> Any:
        return dist.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]

    return StoreClient(connect, 20.0)


class Member:
    """A member of a job of three, in a thread of this process."""

    def __init__(self, store: Any, own: int, heartbeat_s: float) -> None:
        self.own, self.client = own, client_of(store)
        self.interrupted = threading.Event()
        self.monitor = Monitor(
            client_of(store),
            attempt="job",
            own=own,
            heartbeat_s=heartbeat_s,
            names=lambda member: [NODES[member]],
        )

    def watch(self) -> None:
        self.monitor.watch(0, range(3), self.interrupted.set)

    def agree(self, patience_s: float = 20.0) -> dict[int, str]:
        return agree(
            self.client, self.monitor, generation=1, members=range(3), own=self.own, standing=f"of {self.own}",
            patience_s=patience_s,
        )  # fmt: skip

    def close(self) -> None:
        self.monitor.close()
        self.client.close()


@pytest.fixture
def members(store: Any) -> Iterator[list[Member]]:
    """Three of them, who watch each other."""
    found = [Member(store, own, heartbeat_s=2.0) for own in range(3)]
    for member in found:
        member.watch()
    yield found
    for member in found:
        member.close()


def test_a_death_that_is_told_of_interrupts_all_and_those_left_agree(store: Any, members: list[Member]) -> None:
    members[1].monitor.close()
    store.append(died_key("job"), "1 ")
    left = [members[0], members[2]]
    for member in left:
        assert member.interrupted.wait(20)
        assert member.monitor.loss is not None
        assert member.monitor.loss.lost == {1}
        with pytest.raises(RendezvousError, match=r"node b \(rank 1\) has died"):
            member.monitor.check()
    got = at_once(*(member.agree for member in left))
    assert got == [{0: "of 0", 2: "of 2"}] * 2


def test_silence_is_noticed_and_the_silent_one_is_left_behind(members: list[Member]) -> None:
    """Whoever comes back finds that the others have gone on: two groups cannot both do so."""
    members[2].monitor.close()  # it lives, but nobody knows
    left = members[:2]
    for member in left:
        assert member.interrupted.wait(60)
        with pytest.raises(RendezvousError, match=r"node c \(rank 2\) has shown no sign of life for 4 s"):
            member.monitor.check()
    assert at_once(*(member.agree for member in left)) == [{0: "of 0", 1: "of 1"}] * 2
    with pytest.raises(LeftBehindError):
        members[2].agree()


def test_a_call_interrupts_those_that_have_noticed_nothing(members: list[Member]) -> None:
    got = at_once(members[0].agree, *(partial(_come_when_called, member) for member in members[1:]))
    assert got == [{0: "of 0", 1: "of 1", 2: "of 2"}] * 3


def _come_when_called(member: Member) -> dict[int, str]:
    assert member.interrupted.wait(20)
    return member.agree()


def test_one_that_lives_but_does_not_come_is_left_behind(members: list[Member]) -> None:
    assert at_once(*(partial(member.agree, 0.5) for member in members[:2])) == [{0: "of 0", 1: "of 1"}] * 2
    begin = time.monotonic()
    with pytest.raises(LeftBehindError):
        members[2].agree()
    assert time.monotonic() - begin < 20


def test_a_store_that_is_gone_interrupts_all() -> None:
    served: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    members = [Member(served, own, heartbeat_s=2.0) for own in range(3)]
    for member in members:
        member.watch()
    del served
    for member in members:
        assert member.interrupted.wait(60)
        with pytest.raises(RendezvousError, match="the membership service is gone"):
            member.monitor.check()
        member.close()
