"""The rendezvous of a job: its store, asked within limits, and the ranks of one attempt found in it.

torchrun keeps one store for all attempts of a job, so keys of a dead attempt are met there. Counting attempts would
not help: with rendezvous c10d the agents of different machines count differently. So rank 0 opens an attempt under a
new random name, the others answer to that name, and what ranks tell each other afterwards stands behind it.
"""

import contextlib
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from skippipe.errors import SchedulerError
from skippipe.ranks import node_title, shown_names
from skippipe.runtime.links.addresses import listening_address
from skippipe.runtime.links.gloo import first_line
from skippipe.train.place import Place

LEAST_PAUSE_S, MOST_PAUSE_S = 0.002, 0.1
"""Between two looks for a text that is not there yet, at first and after a while."""
REPORT_S = 3.0
"""What a rank that fails waits, at most, for the others to have read why: the store may end with it."""


class MeetingError(SchedulerError, RuntimeError):
    """The ranks of a job did not find each other, or one of them has ended while others waited for it."""


class StoppedElsewhereError(SchedulerError):
    """Another rank was asked to stop before training had begun, and has ended."""


class StoreClient:
    """A store of torch, called from a thread of its own.

    Calls of torch's store hold back signals, and some last for ever: connecting to a listener that never answers does.
    """

    def __init__(self, make: Callable[[], Any], timeout_s: float) -> None:
        """Connect by `make`; every later call may last `timeout_s`. Raises what `make` does, or `TimeoutError`."""
        self._timeout_s, self._is_stuck = timeout_s, False
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=[self._calls], daemon=True).start()
        try:
            self.store = self.call(make, timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the thread; the store is closed with its last user."""
        self._calls.put(None)

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Call in the thread of the store.

        Raises `TimeoutError` after `timeout_s`, and from then on at once, for the thread may never come back.
        """
        if self._is_stuck:
            raise TimeoutError
        future: Future[Any] = Future()
        self._calls.put((future, function))
        try:
            return future.result(timeout_s)
        except TimeoutError:
            self._is_stuck = not future.done()
            raise

    def set(self, key: str, text: str) -> None:
        """Keep a text under a key."""
        self.call(lambda: self.store.set(key, text), self._timeout_s)

    def get(self, key: str) -> str | None:
        """Give the text under a key, None where there is none."""

        def get() -> str | None:
            return self.store.get(key).decode() if self.store.check([key]) else None

        found: str | None = self.call(get, self._timeout_s)
        return found

    def wait(self, key: str, deadline: float) -> Iterator[str | None]:
        """Ask for a text again and again, less and less often, until it is there or the clock is at `deadline`."""
        pause_s = LEAST_PAUSE_S
        while True:
            # Not by the store's own `wait`, which writes a warning whenever its time is over.
            text = self.get(key)
            yield text
            if text is not None or time.monotonic() > deadline:
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _serve(calls: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    """Make calls until there are no more."""
    while (call := calls.get()) is not None:
        future, function = call
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again where the call was made
            future.set_exception(error)
        del call, future, function  # what they hold is not to stay open until the next one


def open_store(place: Place, timeout_s: float) -> StoreClient:
    """Serve or reach the store of a job.

    Raises:
        MeetingError: that cannot be done within `timeout_s` seconds; the message names the address.

    """
    where = f"{place.host}:{place.port}"
    served = place.rank == 0 and not place.served

    deadline = time.monotonic() + timeout_s

    def make() -> Any:
        _resolve(place, deadline)  # here, since a name server may let one wait for long
        if not served:
            _reach(place, deadline)
        return dist.TCPStore(  # type: ignore[attr-defined]
            place.host,
            place.port,
            is_master=served,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=place.listening,
        )

    try:
        return StoreClient(make, timeout_s)
    except SchedulerError:
        raise
    except TimeoutError:
        raise MeetingError(
            f"the rendezvous at {where} cannot be reached within {timeout_s:g} s: nothing there answers as one does"
        ) from None
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise MeetingError(f"the rendezvous cannot be served at {where}: the port is in use") from None
        raise MeetingError(
            f"the rendezvous at {where} cannot be reached within {timeout_s:g} s: {first_line(error)}"
        ) from None


def _resolve(place: Place, deadline: float) -> None:
    """Raise `MeetingError` where the host of the rendezvous is unknown; a name server may come late."""
    while True:
        try:
            socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN and time.monotonic() < deadline:
                time.sleep(MOST_PAUSE_S)
                continue
            raise MeetingError(
                f"the rendezvous at {place.host}:{place.port}: unknown host {place.host!r} ({error.strerror})"
            ) from None
        return


def _reach(place: Place, deadline: float) -> None:
    """Wait until something listens at the rendezvous; raises `OSError`.

    Torch would wait for it longer than it was told, and a thread that comes back from there while the process ends
    aborts it.
    """
    while True:
        left_s = deadline - time.monotonic()
        try:
            socket.create_connection((place.host, place.port), max(left_s, MOST_PAUSE_S)).close()
        except OSError:
            if left_s <= MOST_PAUSE_S:
                raise
            time.sleep(MOST_PAUSE_S)
            continue
        return


class Presence(NamedTuple):
    """What a rank says of itself where it meets the others."""

    token: str
    """drawn anew by every process"""
    attempt: str | None
    """the attempt that it takes part in"""
    names: tuple[str, ...]
    """of the nodes that it serves"""
    address: str
    """from which it reaches the rendezvous"""
    listens: str | None
    """where Gloo takes connections from the other ranks; None: at an interface that the user has named"""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job: its ranks, and the texts that they tell each other."""

    client: StoreClient
    rank: int
    name: str
    ranks: tuple[Presence, ...]

    @property
    def names_by_rank(self) -> list[tuple[str, ...]]:
        """Names of the nodes that each rank serves."""
        return [presence.names for presence in self.ranks]

    def publish(self, key: str, text: str) -> None:
        """Give all ranks a text.

        Raises:
            MeetingError: the store is gone.

        """
        with _reached():
            self.client.set(f"{self.name}/{key}", text)

    def receive(self, key: str, timeout_s: float, who: str) -> str:
        """Wait for a text.

        Raises:
            MeetingError: it takes more than `timeout_s` seconds, or a rank has ended in the meantime.
            StoppedElsewhereError: a rank was asked to stop.

        """
        with _reached():
            for text in self.client.wait(f"{self.name}/{key}", time.monotonic() + timeout_s):
                if text is not None:
                    return text
                check_nobody_left(self.client, self.own)
                opened = self.client.get("attempt")
                if opened is not None and opened != self.name:
                    raise MeetingError("rank 0 has started again, and this rank has not")
        raise MeetingError(f"timed out after {timeout_s:g} s waiting for {who} ({key.split('/', maxsplit=1)[0]})")

    @property
    def own(self) -> Presence:
        """This rank."""
        return self.ranks[self.rank]

    def leave(self, error: BaseException, report_s: float) -> None:
        """Tell whoever waits for this rank that it has ended, and why; give them `report_s` seconds to read it."""
        message = f"{node_title(self.own.names, self.rank)} has ended: {_reason(error)}"
        stopped = not isinstance(error, Exception)
        leave(self.client, self.own, message, self.ranks, stopped=stopped, report_s=report_s)


def gather(client: StoreClient, place: Place, nodes: Sequence[str], timeout_s: float, deadline: float) -> Attempt:
    """Find all ranks of this attempt.

    Args:
        client: the store.
        place: this rank.
        nodes: names of the plan's nodes, for messages.
        timeout_s: seconds within which all have to be there, from when this rank has begun to look for the store.
        deadline: when they are over, by the monotonic clock.

    Raises:
        MeetingError: a rank has not come; all ranks that have name it, and the nodes that nobody serves.
        StoppedElsewhereError: a rank was asked to stop.

    """
    with _reached():
        return _gather(client, place, nodes, timeout_s, deadline)


def _gather(client: StoreClient, place: Place, nodes: Sequence[str], timeout_s: float, deadline: float) -> Attempt:
    own = Presence(secrets.token_hex(8), None, place.names, _address(place), listening_address())
    if place.rank == 0:
        own = own._replace(attempt=own.token)
    client.set(f"here/{place.rank}", json.dumps(own))
    if own.attempt is not None:
        client.set("attempt", own.attempt)
    try:
        while True:
            opened = client.get("attempt")
            if opened is not None and own.attempt != opened:
                own = own._replace(attempt=opened)
                client.set(f"here/{place.rank}", json.dumps(own))
            attempt = _complete(client, place, own)
            if attempt is not None:
                return attempt
            check_nobody_left(client, own)
            if time.monotonic() > deadline:
                raise _absent(client, place, nodes, timeout_s, own)
            time.sleep(MOST_PAUSE_S)
    except (KeyboardInterrupt, SystemExit) as error:
        message = f"{node_title(place.names, place.rank)} has ended: {_reason(error)}"
        leave(client, own, message, presences(client, place.world), stopped=True, report_s=REPORT_S)
        raise


def _complete(client: StoreClient, place: Place, own: Presence) -> Attempt | None:
    """Give the attempt if rank 0, which may be this one, has found all ranks in it."""
    if own.attempt is None:
        return None
    if place.rank == 0:
        present = presences(client, place.world)
        if all(presence is not None and presence.attempt == own.attempt for presence in present):
            client.set(f"{own.attempt}/ranks", json.dumps(present))
    text = client.get(f"{own.attempt}/ranks")
    ranks = () if text is None else tuple(map(_presence, json.loads(text)))
    # A dead attempt, which may still be the one that is open when this rank comes, does not count it in.
    if ranks and ranks[place.rank].token == own.token:
        return Attempt(client, place.rank, own.attempt, ranks)
    return None


def presences(client: StoreClient, world: int) -> list[Presence | None]:
    """What ranks have said of themselves, by rank; may be of ranks of a dead attempt."""
    texts = (client.get(f"here/{rank}") for rank in range(world))
    return [None if text is None else _presence(json.loads(text)) for text in texts]


def _presence(values: Sequence[Any]) -> Presence:
    token, attempt, names, address, listens = values
    return Presence(token, attempt, tuple(names), address, listens)


def _absent(client: StoreClient, place: Place, nodes: Sequence[str], timeout_s: float, own: Presence) -> MeetingError:
    """Say which ranks have not come, here and to all that have."""
    present = presences(client, place.world)
    came = {
        rank: presence
        for rank, presence in enumerate(present)
        if presence is not None and (rank == place.rank or presence.attempt == own.attempt)
    }
    # Where all seem to be there, rank 0 is that of a dead attempt.
    absent = [rank for rank in range(place.world) if rank not in came] or [0]
    served = {name for rank, presence in came.items() if rank not in absent for name in presence.names}
    unserved = [name for name in nodes if name not in served]
    message = f"timed out after {timeout_s:g} s waiting for rank {', rank '.join(map(str, absent))}"
    if unserved:
        message += f"; nodes of the plan that no rank serves yet: {shown_names(unserved)}"
    leave(client, own, message, list(came.values()), report_s=REPORT_S)
    return MeetingError(message)


def leave(  # noqa: PLR0913 - by keyword
    client: StoreClient,
    own: Presence,
    message: str,
    others: Sequence[Presence | None],
    *,
    stopped: bool = False,
    report_s: float = 0.0,
) -> None:
    """Tell `others` why this rank ends, and give them up to `report_s` seconds to read it.

    The first one that ends explains the rest: whoever has been told so itself says nothing more.
    """
    tokens = [presence.token for presence in others if presence is not None and presence.token != own.token]
    with contextlib.suppress(RuntimeError, OSError):  # the store is gone, and nobody can read there
        left = client.get("left")
        if left is not None and own.token in json.loads(left)["tokens"]:
            client.set(f"read/{own.token}", "")
            return
        client.set("left", json.dumps({"message": message, "tokens": tokens, "stopped": stopped}))
        deadline = time.monotonic() + report_s
        for token in tokens:
            for _ in client.wait(f"read/{token}", deadline):
                pass


def check_nobody_left(client: StoreClient, own: Presence) -> None:
    """Raise what a rank has told this one that has ended."""
    text = client.get("left")
    if text is None:
        return
    left = json.loads(text)
    if own.token in left["tokens"]:
        client.set(f"read/{own.token}", "")
        # As where a connection is lost: who failed first explains the rest.
        raise (StoppedElsewhereError if left["stopped"] else MeetingError)(left["message"]) from ConnectionError()


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    """Within: calls to the store; where it fails, `MeetingError` says so."""
    try:
        yield
    except SchedulerError:
        raise
    except TimeoutError:
        raise MeetingError("the rendezvous gives no answer any more") from None
    except RuntimeError as error:
        raise MeetingError(f"the rendezvous is gone: {first_line(error)}") from None


def _reason(error: BaseException) -> str:
    """Why a rank ends, in a line."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "it was asked to stop"
    return (str(error) or type(error).__name__).splitlines()[0]


def _address(place: Place) -> str:
    """The address from which this machine reaches the rendezvous: equal for ranks of one machine."""
    if place.local:
        return place.host
    for family, kind, protocol, _, target in socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
            probe.connect(target)  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    return ""
