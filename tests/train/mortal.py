"""Ranks that may die, killed or stopped by their own hand at a chosen moment, or join; forks, as warm workers are."""

import json
import os
import secrets
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NoReturn

import pool as pools
import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from train.alone import EventDict

from skippipe.checkpoint.saving import CheckpointSaver
from skippipe.runtime.actions import Action, Norm, Reduce, Step, Task
from skippipe.runtime.executor import Executor
from skippipe.runtime.links.collectives import DOWN_TAG
from skippipe.runtime.links.gloo import GlooLink
from skippipe.train import recovery
from skippipe.train.config import TrainJob
from skippipe.train.connect.activity import announce_death
from skippipe.train.connect.clocks import clock_offset_s
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.rendezvous import background_group
from skippipe.train.connect.store import StoreClient
from skippipe.train.loop.checkpoint_scheduler import CheckpointScheduler
from skippipe.train.loop.loop import TrainingLoop
from skippipe.train.loop.run_state import RunState
from skippipe.train.membership import members, newcomer
from skippipe.train.membership.heartbeat import Monitor
from skippipe.train.observe.events import Event, to_json
from skippipe.train.prepare import continuing, prepare
from skippipe.train.rank import train_rank
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec

MOMENTS = ("forward", "backward", "reduction", "norm", "told", "step", "checkpoint")
HOST = "127.0.0.1"
PATIENCE_S = 240.0
SLOW_S = 0.3
ARRIVED_S = 1.0
"""After which a small message that was sent has been read."""
FAULT = "a fault of its own"


@dataclass(frozen=True)
class Fate:
    """When a rank dies or stops."""

    moment: str
    """one of `MOMENTS`: before such an action, but after an optimizer step; `told`, of rank 0: once it has told the
    norm to one of the others; or while it writes a checkpoint; `connecting`: while it connects to those that are left
    when another one is lost, or that it joins; `beside`: before it connects to them once more, for what goes on beside
    training; `connecting beside`: while it does so; `preparing`: while it makes the loop of such a generation, which
    follows the iteration; `slow`: it lives on, but each of its tasks takes `SLOW_S` longer; `waiting`: once it has
    asked to join"""
    iteration: int
    """in which, or after which the checkpoint is"""
    number: signal.Signals | None = signal.SIGKILL
    """None: its main thread hangs"""
    after_s: float = 0.0
    """seconds later, while the others wait for it"""
    fails: bool = False
    """it raises an error instead"""

    def meet(self) -> None:
        """Let it happen."""
        time.sleep(self.after_s)
        if self.fails:
            raise AssertionError(FAULT)
        if self.number is None:
            time.sleep(PATIENCE_S)
        else:
            os.kill(os.getpid(), self.number)


@dataclass(frozen=True)
class Comer:
    """A process that asks to join."""

    rank: int
    """as its supervisor knows it"""
    names: tuple[str, ...]
    after: str = '"training"'
    """what some rank has reported, or failed with, before it starts"""
    fate: Fate | None = None
    job: TrainJob | None = None
    """other settings than those of the ranks"""


@dataclass(frozen=True)
class Gate:
    """Iterations in which rank 0 waits until so many ask to join."""

    first: int
    last: int
    count: int = 1


@dataclass(frozen=True)
class Lives:
    """What became of the ranks of a job."""

    statuses: list[int]
    """exit status of each, negative for a signal; those that join come last"""
    events: list[EventDict]
    """those that any rank has reported, in order"""


def live(
    job: TrainJob,
    names: Sequence[tuple[str, ...]],
    folder: Path,
    fates: dict[int, Fate],
    comers: Sequence[Comer] = (),
    gate: Gate | None = None,
    *,
    saved_at_once: bool = False,
) -> Lives:
    """Train with one process for each entry of `names`; they meet their fates, by rank.

    `saved_at_once`: iterations wait for the checkpoint that is due after the one before, so that none is left out.
    """
    store: Any = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    (folder / "run").mkdir()
    context = pools.fork_context()
    world, spec = len(names), resolve(job)
    lives = [
        _Life(spec, _spec(rank, world, own, store.port), fates.get(rank), gate, saved_at_once=saved_at_once)
        for rank, own in enumerate(names)
    ] + [
        _Life(
            spec if comer.job is None else resolve(comer.job),
            _spec(comer.rank, world, comer.names, store.port, newcomer=True),
            comer.fate,
            gate,
            comer.after,
        )
        for comer in comers
    ]
    ranks = [
        context.Process(target=_be_rank, args=(number, life, folder), daemon=True) for number, life in enumerate(lives)
    ]
    for process in ranks:
        process.start()
    stopping = [rank for rank, fate in fates.items() if fate.number == signal.SIGSTOP]
    _be_parent(ranks, [life.rank_spec for life in lives], store, folder, stopping)
    lines = [line for path in folder.glob("events-*") for line in path.read_text().splitlines()]
    timed = sorted((json.loads(line) for line in lines), key=lambda line: line["at"])
    return Lives([process.exitcode or 0 for process in ranks], [line["event"] for line in timed])


@dataclass(frozen=True)
class _Life:
    spec: RunSpec
    rank_spec: RankSpec
    fate: Fate | None
    gate: Gate | None
    after: str = ""
    saved_at_once: bool = False


def _spec(rank: int, world: int, names: tuple[str, ...], port: int, *, newcomer: bool = False) -> RankSpec:
    return RankSpec(
        rank, world, names, HOST, port, launcher=Launcher.LOCAL, agent_store=True, local_rank=rank, newcomer=newcomer,
        process_token=secrets.token_hex(8),
    )  # fmt: skip


def _be_parent(
    ranks: Sequence[ForkServerProcess],
    rank_specs: Sequence[RankSpec],
    store: Any,
    folder: Path,
    stopping: Sequence[int],
) -> None:
    """Tell the store how ranks end, as the parent of local workers does; wake those up that the others left behind."""
    deadline, told = time.monotonic() + PATIENCE_S, set[int]()
    client = StoreClient(lambda: store, PATIENCE_S)
    while any(process.is_alive() for process in ranks) and time.monotonic() < deadline:
        for rank, process in enumerate(ranks):
            if process.exitcode and rank not in told:
                told.add(rank)
                announce_death(client, rank_specs[rank].rank, rank_specs[rank].process_token)
            if rank in stopping and process.is_alive() and process.pid and _have_recovered(folder):
                os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.02)
    for process in ranks:
        process.kill()
        process.join()
    client.close()


def _have_recovered(folder: Path) -> bool:
    return any('"recovered"' in path.read_text() for path in folder.glob("events-*"))


def _await(folder: Path, sign: str) -> None:
    """Wait until some rank has reported something, or failed with it."""
    deadline = time.monotonic() + PATIENCE_S
    while sign and not any(sign in path.read_text() for path in folder.glob("e*-*")):
        assert time.monotonic() < deadline, sign
        time.sleep(0.02)


def _be_rank(rank: int, life: _Life, folder: Path) -> NoReturn:
    status = 1
    torch.set_num_threads(1)
    try:
        with (folder / f"events-{rank}").open("w", buffering=1) as file, pytest.MonkeyPatch.context() as patch:
            _set_fate(patch, life.fate)
            if life.gate is not None:
                _set_gate(patch, life.gate)
            if life.saved_at_once:
                _save_at_once(patch)
            _await(folder, life.after)

            def report(event: Event) -> None:
                file.write(json.dumps({"at": time.monotonic(), "event": json.loads(to_json(event))}) + "\n")

            train_rank(life.spec, life.rank_spec, folder / "run", report)
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may get past this fork
        (folder / f"error-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _set_fate(patch: pytest.MonkeyPatch, fate: Fate | None) -> None:
    """Have this process send itself a signal at the chosen moment."""
    if fate is None:
        return
    now, told = 0, False
    iterate: Callable[..., Any] = TrainingLoop._iterate
    send: Callable[..., Any] = GlooLink.isend
    step_of: Callable[..., Callable[[], None]] = Executor._step_of
    write: Callable[..., None] = CheckpointSaver._write

    def iterating(loop: TrainingLoop, number: int, *rest: Any) -> Any:
        nonlocal now
        now = number
        try:
            return iterate(loop, number, *rest)
        finally:
            now = 0

    def meet(run: Callable[[], None]) -> None:
        if fate.moment == "step":
            run()
        if now == fate.iteration:
            fate.meet()
        if fate.moment != "step":
            run()

    def slow(run: Callable[[], None]) -> None:
        if now >= fate.iteration:
            time.sleep(SLOW_S)
        run()

    def step_that_is_slow(executor: Executor, action: Action) -> Callable[[], None]:
        run = step_of(executor, action)
        return partial(slow, run) if isinstance(action, Task) else run

    def step_that_may_be_the_last(executor: Executor, action: Action) -> Callable[[], None]:
        run = step_of(executor, action)
        return partial(meet, run) if moment_of(action) == fate.moment else run

    def write_that_may_be_the_last(saver: CheckpointSaver, staging: Path, copied: Any) -> None:
        if str(fate.iteration) in staging.name:
            fate.meet()
        write(saver, staging, copied)

    def send_of_which_one_arrives(link: GlooLink, tensor: Tensor, to_rank: int, tag: int) -> Any:
        nonlocal told
        if now == fate.iteration and tag == DOWN_TAG:
            if told:
                fate.meet()
            told = True
            work = send(link, tensor, to_rank, tag)
            work.wait(PATIENCE_S)
            time.sleep(ARRIVED_S)
            return work
        return send(link, tensor, to_rank, tag)

    def only_at_the_start(connect: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def connecting_once(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                fate.meet()
            return connect(*arguments, **named)

        return connecting_once

    def meeting_at_once(*_: object) -> NoReturn:
        fate.meet()
        raise AssertionError

    patch.setattr(TrainingLoop, "_iterate", iterating)
    if fate.moment == "preparing":
        continue_loop, offset = continuing.continue_loop, clock_offset_s
        after = -1

        def continuing_loop(belongings: Any, state: RunState, *rest: Any, **named: Any) -> Any:
            nonlocal after
            after = state.progress.iteration
            return continue_loop(belongings, state, *rest, **named)

        def meeting(*arguments: Any) -> float:
            if after == fate.iteration:
                fate.meet()
            return offset(*arguments)

        patch.setattr(recovery, "continue_loop", continuing_loop)
        patch.setattr(continuing, "clock_offset_s", meeting)
    elif fate.moment == "connecting":
        patch.setattr(members, "connect_group", meeting_at_once)
    elif fate.moment == "beside":
        patch.setattr(prepare, "background_group", only_at_the_start(background_group))
    elif fate.moment == "connecting beside":
        patch.setattr(dist, "new_group", only_at_the_start(dist.new_group))
    elif fate.moment == "waiting":
        patch.setattr(newcomer, "_await_admission", meeting_at_once)
    elif fate.moment == "slow":
        patch.setattr(Executor, "_step_of", step_that_is_slow)
    elif fate.moment == "told":
        patch.setattr(GlooLink, "isend", send_of_which_one_arrives)
    elif fate.moment == "checkpoint":
        patch.setattr(CheckpointSaver, "_write", write_that_may_be_the_last)
    else:
        patch.setattr(Executor, "_step_of", step_that_may_be_the_last)


def _save_at_once(patch: pytest.MonkeyPatch) -> None:
    after: Callable[..., None] = CheckpointScheduler.after

    def saving_at_once(scheduler: CheckpointScheduler, iteration: int, *, saving: bool) -> None:
        after(scheduler, iteration, saving=saving)
        scheduler.wait()

    patch.setattr(CheckpointScheduler, "after", saving_at_once)


def moment_of(action: Action) -> str:
    """The one of `MOMENTS` that an action is."""
    match action:
        case Task(kind="F"):
            return "forward"
        case Task(kind="B"):
            return "backward"
        case Reduce():
            return "reduction"
        case Norm():
            return "norm"
        case Step():
            return "step"
    return ""


def _set_gate(patch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Have rank 0 wait as it is told to, and let in none before."""
    iterate: Callable[..., Any] = TrainingLoop._iterate
    knocking: Callable[[Monitor], tuple[int, ...]] = Monitor.knocking.fget  # type: ignore[attr-defined]

    def all_of_them(monitor: Monitor) -> tuple[int, ...]:
        found = knocking(monitor)
        return found if len(found) >= gate.count else ()

    def iterating(loop: TrainingLoop, number: int, *rest: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        rendezvous = loop.context.rendezvous
        waits = gate.first <= number <= gate.last and rendezvous.rank == 0
        while waits and not rest[-1]():
            assert time.monotonic() < deadline, "nobody asks to join"
            time.sleep(0.01)
        return iterate(loop, number, *rest)

    patch.setattr(Monitor, "knocking", property(all_of_them))
    patch.setattr(TrainingLoop, "_iterate", iterating)
