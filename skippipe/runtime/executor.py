"""Runs one rank's program; independent of strategy, model and planner.

One thread issues all communication. Receives are posted ahead, per sender in sending order, at most `recv_buffers` of
them unconsumed; a tensor is consumed when the task that needs it starts. At most `sends_in_flight` sends are in flight;
beyond that the oldest is waited for. `skippipe.runtime.deadlock` proves that these rules exclude deadlock.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from skippipe.errors import ActionError
from skippipe.ranks import node_title
from skippipe.runtime.actions import Action, Norm, Program, Recv, Reduce, Send, Step, Task, message_tag
from skippipe.runtime.links import Link, Work
from skippipe.runtime.links.collectives import ring_sum, tree_sum
from skippipe.runtime.message import MessageSpec

LOGGED_ACTIONS = 24
"""Number of a rank's last actions in the error message when one fails."""


class StageCompute(Protocol):
    """A stage as the executor sees it; hidden states and their gradients have shape (b, s, hidden)."""

    def embed(self, microbatch: int, tokens: Tensor) -> Tensor:
        """Embed tokens (b, s) int64; stage 0 only."""

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        """Run the stage's layers and save what backward needs."""

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        """Run head and loss, labels (b, s) int64, and return the gradient of `hidden`; stage 0 only."""

    def backward(self, microbatch: int, gradient: Tensor) -> Tensor:
        """Take the gradient of `forward`'s result and return that of its input."""

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        """Take the gradient of `embed`'s result; stage 0 only."""

    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters reached, in a fixed order, for in-place reduction."""


class Batches(Protocol):
    """The token batches of an iteration."""

    def __call__(self, microbatch: int) -> tuple[Tensor, Tensor]:
        """Return tokens and labels, each (b, s) int64; called once per microbatch, on its source's rank."""


@dataclass(frozen=True)
class Timings:
    """Start and end of each action of a program, in seconds from the start of the rank's iteration."""

    actions: tuple[Action, ...]
    starts: Sequence[float]
    ends: Sequence[float]
    began_at: float
    """clock reading at the start of the iteration"""


class Executor:
    """Runs one rank's program, once per iteration."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        program: Program,
        stages: Mapping[int, StageCompute],
        link: Link,
        *,
        message_spec: MessageSpec,
        recv_buffers: int = 2,
        sends_in_flight: int = 4,
        clock: Callable[[], float] = time.perf_counter,
        title: Callable[[int], str] | None = None,
    ) -> None:
        """Prepare a program.

        Args:
            program: this rank's.
            stages: the stages that this rank serves, by number.
            link: transfers to the other ranks.
            message_spec: what messages hold, and how they travel.
            recv_buffers: limit on posted, unconsumed receives, per sender.
            sends_in_flight: limit on sends in flight.
            clock: seconds, from any origin.
            title: name of a rank in error messages; None: its number.

        """
        self._program = program
        self._stages = stages
        self._link = link
        self._message_spec = message_spec
        self._recv_buffers = recv_buffers
        self._sends_in_flight = sends_in_flight
        self._clock = clock
        self._title = title or partial(node_title, ())
        self._embedded_here, self._unneeded = _ends_of_routes(program.actions)
        self._steps = [self._step_of(action) for action in program.actions]
        self._log: deque[tuple[float, Action]] = deque(maxlen=LOGGED_ACTIONS)
        self._link_of = {task: sender for sender, tasks in program.incoming.items() for task in tasks}
        self._reset()

    def _reset(self) -> None:
        self._posted: dict[Task, tuple[Tensor, Work]] = {}
        self._next_receive = dict.fromkeys(self._program.incoming, 0)
        self._waiting: dict[int, Tensor] = {}
        self._arrived_over: dict[int, int] = {}
        self._labels: dict[int, Tensor] = {}
        self._in_flight: deque[tuple[Send, Tensor, Work]] = deque()
        self._norm = math.nan
        self._log.clear()
        self._current: Action | None = None

    def run(self, batches: Batches, step: Callable[[float], None], timeout_s: float) -> Timings:
        """Run one iteration.

        Args:
            batches: tokens and labels of the iteration's microbatches.
            step: the optimizer step; takes the norm of the full model's gradient.
            timeout_s: timeout of each transfer, in seconds.

        Raises:
            ActionError: an action failed or timed out; the executor is unusable afterwards.

        """
        self._batches, self._step, self._timeout_s = batches, step, timeout_s
        self._reset()
        clock, actions = self._clock, self._program.actions
        began_at = clock()
        starts, ends = [0.0] * len(actions), [0.0] * len(actions)
        try:
            for sender in self._next_receive:
                for _ in range(self._recv_buffers):
                    self._post(sender)
            for index, (action, run) in enumerate(zip(actions, self._steps, strict=True)):
                start = clock()
                starts[index] = start - began_at
                self._log.append((start - began_at, action))
                self._current = action
                run()
                ends[index] = clock() - began_at
            while self._in_flight:
                self._await_oldest_send()
        except Exception as error:
            raise ActionError(self._failure(error, clock() - began_at)) from error
        return Timings(actions, starts, ends, began_at)

    def _step_of(self, action: Action) -> Callable[[], None]:
        match action:
            case Task():
                return partial(self._TASKS[action.kind], self, action, self._stages[action.stage])
            case Send():
                return partial(self._send, action, message_tag(action.task))
            case Recv():
                return partial(self._receive, action.task)
            case Reduce():
                return partial(self._reduce, action)
            case Norm():
                return partial(self._reduce_norm, action)
            case Step():
                return self._run_step

    # --- tasks

    def _input(self, microbatch: int) -> Tensor:
        """Take the input of the microbatch's next task; if it was received, post the sender's next receive."""
        tensor = self._waiting.pop(microbatch)
        sender = self._arrived_over.pop(microbatch, None)
        if sender is not None:
            self._post(sender)
        return tensor

    def _embed(self, task: Task, stage: StageCompute) -> None:
        b = task.microbatch
        tokens, self._labels[b] = self._batches(b)
        self._waiting[b] = stage.embed(b, tokens)

    def _forward(self, task: Task, stage: StageCompute) -> None:
        b = task.microbatch
        if task.hop == 0 and b in self._embedded_here:
            self._embed(task, stage)
        self._waiting[b] = stage.forward(b, self._input(b))

    def _loss(self, task: Task, stage: StageCompute) -> None:
        b = task.microbatch
        self._waiting[b] = stage.loss(b, self._input(b), self._labels.pop(b))
        if task in self._unneeded:
            del self._waiting[b]

    def _backward(self, task: Task, stage: StageCompute) -> None:
        b = task.microbatch
        self._waiting[b] = stage.backward(b, self._input(b))
        if task.hop == 0 and b in self._embedded_here:
            self._embed_backward(task, stage)

    def _embed_backward(self, task: Task, stage: StageCompute) -> None:
        stage.embed_backward(task.microbatch, self._input(task.microbatch))

    _TASKS: Mapping[str, Callable[["Executor", Task, StageCompute], None]] = {
        "E": _embed,
        "F": _forward,
        "L": _loss,
        "B": _backward,
        "e": _embed_backward,
    }

    # --- transfers

    def _post(self, sender: int) -> None:
        index = self._next_receive[sender]
        tasks = self._program.incoming[sender]
        if index == len(tasks):
            return
        self._next_receive[sender] = index + 1
        task, current = tasks[index], self._current
        self._current = Recv(task, sender)
        tensor = self._message_spec.empty_payload()
        self._posted[task] = (tensor, self._link.irecv(tensor, sender, message_tag(task)))
        self._current = current

    def _receive(self, task: Task) -> None:
        if task not in self._posted:
            raise RuntimeError(f"all {self._recv_buffers} receive buffers of that rank are in use")
        tensor, work = self._posted.pop(task)
        work.wait(self._timeout_s)
        self._waiting[task.microbatch] = self._message_spec.decode(tensor)
        self._arrived_over[task.microbatch] = self._link_of[task]

    def _send(self, action: Send, tag: int) -> None:
        payload = self._message_spec.encode(self._waiting.pop(action.task.microbatch))
        while len(self._in_flight) >= self._sends_in_flight:
            self._await_oldest_send()
        self._in_flight.append((action, payload, self._link.isend(payload, action.to_rank, tag)))

    def _await_oldest_send(self) -> None:
        (send, _, work), current = self._in_flight[0], self._current
        self._current = send
        work.wait(self._timeout_s)
        self._current = current
        self._in_flight.popleft()

    # --- the end of an iteration

    def _reduce(self, action: Reduce) -> None:
        gradients = self._stages[action.stage].gradients()
        ring_sum(self._link, gradients, self._program.rank, action.ranks, self._timeout_s)

    def _reduce_norm(self, action: Norm) -> None:
        squares = torch.zeros(len(action.owners), dtype=torch.float64)
        for stage, owner in enumerate(action.owners):
            if owner == self._program.rank:
                squares[stage] = sum(
                    (
                        torch.linalg.vector_norm(g, dtype=torch.float64).square()
                        for g in self._stages[stage].gradients()
                    ),
                    start=torch.zeros((), dtype=torch.float64, device=self._message_spec.device),
                )
        tree_sum(self._link, squares, self._program.rank, action.ranks, self._timeout_s)
        self._norm = math.sqrt(sum(squares.tolist()))

    def _run_step(self) -> None:
        self._step(self._norm)

    # --- errors

    def _failure(self, error: Exception, now_s: float) -> str:
        """Describe a failure; the caller adds the node's name."""
        what = str(self._current)
        match self._current:
            case Send(_, peer) | Recv(_, peer):
                what += f", peer {self._title(peer)}"
            case Reduce(_, ranks) | Norm(ranks, _):
                what += ", with " + ", ".join(self._title(rank) for rank in ranks if rank != self._program.rank)
            case _:
                pass
        reason = f"{error}" if isinstance(error, (OSError, RuntimeError)) else f"{type(error).__name__}: {error}"
        log = "".join(f"\n  {start:10.4f} s  {logged}" for start, logged in self._log)
        return f"{what}: {reason}, {now_s:.4f} s into the iteration; last actions of this rank:{log or ' none'}"


def _ends_of_routes(actions: Sequence[Action]) -> tuple[frozenset[int], frozenset[Task]]:
    """Microbatches whose first forward embeds them, and losses without a backward (in evaluation)."""
    seen: set[int] = set()
    embedded: set[int] = set()
    last: dict[int, Action] = {}
    for action in actions:
        if isinstance(action, Task | Send | Recv):
            b = action.microbatch if isinstance(action, Task) else action.task.microbatch
            if b not in seen and isinstance(action, Task) and action.kind == "F":
                embedded.add(b)
            seen.add(b)
            last[b] = action
    return frozenset(embedded), frozenset(a for a in last.values() if isinstance(a, Task) and a.kind == "L")
