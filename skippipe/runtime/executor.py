"""Runs one rank's program; independent of strategy, model and planner.

One thread issues all communication. Receives are posted ahead, per sender in sending order, at most `recv_buffers` of
them unconsumed; a tensor is consumed when the task that needs it starts. At most `sends_in_flight` sends are in flight;
beyond that the oldest is waited for. `skippipe.runtime.deadlock` proves that these rules exclude deadlock.

On a GPU, with links that order its streams in place of blocking the host (`skippipe.runtime.links.gpu`), the host runs
ahead of the GPU by up to an iteration: then "thread" means the stream on which the stages compute, and the same rules
hold for it. The host waits for the GPU twice: for the norm of the gradient, and at the end.
"""

import math
import time
from collections import defaultdict, deque
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
from skippipe.runtime.links.collectives import tree_sum
from skippipe.runtime.message import MessageBuffers
from skippipe.runtime.norm import squared_norm
from skippipe.runtime.stage import ReadyGradients
from skippipe.runtime.timeline import Timeline, timeline_of

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

    def backward(self, microbatch: int, gradient: Tensor, ready: ReadyGradients | None = None) -> Tensor:
        """Take the gradient of `forward`'s result and return that of its input; `ready` as `Stage.backward` has it."""

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        """Take the gradient of `embed`'s result; stage 0 only."""

    def gradient_parts(self) -> list[list[Tensor]]:
        """The gradients for in-place reduction, in parts and an order that all replicas share.

        The first parts are those that `backward` gives to `ready`, if it does.
        """

    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters reached, in a fixed order, after the reduction."""


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
        buffers: MessageBuffers,
        control: Link | None = None,
        recv_buffers: int = 2,
        sends_in_flight: int = 4,
        timeline: Timeline | None = None,
        title: Callable[[int], str] | None = None,
    ) -> None:
        """Prepare a program.

        Args:
            program: this rank's.
            stages: the stages that this rank serves, by number.
            link: transfers to the other ranks.
            buffers: for messages, and what these hold; shared with the rank's other programs.
            control: transfers of numbers in the host's memory; None: by `link` too.
            recv_buffers: limit on posted, unconsumed receives, per sender.
            sends_in_flight: limit on sends in flight.
            timeline: measures the actions; None: that of the messages' device.
            title: name of a rank in error messages; None: its number.

        """
        self._program = program
        self._stages = stages
        self._link, self._control = link, control or link
        self._buffers = buffers
        self._recv_buffers = recv_buffers
        self._sends_in_flight = sends_in_flight
        self._timeline = timeline or timeline_of(buffers.message_spec.device)
        self._title = title or partial(node_title, ())
        self._embedded_here, self._unneeded = _ends_of_routes(program.actions)
        self._early_sums = overlapping_sums(program.actions, link)
        self._running = False
        self._summed_after: Mapping[Task, Reduce] = {}
        self._steps = [self._step_of(action) for action in program.actions]
        self._link_of = {task: sender for sender, tasks in program.incoming.items() for task in tasks}
        self._reset()

    def _reset(self) -> None:
        self._posted: dict[Task, tuple[Tensor, Work]] = {}
        self._next_receive = dict.fromkeys(self._program.incoming, 0)
        self._waiting: dict[int, Tensor] = {}
        self._arrived: dict[int, tuple[int, Tensor]] = {}
        self._labels: dict[int, Tensor] = {}
        self._in_flight: deque[tuple[Send, Tensor, Work]] = deque()
        self._sums: defaultdict[int, list[Work]] = defaultdict(list)
        self._norm = math.nan
        self._current: Action | None = None
        self._begun = 0

    @property
    def position(self) -> tuple[int, str] | None:
        """How many actions of the iteration have begun, and the latest, for other threads; None between iterations."""
        return (self._begun, str(self._current)) if self._running else None

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
        actions, timeline, began_at = self._program.actions, self._timeline, time.perf_counter()
        timeline.begin()
        self._running = True
        try:
            for sender in self._next_receive:
                for _ in range(self._recv_buffers):
                    self._post(sender)
            for action, run in zip(actions, self._steps, strict=True):
                self._current = action
                self._begun += 1
                run()
                timeline.mark()
            while self._in_flight:
                self._await_oldest_send()
            self._await_device()
        except Exception as error:
            raise ActionError(self._failure(error, time.perf_counter() - began_at)) from error
        finally:
            self._running = False
        # Not in the first iteration: allocating memory may wait for kernels, also for those of a sum.
        self._summed_after = self._early_sums
        ends = timeline.ends()
        return Timings(actions, [0.0, *ends[:-1]], ends, began_at)

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
        if microbatch not in self._arrived:
            return self._waiting.pop(microbatch)
        sender, buffer = self._arrived.pop(microbatch)
        tensor = self._buffers.message_spec.decode(buffer)
        self._buffers.give_back(buffer)
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
        ready = partial(self._begin_sum, self._summed_after[task]) if task in self._summed_after else None
        self._waiting[b] = stage.backward(b, self._input(b), ready)
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
        buffer = self._buffers.take()
        self._posted[task] = (buffer, self._link.irecv(buffer, sender, message_tag(task)))
        self._current = current

    def _receive(self, task: Task) -> None:
        if task not in self._posted:
            raise RuntimeError(f"all {self._recv_buffers} receive buffers of that rank are in use")
        buffer, work = self._posted.pop(task)
        work.wait(self._timeout_s)
        self._arrived[task.microbatch] = (self._link_of[task], buffer)

    def _send(self, action: Send, tag: int) -> None:
        while len(self._in_flight) >= self._sends_in_flight:
            self._await_oldest_send()
        buffer = self._buffers.take()
        self._buffers.message_spec.encode(self._waiting.pop(action.task.microbatch), buffer)
        self._in_flight.append((action, buffer, self._link.isend(buffer, action.to_rank, tag)))

    def _await_oldest_send(self) -> None:
        (send, buffer, work), current = self._in_flight[0], self._current
        self._current = send
        work.wait(self._timeout_s)
        self._current = current
        self._in_flight.popleft()
        self._buffers.give_back(buffer)

    # --- the end of an iteration

    def _reduce(self, action: Reduce) -> None:
        parts = self._stages[action.stage].gradient_parts()
        if not self._link.overlaps_sums:
            parts = [[gradient for part in parts for gradient in part]]
        for part in parts[len(self._sums[action.stage]) :]:
            self._begin_sum(action, part)
        for work in self._sums.pop(action.stage):
            work.wait(self._timeout_s)

    def _begin_sum(self, reduce: Reduce, gradients: Sequence[Tensor]) -> None:
        self._sums[reduce.stage].append(self._link.isum(gradients, self._program.rank, reduce.ranks))

    def _reduce_norm(self, action: Norm) -> None:
        mine = [stage for stage, owner in enumerate(action.owners) if owner == self._program.rank]
        found = {stage: squared_norm(self._stages[stage].gradients()) for stage in mine}
        self._await_device()
        squares = torch.zeros(len(action.owners), dtype=torch.float64)
        for stage, square in found.items():
            squares[stage] = square.item()
        tree_sum(self._control, squares, self._program.rank, action.ranks, self._timeout_s)
        self._norm = math.sqrt(sum(squares.tolist()))

    def _await_device(self) -> None:
        try:
            self._timeline.wait(self._timeout_s)
        except TimeoutError:
            self._current = self._program.actions[self._timeline.passed()]
            raise

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
        ends = self._timeline.ends()  # on a GPU, of the actions that it has done
        begun = list(zip([0.0, *ends], self._program.actions[: self._begun], strict=False))
        log = "".join(f"\n  {start:10.4f} s  {action}" for start, action in begun[-LOGGED_ACTIONS:])
        return f"{what}: {reason}, {now_s:.4f} s into the iteration; last actions of this rank:{log or ' none'}"


def overlapping_sums(actions: Sequence[Action], link: Link) -> dict[Task, Reduce]:
    """The all-reduces of `early_sums` that a link begins while the backward runs, by that task."""
    return early_sums(actions) if link.overlaps_sums else {}


def early_sums(actions: Sequence[Action]) -> dict[Task, Reduce]:
    """The all-reduces that can begin with the last backward of their stage here, by that task.

    All ranks begin all-reduces in the same order, so none may begin before those that come first.
    """
    last = {a.stage: index for index, a in enumerate(actions) if isinstance(a, Task) and a.kind == "B"}
    found: dict[Task, Reduce] = {}
    latest = -1
    for reduce in (action for action in actions if isinstance(action, Reduce)):
        index = last.get(reduce.stage, -1)
        task = actions[index]
        if index <= latest or not isinstance(task, Task):
            break
        found[task], latest = reduce, index
    return found


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
