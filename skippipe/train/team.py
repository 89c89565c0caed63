"""How the ranks of a job meet, who serves which node, and what they must agree on before the first step.

All of it goes through the store of the rendezvous: text under keys, waited for with a limit.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from skippipe.errors import ActionError, InputError, SchedulerError
from skippipe.ranks import node_title
from skippipe.runtime.links.gloo import first_line
from skippipe.train.config import RuntimeConfig
from skippipe.train.place import Place


class Store(Protocol):
    """What is used of the store that torch makes for a rendezvous."""

    def set(self, key: str, value: str) -> None:
        """Keep a text."""

    def get(self, key: str) -> bytes:
        """Give a text that is there."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until the keys are there."""


class MeetingError(SchedulerError, RuntimeError):
    """The ranks of a job did not find each other."""


@dataclass(frozen=True)
class Team:
    """The ranks of a job, met. A key of what they tell each other is used once."""

    place: Place
    names_by_rank: list[tuple[str, ...]]
    store: Store
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
        self.store.set(f"{key}/{self.rank}", text)

    def hear(self, key: str, rank: int, longer_s: float = 0.0) -> str:
        """Wait for a text of another rank's, `longer_s` more than usual where it takes that long to make."""
        return _read(self.store, f"{key}/{rank}", self.timeout_s + longer_s, self.title(rank))

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
            InputError: a rank states a fact otherwise than one before it; the message names both nodes.

        """
        stated: list[dict[str, str]] = [json.loads(text) for text in self.exchange(key, json.dumps(dict(facts)))]
        first: dict[str, int] = {}
        known: dict[str, str] = {}
        for rank, theirs in enumerate(stated):
            for what, value in theirs.items():
                before = first.setdefault(what, rank)
                known.setdefault(what, value)
                if stated[before][what] != value:
                    raise InputError(
                        f"{self.title(rank)} has another {what} ({_short(value)}) than "
                        f"{self.title(before)} ({_short(stated[before][what])}), the same is expected everywhere"
                    )
        return known


@contextlib.contextmanager
def meet(place: Place, config: RuntimeConfig) -> Iterator[Team]:
    """Meet the other ranks, and part from them at the end.

    Raises:
        MeetingError: the rendezvous cannot be reached or served, or a rank did not come in time.

    """
    store = _open_store(place, config.start_timeout_s)
    store.set(f"names/{place.rank}", json.dumps(place.names))
    stated = [_read(store, f"names/{rank}", config.start_timeout_s, f"rank {rank}") for rank in range(place.world)]
    names = [tuple(json.loads(text)) for text in stated]
    try:
        dist.init_process_group(
            config.backend,
            store=_prefixed(store),
            rank=place.rank,
            world_size=place.world,
            timeout=timedelta(seconds=config.timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        raise MeetingError(f"the ranks cannot connect to each other: {first_line(error)}") from None
    group = dist.group.WORLD
    assert group is not None
    team = Team(place, names, store, group, config.start_timeout_s)
    try:
        yield team
        # Rank 0 may serve the store: it stays until nobody needs it.
        team.exchange("end", "")
        team.tell("gone", "")
        if place.rank == 0:
            for rank in range(place.world):
                team.hear("gone", rank)
    finally:
        dist.destroy_process_group()


def _prefixed(store: Any) -> Any:
    """Give the process group keys of its own."""
    return dist.PrefixStore("group", store)  # type: ignore[attr-defined]


def _open_store(place: Place, timeout_s: float) -> Store:
    where, limit = f"{place.host}:{place.port}", timedelta(seconds=timeout_s)
    try:
        if place.local:
            served: Store = dist.TCPStore(  # type: ignore[attr-defined]
                place.host,
                place.port,
                is_master=place.rank == 0,
                timeout=limit,
                wait_for_workers=False,
                master_listen_fd=place.listening,
            )
            return served
        store, _, _ = next(iter(rendezvous("env://", place.rank, place.world, timeout=limit)))
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise MeetingError(f"the rendezvous cannot be served at {where}: the port is in use") from None
        raise MeetingError(
            f"the rendezvous at {where} cannot be reached within {timeout_s:g} s: {first_line(error)}"
        ) from None
    found: Store = store
    return found


def _read(store: Store, key: str, timeout_s: float, who: str) -> str:
    try:
        store.wait([key], timedelta(seconds=timeout_s))
        return store.get(key).decode()
    except RuntimeError as error:
        if "imeout" in str(error) or "imed out" in str(error):
            raise MeetingError(
                f"{who} did not come within {timeout_s:g} s (waiting for its {key.split('/', maxsplit=1)[0]})"
            ) from None
        raise MeetingError(f"the rendezvous is gone: {first_line(error)}") from None


def _short(value: str) -> str:
    return value if len(value) <= 80 else f"{value[:77]}..."
