"""How long ranks wait for each other outside and inside of iterations, and what they say of one that does not come."""

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pool as pools
import pytest
from torch import Tensor
from train.alone import EventDict, free_port, of_kind, rank_in_pool, train_alone
from train.conftest import Folder
from train.jobs import make_job

from skippipe.errors import ActionError, InputError, from_origin, unexpected
from skippipe.measure.links import LinkTimes, rounds, time_links, time_norm
from skippipe.runtime.executor import Executor, Timings
from skippipe.runtime.links import Work
from skippipe.runtime.links.collectives import RingSums
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.launch.worker import LostWorkerError, Worker, explaining_error, lost_workers
from skippipe.train.launch.workers import report_failure
from skippipe.train.loop.engine import message_timeout_s
from skippipe.train.observe.events import EventReader, EventWriter, WorkerFailed
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import SLOWEST_HEALTHY, RunSpec

FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]


def test_patience_grows_with_the_iteration() -> None:
    assert message_timeout_s(60.0, 0.0, 0.0) == 60.0
    assert message_timeout_s(60.0, 87.0, 0.0) == message_timeout_s(60.0, 1.0, 87.0) == 60.0 + SLOWEST_HEALTHY * 87.0
    assert message_timeout_s(60.0, 87.0, 3.0, 2.0) == 60.0 + SLOWEST_HEALTHY * 174.0


def test_waits_go_by_the_longer_of_prediction_and_latest_iteration(
    prepared: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    run = Executor.run

    def noting(self: Executor, batches: Any, step: Any, timeout_s: float) -> Timings:
        waits.append(timeout_s)
        return run(self, batches, step, timeout_s)

    monkeypatch.setattr(Executor, "run", noting)
    # Eight microbatches of validation, six of an iteration.
    job = make_job(
        train__iterations=3,
        data__prepared=str(prepared),
        train__validate_every=1,
        runtime__timeout_s=5.0,
        checkpoint__enabled=False,
    )
    for forward_s, slower in ((100.0, False), (1e-6, True)):
        waits.clear()
        job.cluster.node.forward_s = job.cluster.node.backward_s = forward_s  # type: ignore[attr-defined]
        iterations = of_kind(train_alone(job, folder(str(forward_s))), "iteration")
        predicted_s, measured = iterations[0]["predicted_s"], [event["iteration_s"] for event in iterations]
        assert all((predicted_s < seconds) == slower for seconds in measured)
        expected = [predicted_s, *(max(predicted_s, seconds) for seconds in measured)]
        validations, trainings = waits[::2], waits[1::2]
        assert trainings == pytest.approx([5.0 + 3.0 * seconds for seconds in expected[:3]])
        assert validations == pytest.approx([5.0 + 3.0 * 8 / 6 * seconds for seconds in expected])


def slow_rank(rank: int, spec: RunSpec, folder: Path, port: int) -> list[EventDict]:
    """In a warm worker: be a rank of a training; `local-2` takes its time for every forward."""
    forward = Stage.forward

    def slowly(self: Stage, microbatch: int, hidden: Tensor) -> Tensor:
        time.sleep(0.3 if rank == 2 else 0.0)
        return forward(self, microbatch, hidden)

    with patch.object(Stage, "forward", slowly):
        return rank_in_pool(rank, spec, FOUR, folder, port)


def test_a_healthy_iteration_may_take_longer_than_a_message_may_stay_out(
    prepared: Path, folder: Folder, pool: pools.Pool
) -> None:
    job = make_job(
        train__iterations=1,
        data__prepared=str(prepared),
        runtime__timeout_s=0.2,  # enough for Gloo to connect on a busy machine
        data__validation_blocks=4,
        checkpoint__enabled=False,
    )
    job.cluster.node.forward_s = 1.0  # type: ignore[attr-defined]
    run, port = folder("run"), free_port()
    reported, *_ = pool.run(slow_rank, [(resolve(job), run, port)] * 4, timeout_s=60)
    (iteration,) = of_kind(reported, "iteration")
    assert iteration["iteration_s"] > 0.3 > job.runtime.timeout_s


def lost_rank(rank: int, spec: RunSpec, folder: Path, port: int) -> list[EventDict]:
    """In a warm worker: be a rank of a training, of which the last does not say what its losses were."""
    if rank < len(FOUR) - 1:
        return rank_in_pool(rank, spec, FOUR, folder, port)
    with patch("skippipe.train.loop.engine.tree_sum", side_effect=ValueError("on purpose")):
        return rank_in_pool(rank, spec, FOUR, folder, port)


def test_a_rank_that_is_lost_between_actions(prepared: Path, folder: Folder, pool: pools.Pool) -> None:
    job = make_job(
        data__prepared=str(prepared), runtime__timeout_s=1.0, runtime__heartbeat_s=2.0, checkpoint__enabled=False
    )
    run, port = folder("run"), free_port()
    *others, lost = pool.attempt(lost_rank, [(resolve(job), run, port)] * 4, timeout_s=60)
    assert lost.message == "on purpose"
    for failure in others:
        assert (failure.kind, failure.message) == (
            "RendezvousError", "node local-3 (rank 3) has ended: ValueError: on purpose"
        ), failure.trace  # fmt: skip


class Unending(RingSums):
    """A link whose transfers never end."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> Work:
        return self

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> Work:
        return self

    def wait(self, timeout_s: float) -> None:
        raise self.error


class Lonely(Rendezvous):
    """A rank that hears nobody but itself."""

    def publish(self, key: str, text: str) -> None:
        pass

    def receive(self, key: str, rank: int, extra_s: float = 0.0) -> str:
        return ""


def lonely(rank: int, world: int) -> Lonely:
    nothing: Any = None
    return Lonely(RankSpec(rank, world, ("",), "", 0), [(f"n{r}",) for r in range(world)], nothing, nothing, 5.0)


class Board:
    """Texts of ranks that are threads; each key is used once."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.changed = threading.Condition()

    def publish(self, key: str, text: str) -> None:
        with self.changed:
            assert key not in self.texts, key
            self.texts[key] = text
            self.changed.notify_all()

    def receive(self, key: str, timeout_s: float, who: str) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.texts, timeout_s), f"{key} of {who}"
            return self.texts[key]

    def seal(self, secret: bytes) -> None:
        pass


class Queued(RingSums):
    """A link between ranks that are threads: a queue for each direction; notes whom it hears."""

    def __init__(self, rank: int, queues: "Mapping[tuple[int, int], queue.SimpleQueue[Tensor]]") -> None:
        self.rank, self.queues = rank, queues
        self.heard: list[int] = []

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> Work:
        self.queues[self.rank, to_rank].put(tensor.clone())
        return Arrival(lambda _: None)

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> Work:
        if self.heard[-1:] != [from_rank]:
            self.heard.append(from_rank)
        return Arrival(lambda timeout_s: tensor.copy_(self.queues[from_rank, self.rank].get(timeout=timeout_s)))


class Arrival:
    """A transfer of `Queued`."""

    def __init__(self, arrive: Callable[[float], object]) -> None:
        self.arrive = arrive

    def wait(self, timeout_s: float) -> None:
        self.arrive(timeout_s)


BOUNDARY = MessageSpec(1, 2, 3)


@pytest.mark.parametrize("world", range(1, 10))
def test_links_are_timed_in_rounds_of_disjoint_pairs(world: int) -> None:
    dealt = rounds(world)
    assert sorted(pair for pairs in dealt for pair in pairs) == list(itertools.combinations(range(world), 2))
    for pairs in dealt:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))
    assert len(dealt) <= world


@pytest.mark.parametrize("world", range(1, 7))
def test_all_ranks_time_all_links(world: int) -> None:
    """They get the same, each hears each other one, and nothing is left under way."""
    queues: dict[tuple[int, int], queue.SimpleQueue[Tensor]] = {
        pair: queue.SimpleQueue() for pair in itertools.permutations(range(world), 2)
    }
    links, board, nothing = [Queued(rank, queues) for rank in range(world)], Board(), Any
    names = [(f"n{rank}",) for rank in range(world)]

    def measure(rank: int) -> LinkTimes:
        rendezvous = Rendezvous(RankSpec(rank, world, ("",), "", 0), names, board, nothing, 60.0)  # type: ignore[arg-type]
        return time_links(rendezvous, links[rank], BOUNDARY, "links")

    with ThreadPoolExecutor(world) as pool:
        found = list(pool.map(measure, range(world)))
    for rank, times in enumerate(found):
        assert sorted(links[rank].heard) == [other for other in range(world) if other != rank]
        assert np.array_equal(times.bandwidth, found[0].bandwidth)
        assert (times.messages[~np.eye(world, dtype=bool)] > 0).all()
    assert all(box.empty() for box in queues.values()), "nothing was sent that nobody wanted"


def test_a_peer_that_does_not_answer_while_links_are_timed() -> None:
    with pytest.raises(ActionError, match=r"^messages to be timed, with node n\d \(rank \d\): timed out$"):
        time_links(lonely(1, 4), Unending(TimeoutError("timed out")), BOUNDARY, "links")
    with pytest.raises(
        ActionError, match=r"^an exchange of the norm to be timed, with node n0 \(rank 0\), node n2 .*: gone$"
    ):
        time_norm(lonely(1, 4), Unending(ConnectionError("gone")), 3)


@pytest.mark.parametrize(
    ("message", "status"), [("RECV 0F0 <- 1, peer node b (rank 1): closed", 1), ("model.hidden_size is 0", 2)]
)
def test_a_failure_of_a_worker_names_its_node_once(message: str, status: int) -> None:
    """Whatever the node is called."""
    for name in ("a", "model", "RECV 0F0"):
        worker = Worker(0, (name,), Path(), status=status, failed_at=1.0)
        worker.failure = WorkerFailed(message=message, status=status, cause="ConnectionError")
        assert str(explaining_error([worker])) == f"node {name} (rank 0): {message}"


@pytest.mark.parametrize(
    "error",
    [
        unexpected("data.sequence", 64, "at most 32", "c.yaml", "as the model says"),
        InputError("invalid JSON", file="x.json", position=(2, 7), origin="data.training"),
    ],
)
def test_unusable_input_of_a_worker_keeps_its_fields(error: InputError) -> None:
    reading, writing = os.pipe()
    report_failure(error, EventWriter(writing))
    worker = Worker(0, ("a",), Path(), status=2, failed_at=1.0)
    (worker.failure,) = EventReader().feed(os.read(reading, 65536))  # type: ignore[assignment]
    os.close(reading)
    os.close(writing)
    found = explaining_error([worker])
    assert vars(found) == vars(from_origin(error, "node a (rank 0)"))
    assert str(found) == f"node a (rank 0): {error}"


def test_what_starts_a_run_again() -> None:
    """A worker that is killed, or hangs where its stage has no other node; not an error that would come again."""

    def failed(rank: int, cause: str) -> Worker:
        failure = WorkerFailed(message="no", status=1, cause=cause)
        return Worker(rank, (f"n{rank}",), Path(), process=rank, failure=failure, failed_at=1.0)

    killed = Worker(0, ("n0",), Path(), process=9, status=-9, failed_at=2.0)
    silent = Worker(1, ("n1",), Path(), process=10)
    for workers, lost in (
        ([killed, failed(1, "ConnectionError")], [killed]),
        ([failed(0, "NotRecoverableError"), silent], [silent]),
        ([failed(0, "TimeoutError"), silent], [silent]),
    ):
        assert isinstance(explaining_error(workers), LostWorkerError)
        assert lost_workers(workers) == lost
    for cause in ("DivergedError", "KeyError", "SavingError"):
        assert not isinstance(
            explaining_error([failed(0, cause), failed(2, "ConnectionError"), silent]), LostWorkerError
        )
