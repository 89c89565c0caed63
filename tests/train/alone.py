"""Trains with all ranks in one place: one process that serves every node, or warm workers."""

import contextlib
import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pool as pools

from skippipe.train.config import TrainJob
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.observe.events import Event, Report, to_json
from skippipe.train.rank import train_rank
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec

Told = dict[str, Any]
"""An event as `metrics.jsonl` has it."""


def plain(event: Event) -> Told:
    """An event as `metrics.jsonl` has it."""
    content: Told = json.loads(to_json(event))
    return content


def noting(told: list[Told]) -> Report:
    """A report that keeps events."""
    return lambda event: told.append(plain(event))


def free_port() -> int:
    """A port that nobody listens at now, and that no connection is given by the system in the meantime."""
    while True:
        port = random.randrange(20_000, 32_000)  # below those that connections are given
        with socket.socket() as door, contextlib.suppress(OSError):
            door.bind(("127.0.0.1", port))
            return port


def only_rank(spec: RunSpec) -> RankSpec:
    """One process that serves all nodes."""
    return RankSpec(0, 1, tuple(spec.layout.cluster.names), "127.0.0.1", free_port(), supervised=True)


def train_alone(job: TrainJob, folder: Path) -> list[Told]:
    """Train in this process, which serves all nodes; give what is reported."""
    told: list[Told] = []
    spec = resolve(job)
    train_rank(spec, only_rank(spec), folder, noting(told))
    return told


def rank_in_pool(rank: int, job: TrainJob, names: Sequence[tuple[str, ...]], folder: Path, port: int) -> list[Told]:
    """In a warm worker: leave its group, train, and come back to one of the same size."""
    told: list[Told] = []
    pools.leave()
    rank_spec = RankSpec(rank, len(names), names[rank], "127.0.0.1", port, supervised=True)
    train_rank(resolve(job), rank_spec, folder, noting(told))
    pools.join(rank, len(names), str(folder / "back"))
    return told


def train_in_pool(pool: pools.Pool, job: TrainJob, names: Sequence[tuple[str, ...]], folder: Path) -> list[Told]:
    """Train with one warm worker for each entry of `names`; give what rank 0 reports."""
    port = free_port()
    told: list[Any] = pool.run(rank_in_pool, [(job, names, folder, port) for _ in names], timeout_s=120)
    assert not any(told[1:]), "only rank 0 reports"
    return list(told[0])


def of_kind(events: Sequence[Told], kind: str) -> list[Told]:
    """The events of one kind."""
    return [event for event in events if event["event"] == kind]
