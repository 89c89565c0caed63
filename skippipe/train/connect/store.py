"""The store of a rendezvous, which ranks use to exchange text; every call has a time limit."""

import concurrent.futures
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from skippipe.errors import SchedulerError
from skippipe.runtime.links.gloo import first_line
from skippipe.train.connect.rank_spec import RankSpec

LEAST_PAUSE_S, MOST_PAUSE_S = 0.002, 0.1
"""Between two looks for a text that is not there yet, at first and after a while."""
LOOKS = 4
"""At a call within its time limit: a process that is suspended meanwhile misses one of them, not the answer."""


class RendezvousError(SchedulerError, RuntimeError):
    """The ranks of a job did not find each other, or one of them ended while others waited for it."""


class StoreGoneError(RendezvousError):
    """The store of a job has ended, or cannot be reached any more."""


class TextSeal(Protocol):
    """Protects texts in a store, by their keys."""

    def seal(self, key: str, text: str) -> str:
        """The text as it is stored."""

    def open(self, key: str, stored: str) -> str:
        """The text that is stored; raises `RendezvousError` if it is forged."""


class Unsealed:
    """Stores texts as they are."""

    def seal(self, _key: str, text: str) -> str:
        """The same text."""
        return text

    def open(self, _key: str, stored: str) -> str:
        """The same text."""
        return stored


class StoreClient:
    """A store of torch, called from a thread of its own.

    Calls of torch's store hold back signals, and some never return, such as connecting to a listener that is silent.
    """

    def __init__(self, make: Callable[[], Any], timeout_s: float) -> None:
        """Connect by `make`; every later call may take `timeout_s`. Raises what `make` does, or `TimeoutError`."""
        self._timeout_s, self._is_stuck = timeout_s, False
        self.seal: TextSeal = Unsealed()
        """protects the texts of `set`, `get`, `get_all` and `propose`"""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=[self._calls], daemon=True).start()
        try:
            self.store = self.call(make, timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the thread; the store closes with its last user."""
        self._calls.put(None)

    def limit(self, timeout_s: float) -> None:
        """Every later call but those of `call` may take `timeout_s`."""
        self._timeout_s = timeout_s

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Call in the thread of the store.

        Raises `TimeoutError` after `timeout_s`, and from then on immediately, since the thread may never return.
        """
        if self._is_stuck:
            raise TimeoutError
        future: Future[Any] = Future()
        self._calls.put((future, function))
        for _ in range(LOOKS):
            if concurrent.futures.wait([future], timeout_s / LOOKS).done:
                return future.result()
        self._is_stuck = True
        raise TimeoutError

    def set(self, key: str, text: str) -> None:
        """Store a text under a key."""
        sealed = self.seal.seal(key, text)
        self.call(lambda: self.store.set(key, sealed), self._timeout_s)

    def append(self, key: str, text: str) -> None:
        """Add a text to that under a key."""
        self.call(lambda: self.store.append(key, text), self._timeout_s)

    def count(self, key: str) -> int:
        """Add one to the number under a key, which begins with 0; gives the sum."""
        found: int = self.call(lambda: self.store.add(key, 1), self._timeout_s)
        return found

    def get(self, key: str) -> str | None:
        """The text under a key; None: there is none."""

        def get() -> str | None:
            return self.store.get(key).decode() if self.store.check([key]) else None

        found: str | None = self.call(get, self._timeout_s)
        return None if found is None else self.seal.open(key, found)

    def get_all(self, keys: Sequence[str]) -> list[str]:
        """The texts under some keys, each of which exists, in one exchange."""
        found: list[str] = self.call(lambda: [text.decode() for text in self.store.multi_get(keys)], self._timeout_s)
        return [self.seal.open(key, text) for key, text in zip(keys, found, strict=True)]

    def propose(self, key: str, text: str) -> str:
        """Store a text under a key unless there is one; gives the text that is there now."""
        sealed = self.seal.seal(key, text)
        kept: str = self.call(lambda: self.store.compare_set(key, "", sealed).decode(), self._timeout_s)
        return self.seal.open(key, kept)

    def wait(self, key: str, deadline: float) -> Iterator[str | None]:
        """Poll for a text, less and less often, until it is there or the monotonic clock reaches `deadline`."""
        pause_s = LEAST_PAUSE_S
        while True:
            # Not by the store's own `wait`, which logs a warning at every timeout.
            text = self.get(key)
            yield text
            if text is not None or time.monotonic() > deadline:
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _serve(calls: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    """Serve calls until there are no more."""
    while (call := calls.get()) is not None:
        future, function = call
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again where the call was made
            future.set_exception(error)
        del call, future, function  # what they hold should not stay open until the next one


def open_store(rank_spec: RankSpec, timeout_s: float) -> StoreClient:
    """Serve the store of a job, or connect to it.

    Raises:
        RendezvousError: that fails within `timeout_s` seconds; the message names the address.

    """
    where = f"{rank_spec.host}:{rank_spec.port}"
    served = rank_spec.rank == 0 and not rank_spec.agent_store

    deadline = time.monotonic() + timeout_s

    def make() -> Any:
        _resolve(rank_spec, deadline)  # here, since a name server may be slow
        if not served:
            _reach(rank_spec, deadline)
        return dist.TCPStore(  # type: ignore[attr-defined]
            rank_spec.host,
            rank_spec.port,
            is_master=served,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )

    try:
        return StoreClient(make, timeout_s)
    except SchedulerError:
        raise
    except TimeoutError:
        raise RendezvousError(
            f"the rendezvous at {where} cannot be reached within {timeout_s:g} s: no store answers there"
        ) from None
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise RendezvousError(f"the rendezvous cannot be served at {where}: the port is in use") from None
        raise RendezvousError(
            f"the rendezvous at {where} cannot be reached within {timeout_s:g} s: {first_line(error)}"
        ) from None


def serve_store(host: str, port: int, listener: int, timeout_s: float) -> StoreClient:
    """Serve the store of a job for its ranks, of which this process is none; it lasts as long as what is returned.

    Args:
        host: of the rendezvous.
        port: of the rendezvous.
        listener: file descriptor of a socket that listens there already.
        timeout_s: seconds that a call may take.

    """

    def make() -> Any:
        return dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener
        )

    return StoreClient(make, timeout_s)


def _resolve(rank_spec: RankSpec, deadline: float) -> None:
    """Raise `RendezvousError` where the host of the rendezvous is unknown; the name server may not be up yet."""
    while True:
        try:
            socket.getaddrinfo(rank_spec.host, rank_spec.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN and time.monotonic() < deadline:
                time.sleep(MOST_PAUSE_S)
                continue
            raise RendezvousError(
                f"the rendezvous at {rank_spec.host}:{rank_spec.port}: unknown host {rank_spec.host!r} "
                f"({error.strerror})"
            ) from None
        return


def _reach(rank_spec: RankSpec, deadline: float) -> None:
    """Wait until something listens at the rendezvous; raises `OSError`.

    Torch would wait longer than its timeout, and a thread that returns from there while the process ends aborts it.
    """
    while True:
        left_s = deadline - time.monotonic()
        try:
            socket.create_connection((rank_spec.host, rank_spec.port), max(left_s, MOST_PAUSE_S)).close()
        except OSError:
            if left_s <= MOST_PAUSE_S:
                raise
            time.sleep(MOST_PAUSE_S)
            continue
        return


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """Within: calls to the store, whose failures become `RendezvousError`."""
    try:
        yield
    except SchedulerError:
        raise
    except TimeoutError:
        raise StoreGoneError("the rendezvous no longer answers") from None
    except RuntimeError as error:
        raise StoreGoneError(f"the rendezvous is gone: {first_line(error)}") from None
