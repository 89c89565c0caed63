"""The rendezvous: all ranks of a job, connected; they exchange text under keys and compare it.

Text goes through the store (`store.py`), and every wait has a time limit.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address
from itertools import islice, takewhile
from typing import NamedTuple, Protocol

import torch.distributed as dist

from skippipe.errors import ActionError, InputError, WithdrawnError, unexpected
from skippipe.ranks import node_title
from skippipe.runtime.links import Interruptible
from skippipe.runtime.links.addresses import INTERFACE, interfaces
from skippipe.runtime.links.gloo import first_line, open_connections
from skippipe.runtime.links.waiting import WaitingThread
from skippipe.train.connect.activity import announce_leaving
from skippipe.train.connect.attempt import (
    REPORT_S,
    Attempt,
    LeftBehindError,
    Presence,
    find_ranks,
)
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.store import RendezvousError, StoreClient, open_store
from skippipe.train.resolve.spec import CommunicationSpec

SHOWN_DIFFERENCES = 3
"""Most differences between ranks that one message names."""


class TextExchange(Protocol):
    """The store, as used by the ranks of one attempt."""

    def publish(self, key: str, text: str) -> None:
        """Publish a text for all ranks."""

    def receive(self, key: str, timeout_s: float, who: str) -> str:
        """Wait for a text of a rank, which messages call `who`."""

    def seal(self, secret: bytes) -> None:
        """Seal all texts from here on by a secret that the ranks of this attempt share."""

    @property
    def check(self) -> Callable[[], None]:
        """Raises `RendezvousError` once a rank is known to be lost."""


@dataclass(frozen=True)
class Rendezvous:
    """All ranks of a job. Each key is used once."""

    rank_spec: RankSpec
    names_by_rank: list[tuple[str, ...]]
    texts: TextExchange
    group: dist.ProcessGroup
    """all ranks, for messages and for what is summed after iterations"""
    timeout_s: float
    other_connections: frozenset[int] = frozenset()
    """file descriptors of the connections that this process had before it connected to the other ranks"""
    store_connections: frozenset[int] = frozenset()
    """those over which the process group uses the store"""
    interruptible: list[Interruptible] = field(default_factory=list)
    """what else waits for other ranks"""

    @property
    def rank(self) -> int:
        """This rank."""
        return self.rank_spec.rank

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.rank_spec.world

    def title(self, rank: int) -> str:
        """What messages call a rank: its nodes."""
        return node_title(self.names_by_rank[rank], rank)

    @contextlib.contextmanager
    def transferring(self, what: str, ranks: Iterable[int]) -> Iterator[None]:
        """Within: transfers between `ranks` that are no actions of a program.

        Raises:
            ActionError: one of them failed or timed out; the message names `what` they are for, and the other ranks.

        """
        try:
            yield
        except OSError as error:
            others = ", ".join(self.title(rank) for rank in ranks if rank != self.rank)
            raise ActionError(f"{what}, with {others}: {error}") from error

    def publish(self, key: str, text: str) -> None:
        """Publish a text of this rank."""
        self.texts.publish(f"{key}/{self.rank}", text)

    def receive(self, key: str, rank: int, extra_s: float = 0.0) -> str:
        """Wait for a text of another rank, `extra_s` longer than usual if it takes that long to make."""
        return self.texts.receive(f"{key}/{rank}", self.timeout_s + extra_s, self.title(rank))

    def all_gather(self, key: str, text: str, extra_s: float = 0.0) -> list[str]:
        """Publish this rank's text and receive those of all, by rank."""
        self.publish(key, text)
        return [self.receive(key, rank, extra_s) for rank in range(self.world)]

    def broadcast(self, key: str, make: Callable[[], str], extra_s: float = 0.0) -> str:
        """Have rank 0 make a text, which may take `extra_s`, and give it to all ranks."""
        if self.rank == 0:
            self.publish(key, make())
        return self.receive(key, 0, extra_s)

    def check_equal(self, key: str, values: Mapping[str, str]) -> dict[str, str]:
        """Check that no two ranks state different values under one name; a rank need not state all names.

        Returns:
            All values that any rank states.

        Raises:
            InputError: values differ; the message has names, values and nodes.

        """
        stated: list[dict[str, str]] = [json.loads(text) for text in self.all_gather(key, json.dumps(dict(values)))]
        problem = difference(stated, self.title)
        if problem is not None:
            self.await_readers(key)
            raise problem
        return {what: value for theirs in reversed(stated) for what, value in theirs.items()}

    def await_readers(self, key: str) -> None:
        """Wait until all ranks have read what all have published under `key`, and so end for the same reason.

        Otherwise the first one to end would announce its end, or close the store, while others still read.
        """
        with contextlib.suppress(RendezvousError):  # whoever ends from here on has read all of it
            self.all_gather(f"{key} read", "")


def difference(stated: Sequence[Mapping[str, str]], title: Callable[[int], str]) -> InputError | None:
    """The error of ranks that state different values under one name; has names, values and what `title` calls them."""
    first: dict[str, int] = {}
    differing: dict[str, int] = {}
    for rank, theirs in enumerate(stated):
        for what, value in theirs.items():
            if stated[first.setdefault(what, rank)][what] != value:
                differing.setdefault(what, rank)
    errors: list[InputError] = []
    for what, rank in islice(differing.items(), SHOWN_DIFFERENCES):
        expected, got = _about_difference(stated[first[what]][what], stated[rank][what])
        errors.append(unexpected(what, f"{got} on {title(rank)}", f"{expected} as on {title(first[what])}"))
    if not errors:
        return None
    errors[0].hint = "; ".join(map(str, errors[1:])) or None
    return errors[0]


@contextlib.contextmanager
def join(rank_spec: RankSpec, spec: CommunicationSpec, nodes: Sequence[str] = ()) -> Iterator[Rendezvous]:
    """Join the other ranks; at the end, leave together.

    Args:
        rank_spec: this rank.
        spec: backend and time limits.
        nodes: names of the plan's nodes, for messages.

    Raises:
        RendezvousError: the store cannot be reached or served, or a rank did not join in time.
        PeerStoppedError: another rank was asked to stop before all had joined.

    """
    deadline = time.monotonic() + spec.start_timeout_s
    with contextlib.closing(open_store(rank_spec, spec.start_timeout_s)) as client:
        attempt = find_ranks(client, rank_spec, nodes, spec.start_timeout_s, deadline)
        with taking_part(attempt, rank_spec.launcher, rank_spec.rank):
            check_reachable(attempt.ranks)
            others = open_connections()
            connected = connect_group(attempt, rank_spec, spec, max(deadline - time.monotonic(), LEAST_CONNECTING_S))
            group = connected.group
            rendezvous = Rendezvous(
                rank_spec, attempt.names_by_rank, attempt, group, spec.start_timeout_s, others, connected.to_store
            )
            yield rendezvous
            if dist.group.WORLD is group:  # else those that are left have regrouped, and leave by themselves
                leave(rendezvous)


@contextlib.contextmanager
def taking_part(attempt: Attempt, launcher: Launcher, member: int) -> Iterator[None]:
    """Within: this process is a member of an attempt. At the end it leaves, and if that is an error says why."""
    in_order = False
    try:
        yield
        in_order = True
    except (LeftBehindError, WithdrawnError):
        raise
    except BaseException as error:
        # Peers notice a lost connection themselves; and the supervisor of a local run ends all workers.
        silent = launcher is Launcher.LOCAL or isinstance(error, ActionError)
        attempt.announce_end(error, 0.0 if silent else REPORT_S)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        if launcher is Launcher.NODE:
            with contextlib.suppress(RuntimeError, OSError):  # the store is gone
                announce_leaving(attempt.client, attempt.name, member, in_order=in_order)


def leave(rendezvous: Rendezvous) -> None:
    """Wait until all ranks are done; rank 0, which may serve the store, waits until no rank needs it any more."""
    rendezvous.all_gather("end", "")
    with contextlib.suppress(RendezvousError):  # a store that another process serves may be gone before
        rendezvous.publish("gone", "")
        if rendezvous.rank == 0:
            for rank in range(rendezvous.world):
                rendezvous.receive("gone", rank)


CONNECTING_S = 10.0
"""For ranks that are all there to connect, beside the time in which a loss is noticed."""
BACKGROUND_TIMEOUT_S = 3600.0
"""Of an exchange beside training, as when the ranks write a checkpoint or renew copies of stages: disks may be slow."""
LEAST_CONNECTING_S = 5.0
"""Time for connecting to the other ranks, however late the last one joined."""


class Connected(NamedTuple):
    """The ranks of a generation, connected."""

    group: dist.ProcessGroup
    to_store: frozenset[int]
    """file descriptors over which it uses the store"""


def connect_group(attempt: Attempt, rank_spec: RankSpec, spec: CommunicationSpec, timeout_s: float) -> Connected:
    """Make the process group; in another thread, since Gloo waits for other ranks with signals blocked.

    It waits for the addresses of the others through a connection to the store of its own. So a monitor that breaks off
    the connections of this generation ends that wait as well, and the store answers meanwhile.

    Raises:
        RendezvousError: a rank cannot be reached, or is lost.

    """
    before = open_connections()
    with contextlib.closing(open_store(replace(rank_spec, agent_store=True), timeout_s)) as client:
        to_store = open_connections() - before
        attempt.check()  # a loss that was noticed before has not broken off this connection
        return Connected(_connect(attempt, client, spec, timeout_s), to_store)


def _connect(attempt: Attempt, client: StoreClient, spec: CommunicationSpec, timeout_s: float) -> dist.ProcessGroup:
    def connect() -> None:
        # Torch counts its groups in the keys of the store, also those that have come to nothing for this rank alone.
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001
        dist.init_process_group(
            "gloo",  # texts and numbers of the host always go this way; see `skippipe.train.connect.links`
            store=dist.PrefixStore(f"{attempt.name}/group", client.store),  # type: ignore[attr-defined]
            rank=attempt.rank,
            world_size=len(attempt.ranks),
            timeout=timedelta(seconds=spec.timeout_s),
        )

    try:
        client.call(connect, timeout_s)
    except TimeoutError:
        raise RendezvousError(
            f"the ranks cannot connect to each other within {timeout_s:.0f} s{_advice(attempt)}"
        ) from None
    except (RuntimeError, ValueError) as error:
        raise RendezvousError(
            f"the ranks cannot connect to each other: {first_line(error)}{_advice(attempt)}"
        ) from None
    client.store.set_timeout(timedelta(seconds=spec.start_timeout_s))  # for communicators that are made later
    group = dist.group.WORLD
    assert group is not None
    return group


def background_group(rendezvous: Rendezvous, key: str, timeout_s: float) -> dist.ProcessGroup:
    """All ranks, connected once more, for what goes on beside training. All ranks call this.

    Args:
        rendezvous: all ranks.
        key: what they wait for each other under, used once.
        timeout_s: of connecting, once all ranks are there.

    Raises:
        RendezvousError: a rank is lost, or cannot be reached.

    """
    rendezvous.all_gather(key, "")  # from here on it takes no longer than connecting may
    groups: list[object] = []
    # Nothing can break off the connecting itself: a thread that waits for a lost rank is left behind.
    connecting = WaitingThread()
    rendezvous.interruptible.append(connecting)
    try:
        rendezvous.texts.check()  # who was lost before has interrupted nothing here
        connecting.call(lambda: groups.append(dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))))
    except RendezvousError:
        raise
    except (RuntimeError, ValueError, ConnectionError) as error:  # torch finds the name taken by a group left behind
        raise RendezvousError(f"the ranks cannot connect to each other: {first_line(error)}") from ConnectionError()
    connecting.close()
    (group,) = groups
    assert isinstance(group, dist.ProcessGroup), "all ranks are in it"
    # Its name in older versions of torch is the second one.
    set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # noqa: SLF001
    set_timeout(timedelta(seconds=BACKGROUND_TIMEOUT_S), group)
    return group


def connecting_s(spec: CommunicationSpec) -> float:
    """How long ranks that are all there may take to connect."""
    return 2 * spec.heartbeat_s + CONNECTING_S


def _advice(attempt: Attempt) -> str:
    listens = attempt.own.listens
    return "" if listens is None else f"; Gloo listens at {listens} here, {INTERFACE} may name another interface"


def check_reachable(ranks: Sequence[Presence]) -> None:
    """Raise `RendezvousError` where ranks run on several machines, and Gloo listens where others cannot reach it."""
    if len({presence.address for presence in ranks}) == 1:
        return
    hidden = [
        node_title(presence.names, rank)
        for rank, presence in enumerate(ranks)
        if presence.listens is not None and ip_address(presence.listens.split("%")[0]).is_loopback
    ]
    if hidden:
        raise RendezvousError(
            f"{', '.join(hidden)}: the host name resolves to a loopback address there, which ranks on other machines "
            f"cannot reach; set {INTERFACE} to the network interface, on this machine one of {', '.join(interfaces())}"
        )


SHOWN_CHARACTERS, SHOWN_BEFORE = 80, 20
"""Of two long texts so many characters are shown, and so many of these before the first difference."""


def _about_difference(one: str, other: str) -> tuple[str, str]:
    """Both texts; of long ones the neighbourhood of the first difference."""
    if max(len(one), len(other)) <= SHOWN_CHARACTERS:
        return one, other
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    begin = max(alike - SHOWN_BEFORE, 0)

    def cut(text: str) -> str:
        end = begin + SHOWN_CHARACTERS
        return ("..." if begin else "") + text[begin:end] + ("..." if end < len(text) else "")

    return cut(one), cut(other)
