"""Joining a job that is under way: this process asks the members, waits until they admit it, and connects to them.

Before it asks, it compares its settings with what the ranks have stated at the start, under the keys of the store, so
one that does not fit ends without disturbing anybody. Its place among the members follows from what they agree on.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from skippipe.errors import ActionError
from skippipe.ranks import node_title
from skippipe.runtime.links.gloo import open_connections
from skippipe.train.connect.activity import Activity, announce_admission, knocks_key, ranks_key
from skippipe.train.connect.attempt import Attempt, own_presence, presence_of
from skippipe.train.connect.authentication import seal_of_attempt
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.rendezvous import difference
from skippipe.train.connect.store import MOST_PAUSE_S, RendezvousError, StoreClient, reached
from skippipe.train.membership.agreement import decision_key
from skippipe.train.membership.door import Knock, knock_key, refusal_key
from skippipe.train.membership.members import ADMITS, MARGIN_S, Members, monitoring
from skippipe.train.membership.withdrawing import MissedError, telling, withdrawing
from skippipe.train.resolve.spec import CommunicationSpec

LOOKS_PER_CHECK = 10
"""Looks for an answer between two looks at whether anybody still trains."""


class NotAdmittedError(RendezvousError):
    """The members do not want this process."""


@dataclass(frozen=True)
class JobUnderWay:
    """A job that others train, as its members have described it in the store."""

    client: StoreClient
    attempt: Attempt
    """as it began; `rank` is none of its own"""

    def stated(self, key: str, rank: int) -> str:
        """What a rank has stated at the start."""
        with reached():
            text = self.client.get(f"{self.attempt.name}/{key}/{rank}")
        if text is None:
            raise RendezvousError(f"the ranks that train have not stated their {key}")
        return text

    def check_equal(self, key: str, values: Mapping[str, str], own_title: str) -> None:
        """Raise `InputError` where values differ from those that all ranks have stated at the start."""
        world = len(self.attempt.ranks)
        theirs = [json.loads(self.stated(key, rank)) for rank in range(world)]
        problem = difference(
            [*theirs, dict(values)],
            lambda rank: own_title if rank == world else node_title(self.attempt.ranks[rank].names, rank),
        )
        if problem is not None:
            raise problem


def find_job(client: StoreClient, rank_spec: RankSpec, spec: CommunicationSpec, key: str | None) -> JobUnderWay | None:
    """The job that others train, if they can be joined; None: nobody trains.

    While others train that cannot be joined, or where this process can only join a job and there is none, that waits.

    Args:
        client: the store.
        rank_spec: of this process.
        spec: time limits.
        key: the file with the secret, `checkpoint.key`.

    Raises:
        InputError: the others have another secret.
        RendezvousError: the wait takes too long, or the others have ended the run in order.

    """
    activity, deadline = Activity(client, 2 * spec.heartbeat_s), time.monotonic() + spec.start_timeout_s
    own = node_title(rank_spec.names, rank_spec.rank)
    with reached():
        while True:
            over = activity.is_over()
            if over and activity.ended_in_order:
                raise RendezvousError(f"the other nodes have ended the run without {own}")
            if over and not rank_spec.newcomer:
                return None
            name = client.get("attempt")
            text = None if over or name is None else client.get(ranks_key(name))
            if name is not None and text is not None:
                ranks = tuple(map(presence_of, json.loads(text)))
                names = [presence.names for presence in ranks]
                if client.get(f"{name}/{ADMITS}") is not None:
                    if rank_spec.launcher is Launcher.NODE:
                        client.seal = seal_of_attempt(client, name, names, key)
                    return JobUnderWay(client, Attempt(client, len(ranks), name, ranks))
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"no run is under way that {own} could join"
                    if over
                    else f"the other nodes go on training without {own}; start it again once they have ended"
                )
            time.sleep(MOST_PAUSE_S)


@contextlib.contextmanager
def joining(job: JobUnderWay, rank_spec: RankSpec, spec: CommunicationSpec, facts: str) -> Iterator[Members]:
    """Ask the members of a job to admit this process, and wait until they do; within, it is one of them.

    Args:
        job: that is under way.
        rank_spec: of this process.
        spec: how the ranks communicate.
        facts: of its nodes, for whoever plans.

    Raises:
        WithdrawnError: a living node has its name (`NotAdmittedError`), or this process fails.
        MissedError: the job is over, or others were lost while it connected to them.

    """
    client, name = job.client, job.attempt.name
    with reached():
        presences = dict(enumerate(job.attempt.ranks))
        own = len(presences) + client.count(knocks_key(name)) - 1
    mine = own_presence(rank_spec, name)
    presences[own] = mine
    with monitoring(job.attempt, rank_spec, spec, own, presences) as monitor:
        client.limit(2 * spec.heartbeat_s + MARGIN_S)
        with reached():
            client.set(knock_key(name, own), Knock(mine, facts).to_json())
        with withdrawing(telling(job.attempt, own)):
            generation, decided = _await_admission(job, rank_spec, spec, own)
        with reached():
            announce_admission(client, name, own, mine.token)
        members = Members(
            job.attempt, rank_spec, spec, own=own, monitor=monitor, presences=presences, others=open_connections()
        )
        with getting_ready(members):
            members.enter(generation, decided)
        yield members


@contextlib.contextmanager
def getting_ready(members: Members) -> Iterator[None]:
    """Within: what this process does before it trains. If it fails, the others go on without it at once.

    Raises `MissedError` where the failure may lie with one of them.
    """
    with members.withdrawing():
        try:
            yield
        except (RendezvousError, ActionError) as error:
            raise MissedError(str(error)) from error.__cause__


def _await_admission(job: JobUnderWay, rank_spec: RankSpec, spec: CommunicationSpec, own: int) -> tuple[int, list[int]]:
    """Wait for the generation that has this process; gives its number and members."""
    client, name = job.client, job.attempt.name
    activity, title = Activity(client, 2 * spec.heartbeat_s), node_title(rank_spec.names, rank_spec.rank)
    generation, looks = 1, 0
    with reached():
        while True:
            decided = client.get(decision_key(name, generation))
            if decided is not None:
                members: list[int] = json.loads(decided)
                if own in members:
                    return generation, members
                generation += 1
                continue
            refused = client.get(refusal_key(name, own))
            if refused is not None:
                raise NotAdmittedError(f"{title} cannot join: a node that lives has the name {refused}")
            looks += 1
            if looks % LOOKS_PER_CHECK == 0 and (activity.is_over() or client.get("attempt") != name):
                raise MissedError(f"the other nodes have ended before they have admitted {title}")
            time.sleep(MOST_PAUSE_S)
