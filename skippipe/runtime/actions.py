"""The instruction set of the runtime: one rank's program for one iteration, printable and provable.

Every action has a short code, the same in listings, logs, traces and messages: `3F0` is the forward of microbatch 3
at hop 0 of its route, `3L` its head and loss, `3B0` the backward, `3E` and `3e` embedding and its backward if the
route begins away from the source; `SEND 3F0 -> 5`, `RECV 3F0 <- 2`, `REDUCE s1`, `NORM`, `STEP`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from skippipe.errors import unexpected

Kind = Literal["E", "F", "L", "B", "e"]

TAGS_PER_MICROBATCH = 256
"""Tags 0 to 255 are reserved for collectives; those of microbatch m begin at 256 (m + 1)."""
MAX_HOP = TAGS_PER_MICROBATCH // 2 - 2
MAX_MICROBATCH = 2**31 // TAGS_PER_MICROBATCH - 2


@dataclass(frozen=True, slots=True)
class Task:
    """One computation of one microbatch; it also identifies its result."""

    kind: Kind
    """E embedding, F forward, L head and loss, B backward, e backward of the embedding"""
    microbatch: int
    hop: int
    """position in the microbatch's route; 0 for E, L and e"""
    node: int
    stage: int
    """the stage that `node` serves"""

    def __str__(self) -> str:
        return f"{self.microbatch}{self.kind}{self.hop if self.kind in 'FB' else ''}"


@dataclass(frozen=True, slots=True)
class Send:
    """Send the result of `task`, which ran on this rank."""

    task: Task
    to_rank: int

    def __str__(self) -> str:
        return f"SEND {self.task} -> {self.to_rank}"


@dataclass(frozen=True, slots=True)
class Recv:
    """Wait for the result of `task`, which ran on another rank."""

    task: Task
    from_rank: int

    def __str__(self) -> str:
        return f"RECV {self.task} <- {self.from_rank}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """All-reduce a stage's gradients over the two or more ranks that serve it."""

    stage: int
    ranks: tuple[int, ...]
    """in ring order, that of the plan's `stages`"""

    def __str__(self) -> str:
        return f"REDUCE s{self.stage}"


@dataclass(frozen=True, slots=True)
class Norm:
    """All-reduce the norm of the full model's gradient."""

    ranks: tuple[int, ...]
    owners: tuple[int | None, ...]
    """the rank that contributes each stage's norm, the lowest that serves it; None for a stage without visits"""

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
    """One rank's actions of one iteration, in order."""

    rank: int
    actions: tuple[Action, ...]
    incoming: Mapping[int, tuple[Task, ...]]
    """per sending rank the tasks whose results it sends to this one, in sending order"""

    def __str__(self) -> str:
        return f"rank {self.rank}: " + ", ".join(str(action) for action in self.actions)


def message_tag(task: Task) -> int:
    """Tag of the message with the result of `task`: unique in an iteration, from 256 to 2**31 - 1.

    Raises:
        InputError: the microbatch's number or the hop is out of range.

    """
    if not 0 <= task.microbatch <= MAX_MICROBATCH:
        raise unexpected("microbatch", task.microbatch, f"a number from 0 to {MAX_MICROBATCH}")
    if not 0 <= task.hop <= MAX_HOP:
        raise unexpected(f"microbatch {task.microbatch}", f"hop {task.hop}", f"a route of at most {MAX_HOP + 1} stages")
    leg = {"E": 0, "L": 1, "F": 2 + 2 * task.hop, "B": 3 + 2 * task.hop}[task.kind]
    return TAGS_PER_MICROBATCH * (task.microbatch + 1) + leg
