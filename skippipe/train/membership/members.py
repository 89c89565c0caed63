"""The ranks of a job over its generations: a generation ends when a rank is lost, and the next one has those left."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from skippipe.checkpoint.saving import SavingError
from skippipe.errors import SchedulerError
from skippipe.runtime.links.gloo import open_connections, shut_down
from skippipe.train.connect.attempt import Attempt, check_no_rank_left
from skippipe.train.connect.rendezvous import Rendezvous, connect_group, leave
from skippipe.train.connect.store import RendezvousError, open_store, reached
from skippipe.train.membership.agreement import agree
from skippipe.train.membership.heartbeat import Loss, Monitor
from skippipe.train.resolve.spec import CommunicationSpec

MARGIN_S = 2.0
"""How much later than two heartbeats a loss may be noticed that explains a failed message."""
CONNECTING_S = 10.0
"""How long the ranks of a new generation may take to connect, beside the time in which a loss is noticed."""

_FROM_OTHERS = (ConnectionError, TimeoutError)
"""Causes of errors that may lie with another rank; any other `OSError`, as of a file, is of this rank's own."""


@dataclass(frozen=True)
class Survivors:
    """Who goes on."""

    standings: Mapping[int, str]
    """what each of them has told, by its rank in the new generation"""
    members: tuple[int, ...]
    """their ranks at the start of the job, by those in the new generation"""

    def new_rank(self, before: Sequence[int]) -> dict[int, int]:
        """Their new ranks by those in an earlier generation, `before`, however many came to nothing in between."""
        return {before.index(member): rank for rank, member in enumerate(self.members)}

    def lost(self, before: Sequence[int]) -> list[int]:
        """Members of an earlier generation that do not go on."""
        return [member for member in before if member not in self.members]


class Members:
    """The ranks of a job that watch each other; `watched` makes one."""

    def __init__(
        self, rendezvous: Rendezvous, spec: CommunicationSpec, monitor: Monitor, others: frozenset[int]
    ) -> None:
        """Take the ranks that have joined; all connections of this process but `others` are those to other ranks."""
        assert isinstance(rendezvous.texts, Attempt)
        self._first, self._spec, self._monitor = rendezvous.texts, spec, monitor
        self._own = rendezvous.rank
        self._generation = 0
        self._members = tuple(range(rendezvous.world))
        attempt = dataclasses.replace(rendezvous.texts, check=monitor.check)
        self.rendezvous = dataclasses.replace(rendezvous, texts=attempt)
        """of the current generation"""
        self._others = others
        self._watch()

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
        return [name for member in members for name in self._first.names_by_rank[member]]

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
            check_no_rank_left(self._first.client, self._first.own)
        if loss is None and recover and isinstance(cause, _FROM_OTHERS):
            return Loss(frozenset(), "the connections between the ranks have failed", "")
        return loss

    def exclude(self, rank: int, reason: str) -> Loss:
        """Have all take a rank of the current generation for lost; gives the loss."""
        with reached():
            return self._monitor.exclude(self._members[rank], reason)

    def regroup(self, standing: str, patience_s: float) -> Survivors:
        """Agree with the ranks that are left, and connect to them as the next generation. All of them call this.

        Raises:
            ActionError: the GPU of this one does not come to rest.
            LeftBehindError: they go on without this one.
            RendezvousError: the store is gone, or another rank is lost meanwhile: call it again.

        """
        for link in self.rendezvous.interruptible:
            link.interrupt()
            link.close()
        self.rendezvous.interruptible.clear()
        self._generation += 1
        standings = agree(
            self._first.client, self._monitor, generation=self._generation, members=self._members, own=self._own,
            standing=standing, patience_s=patience_s,
        )  # fmt: skip
        self._members = tuple(sorted(standings))
        if dist.is_initialized():
            dist.destroy_process_group()
        rank = self._members.index(self._own)
        attempt = dataclasses.replace(
            self._first,
            rank=rank,
            name=f"{self._first.name}/generation {self._generation}",
            ranks=tuple(self._first.ranks[member] for member in self._members),
            check=self._monitor.check,
        )
        self._watch()
        connecting_s = 2 * self._spec.heartbeat_s + CONNECTING_S
        communication = dataclasses.replace(self._spec, timeout_s=connecting_s)
        try:
            group = connect_group(attempt, communication, connecting_s + MARGIN_S)
        except RendezvousError as error:
            raise error from ConnectionError()  # one that dies meanwhile is known to be lost a little later
        rank_spec = dataclasses.replace(self.rendezvous.rank_spec, rank=rank, world=len(self._members))
        self.rendezvous = Rendezvous(rank_spec, attempt.names_by_rank, attempt, group, self.rendezvous.timeout_s)
        return Survivors({self._members.index(member): text for member, text in standings.items()}, self._members)

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
        shut_down(open_connections() - self._others)
        for link in self.rendezvous.interruptible:
            link.interrupt()


@contextlib.contextmanager
def watched(rendezvous: Rendezvous, spec: CommunicationSpec) -> Iterator[Members]:
    """Within: the ranks of a job watch each other. All ranks call this.

    A loss fails what any of them waits for, with an error that names the lost one.
    """
    before = open_connections()
    client = open_store(dataclasses.replace(rendezvous.rank_spec, agent_store=True), spec.start_timeout_s)
    assert isinstance(rendezvous.texts, Attempt)
    client.seal = rendezvous.texts.client.seal
    monitor = Monitor(
        client, attempt=rendezvous.texts.name, own=rendezvous.rank, heartbeat_s=spec.heartbeat_s,
        title=rendezvous.title,
    )  # fmt: skip
    with contextlib.closing(monitor):
        rendezvous.all_gather("watched", "")  # from here on all show signs of life
        # Whoever cannot reach the store for longer is lost for the others.
        for each in (client, rendezvous.texts.client):
            each.limit(2 * spec.heartbeat_s + MARGIN_S)
        # Where this process serves the store, the connections of all monitors to it are among these.
        others = rendezvous.other_connections | (open_connections() - before)
        yield Members(rendezvous, spec, monitor, others)
