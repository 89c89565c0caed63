"""Those that ask to join a job that is under way: what they say of themselves, and which of them are to be admitted.

One that asks takes a number, shows signs of life under it like any member, and publishes a knock. The monitor of the
lowest member looks at the door now and then; whom it finds ready, all members admit between two iterations.
"""

import contextlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from skippipe.ranks import shown_names
from skippipe.train.connect.activity import beat_key, knocks_key
from skippipe.train.connect.attempt import Presence, presence_of
from skippipe.train.connect.seal import ForgedTextError
from skippipe.train.connect.store import StoreClient

MOST_KNOCKS = 64
"""Knocks that are considered at one time: the number of those that ask is nobody's proof of anything."""


class Knock(NamedTuple):
    """What one that asks to join says of itself."""

    presence: Presence
    facts: str
    """of its nodes, for whoever plans; see `skippipe.train.prepare.newcomers`"""

    def to_json(self) -> str:
        """As text for the members."""
        return json.dumps(self)

    @staticmethod
    def from_json(text: str) -> "Knock":
        """Read what it has written."""
        presence, facts = json.loads(text)
        return Knock(presence_of(presence), facts)


def knock_key(attempt: str, number: int) -> str:
    """Key of a knock."""
    return f"{attempt}/knock/{number}"


def refusal_key(attempt: str, number: int) -> str:
    """Key under which the members say why they do not admit one that has knocked."""
    return f"{attempt}/refused/{number}"


@dataclass
class _Caller:
    names: frozenset[str]
    beat: str
    beats: int = 0
    """seen since it has knocked"""
    silent_s: float = 0.0
    conflict_s: float = 0.0
    """for how long a living member has had one of its names"""


class Looked(NamedTuple):
    """What a look at the door has found, by number."""

    ready: tuple[int, ...]
    """to be admitted"""
    refused: Mapping[int, str]
    """names that living members have"""


@dataclass
class Callers:
    """Decides on those that have knocked. Pure.

    One that is silent for `limit_s` is gone. A node that comes back at once may knock before its old process is known
    to be lost: only a name that a living member keeps for longer is refused.
    """

    limit_s: float
    most_s: float
    """that a look counts at most: this process may have been held up, and the others as well"""
    _callers: dict[int, _Caller] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """numbers that need no look any more"""

    def observe(
        self,
        knocks: Mapping[int, Collection[str]],
        beats: Mapping[int, str | None],
        taken: Collection[str],
        elapsed_s: float,
    ) -> Looked:
        """Take what a look has found, `elapsed_s` after the one before.

        Args:
            knocks: names by number, of those that have not been admitted.
            beats: the counter by which each of them shows that it lives.
            taken: names that members have.
            elapsed_s: seconds.

        """
        passed_s = min(elapsed_s, self.most_s)
        ready: list[int] = []
        refused: dict[int, str] = {}
        claimed = set(taken)
        for number in sorted(knocks.keys() - self.gone):
            beat = beats.get(number) or ""
            caller = self._callers.setdefault(number, _Caller(frozenset(knocks[number]), beat))
            if beat != caller.beat:
                caller.beat, caller.beats, caller.silent_s = beat, caller.beats + 1, 0.0
            else:
                caller.silent_s += passed_s
            conflict = sorted(caller.names & set(taken))
            caller.conflict_s = caller.conflict_s + passed_s if conflict else 0.0
            if caller.silent_s >= self.limit_s:
                self.gone.add(number)
            elif conflict and caller.conflict_s > self.limit_s + self.most_s:
                refused[number] = shown_names(conflict)
                self.gone.add(number)
            elif caller.beats and not caller.names & claimed:
                ready.append(number)
                claimed |= caller.names
        return Looked(tuple(ready), refused)


class Door:
    """Looks at who has knocked, through the store; in the thread of a monitor."""

    def __init__(self, client: StoreClient, attempt: str, first: int, limit_s: float, pause_s: float) -> None:
        """Look at an attempt whose newcomers are numbered from `first` on; looks are `pause_s` apart."""
        self._client, self._attempt, self._first = client, attempt, first
        self._callers = Callers(limit_s, 2 * pause_s)
        self._knocks: dict[int, Knock] = {}
        self.ready: tuple[int, ...] = ()
        """numbers of those that are to be admitted"""

    def close(self, numbers: Collection[int]) -> None:
        """Look no more for some that have been admitted: if they are lost, they ask again under another number."""
        self._callers.gone.update(numbers)
        self.ready = tuple(number for number in self.ready if number not in self._callers.gone)

    def look(self, taken: Collection[str], elapsed_s: float) -> None:
        """Look, on behalf of the current members, who have the names that are `taken`."""
        count = int(self._client.get(knocks_key(self._attempt)) or 0)
        numbers = range(self._first, self._first + count)
        waiting = [number for number in numbers if number not in self._callers.gone][:MOST_KNOCKS]
        for number in waiting:
            if number not in self._knocks:
                self._read(number)
        here = {number: self._knocks[number].presence.names for number in waiting if number in self._knocks}
        beats = {number: self._client.get(beat_key(self._attempt, number)) for number in here}
        found = self._callers.observe(here, beats, taken, elapsed_s)
        for number, names in found.refused.items():
            self._client.set(refusal_key(self._attempt, number), names)
        self.ready = found.ready

    def _read(self, number: int) -> None:
        """Read a knock; one that no holder of the secret has written is none."""
        with contextlib.suppress(ForgedTextError):
            text = self._client.get(knock_key(self._attempt, number))
            if text is not None:
                self._knocks[number] = Knock.from_json(text)
