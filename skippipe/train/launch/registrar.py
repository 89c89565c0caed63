"""The process that talks to the store of the rendezvous for the parent of workers, which has to keep a single thread.

In a local run it also serves the store, from a thread of torch: so the store outlives any worker, and those that are
left can agree on how they go on without one. Which workers have died it tells the others there.
"""

import contextlib
import os
import pickle
import signal
import time
import traceback
from collections.abc import Sequence
from typing import BinaryIO, NoReturn

from skippipe.train.connect.rank_spec import RankSpec

STORE_S = 5.0
"""How long a call to the store may take: who has died can be noticed otherwise."""
LAST_S, LAST_PAUSE_S = 2.0, 0.01
"""How long telling of the last deaths may take once no worker is left, and between two looks whether that is done."""


class Registrar:
    """The process, as the parent of workers sees it."""

    def __init__(self, first: RankSpec, listener: int | None, others: Sequence[int]) -> None:
        """Fork it, before there are any workers.

        Args:
            first: a rank of this machine.
            listener: file descriptor of the socket on which the store is to be served; None: another process does.
            others: file descriptors that are not for it.

        """
        reading, self._telling = os.pipe()
        self.has_ended = False
        """set by who waits for children"""
        self.process = os.fork()
        if self.process == 0:
            _be_registrar(first, listener, reading, (*others, self._telling))
        os.close(reading)
        if listener is not None:
            os.close(listener)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors that are not for workers."""
        return (self._telling,)

    def tell_death(self, rank_spec: RankSpec) -> None:
        """Have the other ranks know that one has died."""
        with contextlib.suppress(BrokenPipeError):  # it is gone, as its parent is about to learn
            os.write(self._telling, pickle.dumps((rank_spec.rank, rank_spec.process_token)))

    def end(self) -> None:
        """Have it end once it has told of all deaths, if the store answers, and wait until it is gone."""
        os.close(self._telling)
        deadline = time.monotonic() + LAST_S
        while not self.has_ended:
            if late := time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
            process, _ = os.waitpid(self.process, 0 if late else os.WNOHANG)
            self.has_ended = process == self.process
            if not self.has_ended:
                time.sleep(LAST_PAUSE_S)


def _be_registrar(first: RankSpec, listener: int | None, reading: int, others: Sequence[int]) -> NoReturn:
    """Serve the store, and tell of deaths, until the parent is gone; ends this process."""
    status = 1
    try:
        for descriptor in others:
            os.close(descriptor)
        signal.set_wakeup_fd(-1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        with os.fdopen(reading, "rb") as deaths:
            _serve(first, listener, deaths)
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may get past this fork
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(first: RankSpec, listener: int | None, deaths: BinaryIO) -> None:
    from skippipe.train.connect.activity import announce_death  # noqa: PLC0415 - imports torch
    from skippipe.train.connect.store import open_store, serve_store  # noqa: PLC0415

    client = None if listener is None else serve_store(first.host, first.port, listener, STORE_S)
    while True:
        try:
            rank, process_token = pickle.load(deaths)  # noqa: S301 - sent by our own parent
        except EOFError:
            return
        # Whom that concerns will notice by heartbeat. Anybody can write what is read here, which may be nonsense.
        with contextlib.suppress(Exception):
            if client is None:
                client = open_store(first, STORE_S)
            announce_death(client, rank, process_token)
