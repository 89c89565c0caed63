"""Worker processes that stay warm: tests hand them functions.

One pool serves every world size up to its most: rank r of a world is worker r, and the Gloo group is made anew where
the size changes or a function has failed. Workers are started when first needed, as forks of a process that has
imported torch and transformers once for all of them and has done nothing with them.
"""

import atexit
import functools
import multiprocessing
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

MOST_WORKERS = 6
PRELOADED = [
    "encodings.idna",
    "numpy.ctypeslib",
    "numpy.ma",
    "pytest",
    "torch.distributed",
    "torch.utils.tensorboard",
    "transformers.models.llama.modeling_llama",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher",
    "skippipe.application.run",
    "skippipe.cli",
    "skippipe.commands.plan",
    "skippipe.commands.train",
    "skippipe.train.launch.launch",
    "skippipe.train.measuring.rank",
    "skippipe.train.rank",
]
"""What commands, workers and tests import."""

TIMED_S = (0.06, 0.02)
"""seconds for which workers time a stage, and a head; each runs some times at least"""
WARM_UP = 3
"""iterations of workers before those that are profiled"""


def fork_context() -> ForkServerContext:
    """Processes of this context are forks of one that has imported what `preloaded.py` does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()
    return context


@dataclass(frozen=True)
class Failure:
    """What a function raised in a worker."""

    kind: str
    """name of the exception's class"""
    message: str
    trace: str


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection


class Pool:
    """Ranks of small worlds; every call uses the first `world` workers."""

    def __init__(self, most: int = MOST_WORKERS) -> None:
        self._most = most
        self._workers: list[_Worker] = []
        self._folder = Path(tempfile.mkdtemp(prefix="skippipe-pool-"))
        self._groups = 0
        self._world = 0

    def run(self, function: Callable[..., Any], by_rank: Sequence[Sequence[Any]], timeout_s: float = 60.0) -> list[Any]:
        """Call `function(rank, *by_rank[rank])` on every rank of a world within one Gloo group.

        Args:
            function: found by its module and name in the workers.
            by_rank: the other arguments of each rank; their number is the size of the world.
            timeout_s: workers that have not answered within that time are ended, and the call fails.

        Returns:
            What each rank returned.

        Raises:
            AssertionError: a rank raised or did not answer; the message holds the traceback.

        """
        results = self.attempt(function, by_rank, timeout_s)
        failures = [f"rank {rank}: {r.trace}" for rank, r in enumerate(results) if isinstance(r, Failure)]
        if failures:
            raise AssertionError("\n".join(failures))
        return results

    def attempt(
        self, function: Callable[..., Any], by_rank: Sequence[Sequence[Any]], timeout_s: float = 60.0
    ) -> list[Any]:
        """Like `run`, but a rank that raised gives a `Failure`."""
        world = len(by_rank)
        workers = self._ready(world)
        for worker, arguments in zip(workers, by_rank, strict=True):
            worker.pipe.send((function, tuple(arguments)))
        results: list[Any] = []
        for rank, worker in enumerate(workers):
            if not worker.pipe.poll(timeout_s):
                self.close()
                raise AssertionError(f"rank {rank} of {world} did not answer within {timeout_s} s")
            try:
                results.append(worker.pipe.recv())
            except EOFError:
                self.close()
                raise AssertionError(f"rank {rank} of {world} has died") from None
        if any(isinstance(result, Failure) for result in results):
            self._world = 0
        return results

    def _ready(self, world: int) -> list[_Worker]:
        assert 0 < world <= self._most, world
        context = fork_context()
        while len(self._workers) < world:
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._workers.append(_Worker(process, here))
            self._world = 0
        workers = self._workers[:world]
        if self._world != world:
            self._groups += 1
            self._folder.mkdir(exist_ok=True)
            for rank, worker in enumerate(workers):
                worker.pipe.send((join, (rank, world, str(self._folder / f"store-{self._groups}"))))
            for worker in workers:
                answer = worker.pipe.recv()
                assert not isinstance(answer, Failure), answer.trace
            self._world = world
        return workers

    def close(self) -> None:
        """End all workers; they start again when next needed."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []
        self._world = 0
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def shared_pool() -> Pool:
    """The one pool of a test session."""
    pool = Pool()
    atexit.register(pool.close)
    return pool


RANK = 0


def join(rank: int, world: int, store: str) -> None:
    """In a worker: leave the group of before and make a new one."""
    from torch import distributed as dist

    global RANK  # noqa: PLW0603 - one worker is one rank
    leave()
    RANK = rank
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def leave() -> None:
    """In a worker: drop the group, which lets others know where they wait for this rank."""
    from torch import distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def serve(pipe: Connection) -> None:
    """In a worker: call what comes through the pipe until that is closed.

    Stages are timed briefly there, and profiles begin early, as tests look at what is measured, not at how exactly it
    is.
    """
    import torch

    from skippipe.measure import stages
    from skippipe.train.observe import utilization

    torch.set_num_threads(1)
    stages.STAGE_S, stages.HEAD_S = TIMED_S
    utilization.WARM_UP = WARM_UP
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            result = function(*arguments) if function is join else function(RANK, *arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is passed on to the test
            result = Failure(type(error).__name__, str(error), traceback.format_exc())
            leave()
        pipe.send(result)
