"""Trains with all ranks in one place: one process that serves every node, or warm workers."""

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pool as pools

from skippipe.train.config import TrainJob
from skippipe.train.events import Event
from skippipe.train.layout import layout_of
from skippipe.train.place import Place
from skippipe.train.rank import train_rank


def free_port() -> int:
    """A port that nobody listens at now, and that no connection is given by the system in the meantime."""
    while True:
        port = random.randrange(20_000, 32_000)  # below those that connections are given
        with socket.socket() as door, contextlib.suppress(OSError):
            door.bind(("127.0.0.1", port))
            return port


def train_alone(job: TrainJob, folder: Path) -> list[Event]:
    """Train in this process, which serves all nodes; give what is told."""
    told: list[Event] = []
    names = tuple(layout_of(job).cluster.names)
    train_rank(job, Place(0, 1, names, "127.0.0.1", free_port(), local=True), folder, told.append)
    return told


def rank_in_pool(rank: int, job: TrainJob, names: Sequence[tuple[str, ...]], folder: Path, port: int) -> list[Event]:
    """In a warm worker: leave its group, train, and come back to one of the same size."""
    told: list[Event] = []
    pools.leave()
    train_rank(job, Place(rank, len(names), names[rank], "127.0.0.1", port, local=True), folder, told.append)
    pools.join(rank, len(names), str(folder / "back"))
    return told


def train_in_pool(pool: pools.Pool, job: TrainJob, names: Sequence[tuple[str, ...]], folder: Path) -> list[Event]:
    """Train with one warm worker for each entry of `names`; give what rank 0 tells."""
    port = free_port()
    told: list[Any] = pool.run(rank_in_pool, [(job, names, folder, port) for _ in names], timeout_s=120)
    assert not any(told[1:]), "only rank 0 tells"
    return list(told[0])


def of_kind(events: Sequence[Event], kind: str) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if event["event"] == kind]
