"""Who is admitted of those that ask to join a job, and what becomes of the others: without processes."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from skippipe.errors import InputError, WithdrawnError
from skippipe.train.connect.activity import (
    Activity,
    announce_admission,
    announce_death,
    beat_key,
    presence_key,
    ranks_that_died,
)
from skippipe.train.connect.attempt import Attempt, Presence
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.store import RendezvousError, StoreClient
from skippipe.train.membership.door import Callers, Door, Knock, knock_key
from skippipe.train.membership.heartbeat import Monitor
from skippipe.train.membership.members import ADMITS
from skippipe.train.membership.newcomer import JobUnderWay, find_job, joining
from skippipe.train.resolve.spec import CommunicationSpec

SPEC = CommunicationSpec(heartbeat_s=0.5, start_timeout_s=60.0)
PRESENCES = [Presence("process-0.x", "job", ("a",), "", None), Presence("process-1.x", "job", ("b",), "", None)]


@pytest.fixture
def store() -> Iterator[Any]:
    """A store that outlives all members."""
    served: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    yield served
    del served


@pytest.fixture
def client(store: Any) -> Iterator[StoreClient]:
    """A client of that store, with a job of two that can be joined."""
    found = client_of(store)
    found.set("attempt", "job")
    found.set("job/ranks", json.dumps(PRESENCES))
    for rank, presence in enumerate(PRESENCES):
        found.set(presence_key(rank), json.dumps(presence))
    found.set(f"job/{ADMITS}", "")
    with contextlib.closing(found):
        yield found


def client_of(store: Any) -> StoreClient:
    def connect() -> Any:
        return dist.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]

    return StoreClient(connect, 20.0)


def newcomer(store: Any, name: str) -> RankSpec:
    return RankSpec(1, 2, (name,), "127.0.0.1", store.port, launcher=Launcher.LOCAL, agent_store=True, newcomer=True)


LOOKS = st.lists(
    st.tuples(st.floats(0.01, 3.0), st.dictionaries(st.integers(2, 5), st.booleans()), st.sets(st.sampled_from("abc"))),
    max_size=30,
)


@given(st.dictionaries(st.integers(2, 5), st.sets(st.sampled_from("abcdef"), min_size=1)), LOOKS)
def test_whoever_is_ready_lives_and_has_names_of_its_own(
    names: dict[int, set[str]], looks: list[tuple[float, dict[int, bool], set[str]]]
) -> None:
    """It has beaten since it knocked, within the limit; one is refused for a name that stays taken."""
    callers, beats = Callers(limit_s=4.0, most_s=1.0), dict.fromkeys(names, 0)
    silent, taken_s, seen = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0), set[int]()
    for elapsed_s, beating, taken in looks:
        for number in names:
            beats[number] += beating.get(number, False)
        found = callers.observe(names, {number: str(beat) for number, beat in beats.items()}, taken, elapsed_s)
        passed_s = min(elapsed_s, 1.0)
        for number, own in names.items():
            beat_now = beating.get(number, False) and number in seen
            silent[number] = 0.0 if beat_now else silent[number] + passed_s
            taken_s[number] = taken_s[number] + passed_s if own & taken else 0.0
            seen.add(number)
        for number in found.ready:
            assert silent[number] < 4.0
            assert beats[number]
            assert not names[number] & taken
        assert len({name for number in found.ready for name in names[number]}) == sum(
            len(names[number]) for number in found.ready
        ), "no two of them have the same name"
        for number in found.refused:
            assert names[number] & taken
            assert taken_s[number] > 5.0


def test_a_knock_that_nobody_can_have_written_is_none(client: StoreClient) -> None:
    """Whoever reaches the store may count as many as he likes."""
    door = Door(client, "job", 2, limit_s=4.0, pause_s=0.1)
    for _ in range(3):
        client.count("job/knocks")
    client.set(knock_key("job", 3), Knock(PRESENCES[0]._replace(names=("c",)), "{}").to_json())
    for beat in range(3):
        client.set(beat_key("job", 3), str(beat))
        door.look(["a", "b"], 0.1)
    assert list(door.ready) == [3]
    door.close([0, 1, 3])
    assert not door.ready
    client.set(beat_key("job", 3), "4")
    door.look(["a", "b"], 0.1)
    assert not door.ready, "it has been admitted once"


def test_one_with_the_name_of_a_living_node_is_refused(store: Any, client: StoreClient) -> None:
    """It is told, and nobody else notices."""
    monitor = Monitor(
        client_of(store), attempt="job", own=0, heartbeat_s=SPEC.heartbeat_s, names=lambda member: "ab"[member],
        newcomers_from=2,
    )  # fmt: skip
    monitor.watch(0, {0}, lambda: None)
    job = find_job(client, newcomer(store, "a"), SPEC, None)
    assert job is not None
    with (
        contextlib.closing(monitor),
        pytest.raises(WithdrawnError, match=r"node a \(rank 1\) cannot join: a node that lives has the name a"),
        joining(job, newcomer(store, "a"), SPEC, "{}"),
    ):
        raise AssertionError("it was admitted")
    assert monitor.loss is None
    assert not monitor.knocking


def test_settings_that_differ_from_those_of_the_run(client: StoreClient) -> None:
    """The message names the key, both values and both nodes."""
    job = JobUnderWay(client, Attempt(client, 2, "job", tuple(PRESENCES)))
    for rank in range(2):
        client.set(f"job/settings/{rank}", json.dumps({"train.seed": "0"}))
    job.check_equal("settings", {"train.seed": "0"}, "node c (rank 2)")
    with pytest.raises(InputError) as refused:
        job.check_equal("settings", {"train.seed": "1"}, "node c (rank 2)")
    assert str(refused.value) == "train.seed: expected 0 as on node a (rank 0), got 1 on node c (rank 2)"


def test_nobody_trains(store: Any) -> None:
    """One that belongs to the run takes part in its next attempt; one that does not has nothing to join."""
    with contextlib.closing(client_of(store)) as client:
        member = RankSpec(1, 2, ("b",), "127.0.0.1", store.port, launcher=Launcher.NODE, agent_store=True)
        assert find_job(client, member, SPEC, None) is None
        impatient = CommunicationSpec(start_timeout_s=0.2)
        with pytest.raises(RendezvousError, match=r"no run is under way that node c \(rank 1\) could join"):
            find_job(client, newcomer(store, "c"), impatient, None)


def test_a_run_that_cannot_be_joined(client: StoreClient) -> None:
    """It is waited for its end, as long as for a rendezvous."""
    client.set("attempt", "closed")
    client.set("closed/ranks", json.dumps(PRESENCES))
    member = RankSpec(1, 2, ("b",), "127.0.0.1", 1, launcher=Launcher.NODE, agent_store=True)
    with pytest.raises(RendezvousError, match="the other nodes go on training without node b"):
        find_job(client, member, CommunicationSpec(start_timeout_s=0.2), None)


def test_the_death_of_one_that_has_joined_is_told_under_its_number(client: StoreClient) -> None:
    """Its parent knows it by the rank of its node, which was that of a process that died before."""
    announce_death(client, 1, "process-1")
    announce_admission(client, "job", 2, "newcomer.x")
    assert ranks_that_died(client, "job") == {1}
    activity = Activity(client, 1e9)
    announce_death(client, 0, "process-0")
    assert not activity.is_over(), "the one that has joined trains"
    announce_death(client, 1, "newcomer")
    assert ranks_that_died(client, "job") == {0, 1, 2}
    assert activity.is_over()


@pytest.mark.parametrize("opened", ["job", "next job"])
def test_the_death_of_a_process_of_an_earlier_attempt_is_not_told(client: StoreClient, opened: str) -> None:
    """Whether its rank has come again, in the attempt that is open now, or not yet."""
    client.set("attempt", opened)
    client.set(presence_key(0), json.dumps(PRESENCES[0]._replace(token="again.x", attempt=opened)))
    announce_death(client, 0, "process-0")
    announce_death(client, 1, "process-2")
    if opened != "job":
        announce_death(client, 1, "process-1")
    assert not ranks_that_died(client, opened)
