"""The ranks of a job find each other in the store.

torchrun keeps one store for all attempts of a job, so it still holds the keys of attempts that have failed. Counting
attempts would not help: with rendezvous c10d the agents of different machines count differently. So rank 0 opens an
attempt under a new random name, the other ranks answer to that name, and it prefixes all later keys.
"""

import contextlib
import json
import secrets
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from skippipe.errors import SchedulerError
from skippipe.ranks import node_title, shown_names
from skippipe.runtime.links.addresses import listening_address
from skippipe.train.connect.activity import presence_key, ranks_key
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.seal import Seal
from skippipe.train.connect.store import MOST_PAUSE_S, RendezvousError, StoreClient, reached

REPORT_S = 3.0
"""How long a rank that fails waits, at most, for the others to read why: the store may end with it."""


class PeerStoppedError(SchedulerError):
    """Another rank was asked to stop before training began, and has ended."""


class LeftBehindError(SchedulerError):
    """The other ranks have gone on without this one, whose end does not concern them."""


class Presence(NamedTuple):
    """What a rank publishes about itself at the rendezvous."""

    token: str
    """`RankSpec.process_token`, a point, and a random text: new each time that a process comes"""
    attempt: str | None
    """the attempt that it takes part in"""
    names: tuple[str, ...]
    """of the nodes that it serves"""
    address: str
    """from which it reaches the rendezvous"""
    listens: str | None
    """where Gloo listens for the other ranks; None: at an interface that the user has named"""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job: its ranks, and the texts that they exchange."""

    client: StoreClient
    rank: int
    name: str
    """prefix of all keys; after losses with the generation that these ranks are"""
    ranks: tuple[Presence, ...]
    check: Callable[[], None] = lambda: None
    """called while a text is waited for; raises `RendezvousError` if it will not come"""

    @property
    def names_by_rank(self) -> list[tuple[str, ...]]:
        """Names of the nodes that each rank serves."""
        return [presence.names for presence in self.ranks]

    @property
    def opened(self) -> str:
        """The name under which rank 0 has opened it."""
        return self.name.partition("/")[0]

    def publish(self, key: str, text: str) -> None:
        """Publish a text for all ranks.

        Raises:
            RendezvousError: the store is gone.

        """
        with reached():
            self.client.set(f"{self.name}/{key}", text)

    def receive(self, key: str, timeout_s: float, who: str) -> str:
        """Wait for a text.

        Raises:
            RendezvousError: it takes more than `timeout_s` seconds, or a rank has ended in the meantime.
            PeerStoppedError: a rank was asked to stop.

        """
        with reached():
            for text in self.client.wait(f"{self.name}/{key}", time.monotonic() + timeout_s):
                if text is not None:
                    return text
                try:
                    check_no_rank_left(self.client, self.own, self.opened)
                    self.check()
                except SchedulerError:
                    # What all ranks could read before one left counts, so that all end for the same reason.
                    published = self.client.get(f"{self.name}/{key}")
                    if published is None:
                        raise
                    return published
                opened = self.client.get("attempt")
                if opened is not None and opened != self.opened:
                    raise RendezvousError("rank 0 was restarted, but this rank was not")
        raise RendezvousError(f"timed out after {timeout_s:g} s waiting for {who} ({key.split('/', maxsplit=1)[0]})")

    def seal(self, secret: bytes) -> None:
        """Seal all texts from here on by a secret that the ranks of this attempt share."""
        self.client.seal = Seal(secret, self.name)

    @property
    def own(self) -> Presence:
        """This rank."""
        return self.ranks[self.rank]

    def announce_end(self, error: BaseException, report_s: float) -> None:
        """Tell the other ranks that this one has ended, and why; wait up to `report_s` seconds for them to read it."""
        message = f"{node_title(self.own.names, self.rank)} has ended: {reason_of(error)}"
        stopped = not isinstance(error, Exception)
        announce_end(self.client, self.own, message, self.ranks, stopped=stopped, report_s=report_s)


def find_ranks(
    client: StoreClient, rank_spec: RankSpec, nodes: Sequence[str], timeout_s: float, deadline: float
) -> Attempt:
    """Wait for all ranks of this attempt.

    Args:
        client: the store.
        rank_spec: this rank.
        nodes: names of the plan's nodes, for messages.
        timeout_s: seconds within which all ranks have to join, for messages.
        deadline: when they are over, by the monotonic clock.

    Raises:
        RendezvousError: a rank has not joined; all that have name it, and the nodes that no rank serves.
        PeerStoppedError: a rank was asked to stop.

    """
    with reached():
        return _find_ranks(client, rank_spec, nodes, timeout_s, deadline)


def _find_ranks(
    client: StoreClient, rank_spec: RankSpec, nodes: Sequence[str], timeout_s: float, deadline: float
) -> Attempt:
    own = own_presence(rank_spec)
    if rank_spec.rank == 0:
        own = own._replace(attempt=own.token)
    client.set(presence_key(rank_spec.rank), json.dumps(own))
    if own.attempt is not None:
        client.set("attempt", own.attempt)
    try:
        while True:
            opened = client.get("attempt")
            if opened is not None and own.attempt != opened:
                own = own._replace(attempt=opened)
                client.set(presence_key(rank_spec.rank), json.dumps(own))
            attempt = _complete(client, rank_spec, own)
            if attempt is not None:
                return attempt
            check_no_rank_left(client, own)
            if time.monotonic() > deadline:
                raise _absent_error(client, rank_spec, nodes, timeout_s, own)
            time.sleep(MOST_PAUSE_S)
    except (KeyboardInterrupt, SystemExit) as error:
        message = f"{node_title(rank_spec.names, rank_spec.rank)} has ended: {reason_of(error)}"
        announce_end(client, own, message, presences(client, rank_spec.world), stopped=True, report_s=REPORT_S)
        raise


def _complete(client: StoreClient, rank_spec: RankSpec, own: Presence) -> Attempt | None:
    """The attempt, once rank 0, which may be this one, has found all ranks in it."""
    if own.attempt is None:
        return None
    if rank_spec.rank == 0:
        present = presences(client, rank_spec.world)
        if all(presence is not None and presence.attempt == own.attempt for presence in present):
            client.set(ranks_key(own.attempt), json.dumps(present))
    text = client.get(ranks_key(own.attempt))
    ranks = () if text is None else tuple(map(presence_of, json.loads(text)))
    # A failed attempt, which may still be the open one when this rank starts, does not include it.
    if ranks and ranks[rank_spec.rank].token == own.token:
        return Attempt(client, rank_spec.rank, own.attempt, ranks)
    return None


def presences(client: StoreClient, world: int) -> list[Presence | None]:
    """What ranks have published about themselves, by rank; possibly in a failed attempt."""
    texts = (client.get(presence_key(rank)) for rank in range(world))
    return [None if text is None else presence_of(json.loads(text)) for text in texts]


def own_presence(rank_spec: RankSpec, attempt: str | None = None) -> Presence:
    """What this process publishes about itself."""
    token = f"{rank_spec.process_token}.{secrets.token_hex(8)}"
    return Presence(token, attempt, rank_spec.names, _address(rank_spec), listening_address())


def presence_of(values: Sequence[Any]) -> Presence:
    """What a rank has published about itself, from JSON."""
    token, attempt, names, address, listens = values
    return Presence(token, attempt, tuple(names), address, listens)


def _absent_error(
    client: StoreClient, rank_spec: RankSpec, nodes: Sequence[str], timeout_s: float, own: Presence
) -> RendezvousError:
    """Say which ranks have not joined, here and to all that have."""
    present = presences(client, rank_spec.world)
    joined = {
        rank: presence
        for rank, presence in enumerate(present)
        if presence is not None and (rank == rank_spec.rank or presence.attempt == own.attempt)
    }
    # If all seem to be there, rank 0 is that of a failed attempt.
    absent = [rank for rank in range(rank_spec.world) if rank not in joined] or [0]
    served = {name for rank, presence in joined.items() if rank not in absent for name in presence.names}
    unserved = [name for name in nodes if name not in served]
    message = f"timed out after {timeout_s:g} s waiting for rank {', rank '.join(map(str, absent))}"
    if unserved:
        message += f"; nodes of the plan that no rank serves yet: {shown_names(unserved)}"
    announce_end(client, own, message, list(joined.values()), report_s=REPORT_S)
    return RendezvousError(message)


def announce_end(  # noqa: PLR0913 - by keyword
    client: StoreClient,
    own: Presence,
    message: str,
    others: Sequence[Presence | None],
    *,
    stopped: bool = False,
    report_s: float = 0.0,
) -> None:
    """Tell `others` why this rank ends, and wait up to `report_s` seconds for them to read it.

    The first rank that ends is the cause: one that has received such a message sends none itself.
    """
    tokens = [presence.token for presence in others if presence is not None and presence.token != own.token]
    with contextlib.suppress(RuntimeError, OSError):  # the store is gone, and no rank can read it
        left = client.get("left")
        if left is not None and own.token in json.loads(left)["tokens"]:
            client.set(f"read/{own.token}", "")
            return
        told = {"message": message, "tokens": tokens, "from": own.token, "attempt": own.attempt, "stopped": stopped}
        client.set("left", json.dumps(told))
        deadline = time.monotonic() + report_s
        for token in tokens:
            for _ in client.wait(f"read/{token}", deadline):
                pass


def check_no_rank_left(client: StoreClient, own: Presence, attempt: str | None = None) -> None:
    """Raise the reason if another rank has announced its end; `attempt` is the one that both of them take part in."""
    text = client.get("left")
    if text is None:
        return
    left = json.loads(text)
    # One that has joined since the start is not on the list.
    is_newcomer = attempt is not None and left["attempt"] == attempt and left["from"] != own.token
    if own.token in left["tokens"] or is_newcomer:
        client.set(f"read/{own.token}", "")
        # As if a connection were lost: the rank that failed first explains the rest.
        raise (PeerStoppedError if left["stopped"] else RendezvousError)(left["message"]) from ConnectionError()


def reason_of(error: BaseException) -> str:
    """Why a rank ends, in a line; of a defect of ours the last line of the traceback."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "it was asked to stop"
    if isinstance(error, SchedulerError | OSError):
        return (str(error) or type(error).__name__).splitlines()[0]
    return traceback.format_exception_only(error)[-1].strip()


def _address(rank_spec: RankSpec) -> str:
    """The address from which this machine reaches the rendezvous: equal for ranks of one machine."""
    if rank_spec.launcher is Launcher.LOCAL:
        return rank_spec.host
    for family, kind, protocol, _, target in socket.getaddrinfo(rank_spec.host, rank_spec.port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
            probe.connect(target)  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    return ""
