"""Signs of life: a thread of every rank writes a counter to the store, and reads those of the others.

It needs the interpreter for microseconds only, and torch lets go of it while it computes or waits. When a rank is lost,
the thread breaks off whatever the rank waits for, so that none waits for a message that never comes.

Ranks are called members here, by their number at the start of the job: that number stays when others are lost.
"""

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from skippipe.ranks import node_title
from skippipe.train.connect.activity import beat_key, excluded_key, failure_key, ranks_that_died
from skippipe.train.connect.store import RendezvousError, StoreClient
from skippipe.train.membership.door import Door

BEATS_PER_HEARTBEAT = 4
MOST_LOOK_PAUSE_S = 0.25
"""Between two looks at the store: a death that it tells of is noticed that soon."""


def call_key(attempt: str, generation: int) -> str:
    """Key under which a member calls all others to a generation."""
    return f"{attempt}/call/{generation}"


class Silence:
    """For how long the members have shown no sign of life, as far as this one was awake to see them. Pure."""

    def __init__(self, members: Iterable[int], limit_s: float, pause_s: float) -> None:
        """Consider those lost that are silent for `limit_s`; looks are `pause_s` apart.

        Where this process was held up between two looks, the others may have been as well: such a pause counts as two.
        """
        self._limit_s, self._most_s = limit_s, 2 * pause_s
        self._beats: dict[int, str] = {}
        self._silent_s = dict.fromkeys(members, 0.0)

    def observe(self, beats: Mapping[int, str], elapsed_s: float) -> frozenset[int]:
        """Take the counters that a look has found, `elapsed_s` after the one before; gives the members lost so far."""
        for member in self._silent_s:
            beat = beats.get(member)
            if beat is not None and beat != self._beats.get(member):
                self._beats[member] = beat
                self._silent_s[member] = 0.0
            else:
                self._silent_s[member] += min(elapsed_s, self._most_s)
        return frozenset(member for member, silent_s in self._silent_s.items() if silent_s >= self._limit_s)


@dataclass(frozen=True)
class Loss:
    """Why a generation of a job cannot go on."""

    lost: frozenset[int]
    """members known to be lost; empty: another member calls all to regroup"""
    reason: str
    stack: str
    """of the main thread when it was interrupted"""
    noticed_at: float = field(default_factory=time.monotonic)


class Monitor:
    """Watches the members of a job in a thread of its own."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        client: StoreClient,
        *,
        attempt: str,
        own: int,
        heartbeat_s: float,
        names: Callable[[int], Sequence[str]],
        newcomers_from: int | None = None,
    ) -> None:
        """Begin to show signs of life.

        Args:
            client: a connection to the store that nobody else uses.
            attempt: its name, which all of its keys begin with.
            own: this member.
            heartbeat_s: members that are silent for two heartbeats are lost.
            names: gives the nodes that a member serves.
            newcomers_from: the first number of those that ask to join; None: nobody may.

        """
        self._client, self._own, self._names = client, own, names
        self.attempt = attempt
        self._limit_s = 2 * heartbeat_s
        self._pause_s = min(heartbeat_s / BEATS_PER_HEARTBEAT, MOST_LOOK_PAUSE_S)
        self._door = None
        if newcomers_from is not None:
            self._door = Door(client, attempt, newcomers_from, self._limit_s, self._pause_s)
        self._beat = 0
        self._main = threading.get_ident()
        self._closed = threading.Event()
        self._noticed = threading.Event()
        self._lock = threading.Lock()
        self._generation = 0
        self._members: frozenset[int] = frozenset()
        self._silence = Silence((), self._limit_s, self._pause_s)
        self._interrupt: Callable[[], None] = _nothing
        self._loss: Loss | None = None
        self._show_life()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    @property
    def loss(self) -> Loss | None:
        """What has happened in the current generation."""
        return self._loss

    def watch(self, generation: int, members: Collection[int], interrupt: Callable[[], None]) -> None:
        """Watch the members of a generation from here on; `interrupt` breaks off what the main thread waits for."""
        with self._lock:
            self._generation, self._members = generation, frozenset(members)
            self._silence = Silence(self._members - {self._own}, self._limit_s, self._pause_s)
            self._interrupt, self._loss = interrupt, None
            self._noticed.clear()
            if self._door is not None:
                self._door.close(members)

    def unwatch(self) -> None:
        """Only show signs of life from here on."""
        self.watch(self._generation, (), _nothing)

    def await_loss(self, timeout_s: float) -> Loss | None:
        """Wait until a loss is noticed."""
        self._noticed.wait(timeout_s)
        return self._loss

    def check(self) -> None:
        """Raise `RendezvousError` once a loss has been noticed."""
        if self._loss is not None:
            raise RendezvousError(self._loss.reason) from ConnectionError()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(self._limit_s)
        self._client.close()

    def lost_among(self, members: Collection[int]) -> frozenset[int]:
        """Those of some members that are known to be lost by now."""
        loss = self._loss
        return frozenset(members) & (frozenset() if loss is None else loss.lost)

    def exclude(self, member: int, reason: str) -> Loss:
        """Take a member for lost that lives, and have all others do so; only one at a time may call this."""
        excluded = self.excluded(self._client) | {member: reason}
        self._client.set(excluded_key(self.attempt), json.dumps(excluded))
        with self._lock:
            self._notice(frozenset({member}), reason)
            assert self._loss is not None, "it has just been noticed"
            return self._loss

    def excluded(self, client: StoreClient) -> dict[int, str]:
        """Members that are taken for lost although they live, and why; read through any client of the store."""
        text = client.get(excluded_key(self.attempt))
        return {} if text is None else {int(member): reason for member, reason in json.loads(text).items()}

    @property
    def knocking(self) -> tuple[int, ...]:
        """Numbers of those that are to be admitted; only the lowest member looks for them."""
        return () if self._door is None else self._door.ready

    def _run(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(self._pause_s):
            now = time.monotonic()
            try:
                self._show_life()
                with self._lock:
                    self._look(now - before)
            except (RuntimeError, TimeoutError) as error:
                if not self._closed.is_set():
                    with self._lock:
                        self._notice(
                            frozenset(), f"the membership service is gone ({str(error) or 'it does not answer'})"
                        )
                return
            before = now

    def _show_life(self) -> None:
        self._beat += 1
        self._client.set(beat_key(self.attempt, self._own), str(self._beat))

    def _look(self, elapsed_s: float) -> None:
        others = sorted(self._members - {self._own})
        if self._door is not None and self._own == min(self._members, default=None):
            living = self._members - self.lost_among(self._members)
            self._door.look([name for member in living for name in self._names(member)], elapsed_s)
        if not others:
            return
        beats = self._client.get_all([beat_key(self.attempt, member) for member in others])
        silent = self._silence.observe(dict(zip(others, beats, strict=True)), elapsed_s)
        dead = ranks_that_died(self._client, self.attempt) & self._members
        excluded = {member: reason for member, reason in self.excluded(self._client).items() if member in self._members}
        if dead or silent or excluded:
            died = [f"{node_title(self._names(member), member)} {self._end_of(member)}" for member in sorted(dead)]
            quiet = [
                f"{node_title(self._names(member), member)} has shown no sign of life for {self._limit_s:g} s"
                for member in sorted(silent - dead - excluded.keys())
            ]
            self._notice(frozenset(silent | dead | excluded.keys()), "; ".join([*died, *excluded.values(), *quiet]))
        elif self._client.get(call_key(self.attempt, self._generation + 1)) is not None:
            self._notice(frozenset(), "another rank has lost its connections")

    def _end_of(self, member: int) -> str:
        reason = self._client.get(failure_key(self.attempt, member))
        return "has died" if reason is None else f"has failed: {reason}"

    def _notice(self, lost: frozenset[int], reason: str) -> None:
        """Take note of a loss; the first one of a generation interrupts the main thread."""
        first = self._loss is None
        if first or lost - self._loss.lost:  # type: ignore[union-attr]
            before = frozenset() if self._loss is None else self._loss.lost
            stack = self._stack() if first else self._loss.stack  # type: ignore[union-attr]
            noticed_at = time.monotonic() if first else self._loss.noticed_at  # type: ignore[union-attr]
            self._loss = Loss(before | lost, reason, stack, noticed_at)
        self._noticed.set()
        if first:
            self._interrupt()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - documented, for debuggers
        return "" if frame is None else "".join(traceback.format_stack(frame))


def _nothing() -> None:
    """Interrupt nobody."""
