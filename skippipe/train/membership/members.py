"""The ranks of a job over its generations: a generation ends when a rank is lost, and the next one has those left."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from skippipe.checkpoint.saving import SavingError
from skippipe.errors import SchedulerError
from skippipe.ranks import node_title
from skippipe.runtime.links.gloo import open_connections, shut_down
from skippipe.train.connect.attempt import Attempt, Presence, check_no_rank_left
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.connect.rendezvous import Rendezvous, connect_group, connecting_s, leave, taking_part
from skippipe.train.connect.store import RendezvousError, open_store, reached
from skippipe.train.membership.agreement import agree
from skippipe.train.membership.door import Knock, knock_key
from skippipe.train.membership.heartbeat import Loss, Monitor
from skippipe.train.membership.withdrawing import telling, withdrawing
from skippipe.train.resolve.spec import CommunicationSpec

if TYPE_CHECKING:
    from skippipe.runtime.links import Interruptible

ADMITS = "admits"
"""Key under which the members say that others may join them."""
MARGIN_S = 2.0
"""How much later than two heartbeats a loss may be noticed that explains a failed message."""

_FROM_OTHERS = (ConnectionError, TimeoutError)
"""Causes of errors that may lie with another rank; any other `OSError`, as of a file, is of this rank's own."""


@dataclass(frozen=True)
class Survivors:
    """Who goes on."""

    standings: Mapping[int, str]
    """what each of them has told, by its rank in the new generation; none of those that join"""
    members: tuple[int, ...]
    """their ranks at the start of the job, by those in the new generation"""

    def new_rank(self, before: Sequence[int]) -> dict[int, int]:
        """Their new ranks by those in an earlier generation, `before`, however many came to nothing in between."""
        return {before.index(member): rank for rank, member in enumerate(self.members) if member in before}

    def joined(self, before: Sequence[int]) -> list[int]:
        """Members that an earlier generation did not have."""
        return [member for member in self.members if member not in before]

    def lost(self, before: Sequence[int]) -> list[int]:
        """Members of an earlier generation that do not go on."""
        return [member for member in before if member not in self.members]


class Members:
    """The ranks of a job that watch each other; `watched` makes one, and `newcomer.py` for one that joins."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        attempt: Attempt,
        rank_spec: RankSpec,
        spec: CommunicationSpec,
        *,
        own: int,
        monitor: Monitor,
        presences: dict[int, Presence],
        others: frozenset[int],
    ) -> None:
        """Take what is known of a job; `begin` or `enter` makes it one of a generation.

        Args:
            attempt: as it began.
            rank_spec: of this process.
            spec: how the ranks communicate.
            own: this member.
            monitor: watches the others.
            presences: of all members so far, which the monitor knows them by; those that join are added.
            others: connections of this process that are not those to other ranks.

        """
        self._attempt, self._rank_spec, self._spec, self._own = attempt, rank_spec, spec, own
        self._monitor, self._presences, self._others = monitor, presences, others
        self._to_store: frozenset[int] = frozenset()
        """connections over which the group of the current generation uses the store; none while it connects"""
        self._facts: dict[int, str] = {}
        self._generation = 0
        self._members: tuple[int, ...] = tuple(range(len(attempt.ranks)))
        self._interruptible: list[Interruptible] = []
        self.has_trained = False
        """whether this process has done an iteration with the others"""
        self.rendezvous: Rendezvous
        """of the current generation"""

    def begin(self, rendezvous: Rendezvous) -> None:
        """Watch the ranks with which the job begins, which have joined already."""
        self.rendezvous = dataclasses.replace(
            rendezvous,
            texts=dataclasses.replace(self._attempt, check=self._monitor.check),
            interruptible=self._interruptible,
        )
        self._to_store = rendezvous.store_connections
        self._watch()

    def enter(self, generation: int, members: Sequence[int]) -> None:
        """Connect to a generation to which this process was admitted; raises `RendezvousError`."""
        self._generation = generation
        self._connect(members)

    @property
    def own(self) -> int:
        """This rank at the start of the job."""
        return self._own

    @property
    def current(self) -> tuple[int, ...]:
        """Ranks at the start of the job, by those in the generation that was agreed on last."""
        return self._members

    def names(self, members: Iterable[int]) -> list[str]:
        """The nodes that some members serve."""
        return [name for member in members for name in self._presences[member].names]

    @property
    def knocking(self) -> tuple[int, ...]:
        """Numbers of those that ask to join, on the lowest rank."""
        return self._monitor.knocking

    def facts(self, members: Iterable[int]) -> list[str]:
        """What those of some members have said of their nodes that have joined since the start."""
        return [self._facts[member] for member in members if member in self._facts]

    def admit_newcomers(self) -> None:
        """Let others ask to join from here on; rank 0 calls this."""
        self._attempt.publish(ADMITS, "")

    def withdrawing(self) -> contextlib.AbstractContextManager[None]:
        """Within: a process that joins. If it fails before it has trained, the others go on without it at once."""
        return withdrawing(telling(self._attempt, self._own), until=lambda: self.has_trained)

    @contextlib.contextmanager
    def taking_part(self) -> Iterator[None]:
        """Within: a process that has joined trains; see `skippipe.train.connect.rendezvous.taking_part`."""
        others = [presence for member, presence in self._presences.items() if member != self._own]
        attempt = dataclasses.replace(self._attempt, rank=len(others), ranks=(*others, self._presences[self._own]))
        with taking_part(attempt, self._rank_spec.launcher, self._own), self.withdrawing():
            yield

    def explain(self, error: SchedulerError, *, recover: bool) -> Loss | None:
        """The loss that explains an error; None: the error is of another kind.

        If a message has failed, that waits as long as a loss may take to be noticed, unless those left are not to
        `recover` and the error already says whose connection broke.

        Raises:
            RendezvousError: another rank has failed by an error of its own.
            PeerStoppedError: another rank was asked to stop, and has ended.

        """
        loss, cause = self._monitor.loss, error.__cause__
        if not isinstance(error, RendezvousError | SavingError) and not isinstance(cause, _FROM_OTHERS):
            return None  # it does not come from others
        if loss is None and isinstance(cause, _FROM_OTHERS) and (recover or isinstance(cause, TimeoutError)):
            loss = self._monitor.await_loss(2 * self._spec.heartbeat_s + MARGIN_S)
        elif loss is None and isinstance(error, SavingError):  # its own background thread noticed first
            loss = self._monitor.await_loss(MARGIN_S)
        with reached():
            check_no_rank_left(self._attempt.client, self._presences[self._own], self._attempt.name)
        if loss is None and recover and isinstance(cause, _FROM_OTHERS):
            return Loss(frozenset(), "the connections between the ranks have failed", "")
        return loss

    def exclude(self, rank: int, reason: str) -> Loss:
        """Have all take a rank of the current generation for lost; gives the loss."""
        with reached():
            return self._monitor.exclude(self._members[rank], reason)

    def regroup(self, standing: str, patience_s: float, newcomers: Sequence[int] = ()) -> Survivors:
        """Agree with the ranks that are left, and connect to them as the next generation. All of them call this.

        Args:
            standing: what the others have to know of this rank.
            patience_s: how long one that lives may take to come.
            newcomers: whom all of them have agreed to admit.

        Raises:
            ActionError: the GPU of this one does not come to rest.
            LeftBehindError: they go on without this one.
            RendezvousError: the store is gone, or another rank is lost meanwhile: call it again.

        """
        for link in self._interruptible:
            link.interrupt()
            link.close()
        self._interruptible.clear()
        self._generation += 1
        standings = agree(
            self._attempt.client, self._monitor, generation=self._generation, members=self._members, own=self._own,
            standing=standing, patience_s=patience_s, newcomers=newcomers,
        )  # fmt: skip
        self._connect(sorted(standings))
        told = {self._members.index(member): text for member, text in standings.items() if text}
        return Survivors(told, self._members)

    def _connect(self, members: Sequence[int]) -> None:
        """Connect to the members of the current generation."""
        self._members, self._to_store = tuple(members), frozenset()
        for member in members:
            if member not in self._presences:
                self._meet(member)
        if dist.is_initialized():
            dist.destroy_process_group()
        rank = self._members.index(self._own)
        attempt = dataclasses.replace(
            self._attempt,
            rank=rank,
            name=f"{self._attempt.name}/generation {self._generation}",
            ranks=tuple(self._presences[member] for member in self._members),
            check=self._monitor.check,
        )
        self._watch()
        limit_s = connecting_s(self._spec)
        communication = dataclasses.replace(self._spec, timeout_s=limit_s)
        try:
            # Whoever is lost by now is noticed here: connecting would wait until its time is over.
            attempt.publish(f"here/{rank}", "")
            for other, presence in enumerate(attempt.ranks):
                attempt.receive(f"here/{other}", limit_s, node_title(presence.names, other))
            connected = connect_group(attempt, self._rank_spec, communication, limit_s + MARGIN_S)
        except RendezvousError as error:
            raise error from ConnectionError()  # one that dies meanwhile is known to be lost a little later
        self._to_store = connected.to_store
        rank_spec = dataclasses.replace(self._rank_spec, rank=rank, world=len(self._members))
        self.rendezvous = Rendezvous(
            rank_spec, attempt.names_by_rank, attempt, connected.group, self._spec.start_timeout_s,
            interruptible=self._interruptible,
        )  # fmt: skip

    def _meet(self, member: int) -> None:
        """Learn who has joined."""
        with reached():
            text = self._attempt.client.get(knock_key(self._attempt.name, member))
        assert text is not None, "only those that have knocked are admitted"
        knock = Knock.from_json(text)
        self._presences[member], self._facts[member] = knock.presence, knock.facts

    def leave(self) -> None:
        """Leave together with the others, once all are done; from then on nobody need show signs of life.

        Raises as an exchange of texts does: without a rank that is lost before it is done, the others regroup.
        """
        self.rendezvous.all_gather("done", "")
        self._monitor.unwatch()
        if self._generation:  # else `join` does so
            leave(self.rendezvous)

    def _watch(self) -> None:
        """Watch the members of this generation; a loss breaks all connections to them off."""
        self._monitor.watch(self._generation, self._members, self._interrupt)

    def _interrupt(self) -> None:
        # First, so that no number goes to others that comes from messages which never arrived.
        shut_down(open_connections() - self._others - self._to_store)
        for link in self._interruptible:
            link.interrupt()


@contextlib.contextmanager
def watched(rendezvous: Rendezvous, spec: CommunicationSpec) -> Iterator[Members]:
    """Within: the ranks of a job watch each other. All ranks call this.

    A loss fails what any of them waits for, with an error that names the lost one.
    """
    before, attempt = open_connections(), rendezvous.texts
    assert isinstance(attempt, Attempt)
    presences = dict(enumerate(attempt.ranks))
    with monitoring(attempt, rendezvous.rank_spec, spec, rendezvous.rank, presences) as monitor:
        rendezvous.all_gather("watched", "")  # from here on all show signs of life
        attempt.client.limit(2 * spec.heartbeat_s + MARGIN_S)
        # Where this process serves the store, the connections of all monitors to it are among these.
        others = rendezvous.other_connections | (open_connections() - before)
        members = Members(
            attempt, rendezvous.rank_spec, spec, own=rendezvous.rank, monitor=monitor, presences=presences,
            others=others,
        )  # fmt: skip
        members.begin(rendezvous)
        yield members


@contextlib.contextmanager
def monitoring(
    attempt: Attempt, rank_spec: RankSpec, spec: CommunicationSpec, own: int, presences: Mapping[int, Presence]
) -> Iterator[Monitor]:
    """Within: this process shows signs of life as member `own` of an attempt, through a connection of its own."""
    client = open_store(dataclasses.replace(rank_spec, agent_store=True), spec.start_timeout_s)
    client.seal = attempt.client.seal
    monitor = Monitor(
        client, attempt=attempt.name, own=own, heartbeat_s=spec.heartbeat_s,
        names=lambda member: presences[member].names,
        newcomers_from=len(attempt.ranks) if spec.recover else None,
    )  # fmt: skip
    with contextlib.closing(monitor):
        # Whoever cannot reach the store for longer is lost for the others.
        client.limit(2 * spec.heartbeat_s + MARGIN_S)
        yield monitor
