"""Trains with all ranks on this machine: one process that serves every node, or warm workers."""

import contextlib
import json
import os
import random
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pool as pools

from skippipe.train.config import TrainJob
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.observe.events import Event, Report, to_json, without_supervisor
from skippipe.train.rank import train_rank
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec

EventDict = dict[str, Any]
"""An event as `metrics.jsonl` has it."""
Until = Callable[[EventDict], bool]
"""Whether a run is to stop with the iteration that follows an event."""


def plain(event: Event) -> EventDict:
    """An event as `metrics.jsonl` has it."""
    content: EventDict = json.loads(to_json(event))
    return content


def record_into(reported: list[EventDict], until: Until | None = None) -> Report:
    """A report that keeps what is told of the run, and asks this process to stop after one event."""

    def report(event: Event) -> None:
        reported.append(plain(event))
        if until is not None and until(reported[-1]):
            os.kill(os.getpid(), signal.SIGTERM)

    return without_supervisor(report)


def free_port() -> int:
    """A port that nobody listens at now, and that no connection is given by the system in the meantime."""
    while True:
        port = random.randrange(20_000, 32_000)  # below those that connections are given
        with socket.socket() as door, contextlib.suppress(OSError):
            door.bind(("127.0.0.1", port))
            return port


def only_rank(spec: RunSpec) -> RankSpec:
    """One process that serves all nodes."""
    return RankSpec(0, 1, tuple(spec.layout.cluster.names), "127.0.0.1", free_port(), launcher=Launcher.LOCAL)


def train_alone(job: TrainJob, folder: Path, until: Until | None = None) -> list[EventDict]:
    """Train in this process, which serves all nodes; give what is reported."""
    reported: list[EventDict] = []
    spec = resolve(job)
    train_rank(spec, only_rank(spec), folder, record_into(reported, until))
    return reported


def rank_in_pool(
    rank: int, spec: RunSpec, names: Sequence[tuple[str, ...]], folder: Path, port: int, until: Until | None = None
) -> list[EventDict]:
    """In a warm worker: leave its group, train, and return to one of the same size."""
    reported: list[EventDict] = []
    pools.leave()
    rank_spec = RankSpec(rank, len(names), names[rank], "127.0.0.1", port, launcher=Launcher.LOCAL)
    train_rank(spec, rank_spec, folder, record_into(reported, until))
    pools.join(rank, len(names), str(folder / "back"))
    return reported


def train_in_pool(
    pool: pools.Pool, job: TrainJob, names: Sequence[tuple[str, ...]], folder: Path, until: Until | None = None
) -> list[EventDict]:
    """Train with one warm worker for each entry of `names`; give what rank 0 reports."""
    spec, port = resolve(job), free_port()
    reported: list[Any] = pool.run(rank_in_pool, [(spec, names, folder, port, until) for _ in names], timeout_s=120)
    assert not any(reported[1:]), "only rank 0 reports"
    return list(reported[0])


def of_kind(events: Sequence[EventDict], kind: str) -> list[EventDict]:
    """The events of one kind."""
    return [event for event in events if event["event"] == kind]
