"""How the ranks of a job meet, who serves which node, and what they must agree on before the first step.

All of it goes through the store of the rendezvous (`skippipe.train.rendezvous`): text under keys, waited for with a
limit.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from itertools import islice, takewhile
from typing import Protocol

import torch.distributed as dist

from skippipe.errors import ActionError, InputError
from skippipe.ranks import node_title
from skippipe.runtime.links.addresses import INTERFACE, interfaces
from skippipe.runtime.links.gloo import first_line
from skippipe.train.config import RuntimeConfig
from skippipe.train.place import Place
from skippipe.train.rendezvous import REPORT_S, Attempt, MeetingError, Presence, gather, open_store

SHOWN_DIFFERENCES = 3
"""So many of the facts that differ between ranks stand in the message."""


class Store(Protocol):
    """What ranks that have met tell each other."""

    def publish(self, key: str, text: str) -> None:
        """Give all ranks a text."""

    def receive(self, key: str, timeout_s: float, who: str) -> str:
        """Wait for a text of a rank, which messages call `who`."""


@dataclass(frozen=True)
class Team:
    """The ranks of a job, met. A key of what they tell each other is used once."""

    place: Place
    names_by_rank: list[tuple[str, ...]]
    store: Store
    """what is told, under keys"""
    group: dist.ProcessGroup
    """all ranks, for messages and for what is gathered between iterations"""
    timeout_s: float

    @property
    def rank(self) -> int:
        """This rank."""
        return self.place.rank

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.place.world

    def title(self, rank: int) -> str:
        """How messages call a rank: by its nodes."""
        return node_title(self.names_by_rank[rank], rank)

    @contextlib.contextmanager
    def transferring(self, what: str, ranks: Iterable[int]) -> Iterator[None]:
        """Within: transfers over a link that are no action of a program, between `ranks`.

        Raises:
            ActionError: one of them failed or took too long; the message names `what` they are for, and the others.

        """
        try:
            yield
        except OSError as error:
            others = ", ".join(self.title(rank) for rank in ranks if rank != self.rank)
            raise ActionError(f"{what}, with {others}: {error}") from error

    def tell(self, key: str, text: str) -> None:
        """Give all ranks a text of this one's."""
        self.store.publish(f"{key}/{self.rank}", text)

    def hear(self, key: str, rank: int, longer_s: float = 0.0) -> str:
        """Wait for a text of another rank's, `longer_s` more than usual where it takes that long to make."""
        return self.store.receive(f"{key}/{rank}", self.timeout_s + longer_s, self.title(rank))

    def exchange(self, key: str, text: str, longer_s: float = 0.0) -> list[str]:
        """Tell one's own text and hear everybody's, by rank, `longer_s` more than usual waited for each."""
        self.tell(key, text)
        return [self.hear(key, rank, longer_s) for rank in range(self.world)]

    def share(self, key: str, make: Callable[[], str], longer_s: float = 0.0) -> str:
        """Have rank 0 make a text, which may take `longer_s`, and give it to all."""
        if self.rank == 0:
            self.tell(key, make())
        return self.hear(key, 0, longer_s)

    def agree(self, key: str, facts: Mapping[str, str]) -> dict[str, str]:
        """Give all facts that any rank states; a fact that a rank does not state is none of its business.

        Raises:
            InputError: ranks state facts otherwise than one before them; the message names fact, values and nodes.

        """
        stated: list[dict[str, str]] = [json.loads(text) for text in self.exchange(key, json.dumps(dict(facts)))]
        first: dict[str, int] = {}
        differing: dict[str, int] = {}
        for rank, theirs in enumerate(stated):
            for what, value in theirs.items():
                if stated[first.setdefault(what, rank)][what] != value:
                    differing.setdefault(what, rank)
        if differing:
            shown: list[str] = []
            for what, rank in islice(differing.items(), SHOWN_DIFFERENCES):
                expected, got = _about_difference(stated[first[what]][what], stated[rank][what])
                shown.append(
                    f"{what}: expected {expected} as on {self.title(first[what])}, got {got} on {self.title(rank)}"
                )
            raise InputError("; ".join(shown))
        return {what: stated[rank][what] for what, rank in first.items()}


@contextlib.contextmanager
def meet(place: Place, config: RuntimeConfig, nodes: Sequence[str] = ()) -> Iterator[Team]:
    """Meet the other ranks, and part from them at the end.

    Args:
        place: this rank.
        config: the limits.
        nodes: names of the plan's nodes, for messages.

    Raises:
        MeetingError: the rendezvous cannot be reached or served, or a rank did not come in time.
        StoppedElsewhereError: another rank was asked to stop before all had met.

    """
    deadline = time.monotonic() + config.start_timeout_s
    with contextlib.closing(open_store(place, config.start_timeout_s)) as client:
        attempt = gather(client, place, nodes, config.start_timeout_s, deadline)
        try:
            check_reachable(attempt.ranks)
            _connect(place, config, attempt, max(deadline - time.monotonic(), LEAST_CONNECTING_S))
            group = dist.group.WORLD
            assert group is not None
            team = Team(place, attempt.names_by_rank, attempt, group, config.start_timeout_s)
            yield team
            _part(team)
        except BaseException as error:
            # A lost connection is seen by whoever waits for it; and the supervisor of a local run tells the others.
            silent = place.local or isinstance(error, ActionError)
            attempt.leave(error, 0.0 if silent else REPORT_S)
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _part(team: Team) -> None:
    """Stay until all ranks have come to the end, and rank 0, which may serve the store, until nobody needs it."""
    team.exchange("end", "")
    with contextlib.suppress(MeetingError):  # where somebody else serves it, that one may have gone before
        team.tell("gone", "")
        if team.rank == 0:
            for rank in range(team.world):
                team.hear("gone", rank)


LEAST_CONNECTING_S = 5.0
"""What connecting to the other ranks may take, however late the last one came."""


def _connect(place: Place, config: RuntimeConfig, attempt: Attempt, timeout_s: float) -> None:
    """Make the process group; in the thread of the store, since Gloo waits for other ranks without heed of signals."""

    def connect() -> None:
        dist.init_process_group(
            config.backend,
            store=dist.PrefixStore(f"{attempt.name}/group", attempt.client.store),  # type: ignore[attr-defined]
            rank=place.rank,
            world_size=place.world,
            timeout=timedelta(seconds=config.timeout_s),
        )

    try:
        attempt.client.call(connect, timeout_s)
    except TimeoutError:
        raise MeetingError(
            f"the ranks cannot connect to each other within {timeout_s:.0f} s{_advice(attempt)}"
        ) from None
    except (RuntimeError, ValueError) as error:
        raise MeetingError(f"the ranks cannot connect to each other: {first_line(error)}{_advice(attempt)}") from None


def _advice(attempt: Attempt) -> str:
    listens = attempt.own.listens
    return "" if listens is None else f"; Gloo listens at {listens} here, {INTERFACE} may name another interface"


def check_reachable(ranks: Sequence[Presence]) -> None:
    """Raise `MeetingError` where ranks stand on several machines, and Gloo listens where others cannot reach it."""
    if len({presence.address for presence in ranks}) == 1:
        return
    hidden = [
        node_title(presence.names, rank)
        for rank, presence in enumerate(ranks)
        if presence.listens is not None and ip_address(presence.listens.split("%")[0]).is_loopback
    ]
    if hidden:
        raise MeetingError(
            f"{', '.join(hidden)}: the host name belongs to a loopback address there, where ranks on other machines "
            f"cannot connect; {INTERFACE} has to name the network interface, on this machine one of "
            f"{', '.join(interfaces())}"
        )


SHOWN_CHARACTERS, SHOWN_BEFORE = 80, 20
"""Of two long texts so much is shown, and so much of it before where they differ."""


def _about_difference(one: str, other: str) -> tuple[str, str]:
    """Both texts; of long ones what stands where they differ."""
    if max(len(one), len(other)) <= SHOWN_CHARACTERS:
        return one, other
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    begin = max(alike - SHOWN_BEFORE, 0)

    def cut(text: str) -> str:
        end = begin + SHOWN_CHARACTERS
        return ("..." if begin else "") + text[begin:end] + ("..." if end < len(text) else "")

    return cut(one), cut(other)
