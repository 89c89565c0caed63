"""The instruction set of the runtime: what one rank does in one iteration, as a list that can be printed and proved.

Every action has a short code, the same in listings, logs, traces and messages: `3F0` is the forward of microbatch 3
at the first place of its route, `3L` its head and loss, `3B0` the backward, `3E` and `3e` embedding and its backward
where the route begins away from the source; `SEND 3F0 -> 5`, `RECV 3F0 <- 2`, `REDUCE s1`, `NORM`, `STEP`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from skippipe.errors import InputError

Kind = Literal["E", "F", "L", "B", "e"]

TAGS_PER_MICROBATCH = 256
"""Tags 0 to 255 belong to collectives, those of microbatch m begin at 256 (m + 1)."""
MAX_HOP = TAGS_PER_MICROBATCH // 2 - 2
MAX_MICROBATCH = 2**31 // TAGS_PER_MICROBATCH - 2


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work of one microbatch; also the name of what it produces."""

    kind: Kind
    """E embedding, F forward, L head and loss, B backward, e backward of the embedding"""
    microbatch: int
    hop: int
    """place in the microbatch's route; 0 for E, L and e"""
    node: int
    stage: int
    """the stage that `node` serves"""

    def __str__(self) -> str:
        return f"{self.microbatch}{self.kind}{self.hop if self.kind in 'FB' else ''}"


@dataclass(frozen=True, slots=True)
class Send:
    """Send what `task`, run on this rank, has produced."""

    task: Task
    to_rank: int

    def __str__(self) -> str:
        return f"SEND {self.task} -> {self.to_rank}"


@dataclass(frozen=True, slots=True)
class Recv:
    """Wait for what `task`, run on another rank, has produced."""

    task: Task
    from_rank: int

    def __str__(self) -> str:
        return f"RECV {self.task} <- {self.from_rank}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum a stage's gradients over the ranks that serve it, of which there are two or more."""

    stage: int
    ranks: tuple[int, ...]
    """in the order of the ring, which is that of the plan's `stages`"""

    def __str__(self) -> str:
        return f"REDUCE s{self.stage}"


@dataclass(frozen=True, slots=True)
class Norm:
    """Agree on the norm of the whole model's gradient."""

    ranks: tuple[int, ...]
    owners: tuple[int | None, ...]
    """the rank that counts each stage, the lowest that serves it; None for a stage that is absent"""

    def __str__(self) -> str:
        return "NORM"


@dataclass(frozen=True, slots=True)
class Step:
    """Run the optimizer."""

    def __str__(self) -> str:
        return "STEP"


Action = Task | Send | Recv | Reduce | Norm | Step


@dataclass(frozen=True)
class Program:
    """Everything that one rank does in one iteration, in order."""

    rank: int
    actions: tuple[Action, ...]
    incoming: Mapping[int, tuple[Task, ...]]
    """per sending rank the producers of its messages to this one, in the order in which it sends them"""

    def __str__(self) -> str:
        return f"rank {self.rank}: " + ", ".join(str(action) for action in self.actions)


def message_tag(task: Task) -> int:
    """Tag of the message that carries what `task` produced: unique in an iteration, from 256 to 2**31 - 1.

    Raises:
        InputError: the microbatch's number or the place in its route is too large for that.

    """
    if not 0 <= task.microbatch <= MAX_MICROBATCH:
        raise InputError(f"microbatch {task.microbatch}: a number from 0 to {MAX_MICROBATCH} is expected")
    if not 0 <= task.hop <= MAX_HOP:
        raise InputError(f"microbatch {task.microbatch}: a route of at most {MAX_HOP + 1} stages is expected")
    leg = {"E": 0, "L": 1, "F": 2 + 2 * task.hop, "B": 3 + 2 * task.hop}[task.kind]
    return TAGS_PER_MICROBATCH * (task.microbatch + 1) + leg
