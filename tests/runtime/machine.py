"""A machine that runs programs as the executor does, over a network in which nothing moves until both ends are ready.

Written from the executor's rules, not from the proof: a rank that proceeds can only help others, so running whatever
can run, in any order, ends with all programs complete or in a deadlock.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from skippipe.runtime.actions import Action, Norm, Program, Recv, Reduce, Send, Task


class Rank:
    """One rank's state."""

    def __init__(self, program: Program, buffers: int) -> None:
        self.program = program
        self.position = 0
        self.posted = {(sender, task) for sender, tasks in program.incoming.items() for task in tasks[:buffers]}
        self.next = dict.fromkeys(program.incoming, buffers)
        self.origin: dict[int, int] = {}
        self.sends: list[tuple[int, Task]] = []

    @property
    def action(self) -> Action | None:
        """The rank's current action; None at the end."""
        actions = self.program.actions
        return actions[self.position] if self.position < len(actions) else None


def hangs(programs: Sequence[Program], buffers: int, sends_in_flight: int, rng: Random | None = None) -> bool:
    """Whether the programs deadlock; ranks are served in a random order."""
    ranks = [Rank(program, buffers) for program in programs]
    delivered: set[tuple[int, int, Task]] = set()

    def deliver() -> bool:
        moved = False
        for r, rank in enumerate(ranks):
            for to, task in rank.sends:
                if (r, to, task) not in delivered and (r, task) in ranks[to].posted:
                    delivered.add((r, to, task))
                    moved = True
        return moved

    def advance(r: int) -> bool:
        rank = ranks[r]
        match rank.action:
            case None:
                return False
            case Recv(task, sender):
                if (sender, r, task) not in delivered:
                    return False
                rank.origin[task.microbatch] = sender
            case Send(task, to):
                if len(rank.sends) >= sends_in_flight:
                    to_before, before = rank.sends[-sends_in_flight]
                    if (r, to_before, before) not in delivered:
                        return False
                rank.sends.append((to, task))
            case Task() as task:
                origin = rank.origin.pop(task.microbatch, None)
                if origin is not None:
                    tasks = rank.program.incoming[origin]
                    if rank.next[origin] < len(tasks):
                        rank.posted.add((origin, tasks[rank.next[origin]]))
                    rank.next[origin] += 1
            case Reduce() | Norm() as collective:
                if any(ranks[other].action != collective for other in collective.ranks):
                    return False
                for other in collective.ranks:
                    ranks[other].position += 1
                return True
            case _:
                pass
        rank.position += 1
        return True

    moving = True
    while moving:
        moving = deliver()
        order = list(range(len(ranks)))
        if rng is not None:
            rng.shuffle(order)
        for r in order:
            while advance(r):
                moving = True
    done = all(rank.action is None for rank in ranks)
    return not done or any((r, *send) not in delivered for r, rank in enumerate(ranks) for send in rank.sends)


def relinked(actions: Sequence[Sequence[Action]]) -> tuple[Program, ...]:
    """Programs of these action lists, with `incoming` in sending order."""
    sent: dict[int, dict[int, list[Task]]] = {rank: {} for rank in range(len(actions))}
    for rank, row in enumerate(actions):
        for action in row:
            if isinstance(action, Send):
                sent[action.to_rank].setdefault(rank, []).append(action.task)
    return tuple(
        Program(rank, tuple(row), {sender: tuple(tasks) for sender, tasks in sorted(sent[rank].items())})
        for rank, row in enumerate(actions)
    )


def blocks(program: Program) -> tuple[list[list[Action]], list[Action]]:
    """The tasks of a program, each with its RECV and SEND, and the actions after them."""
    found: list[list[Action]] = []
    tail: list[Action] = []
    for action in program.actions:
        match action:
            case Recv():
                found.append([action])
            case Task():
                if found and isinstance(found[-1][-1], Recv):
                    found[-1].append(action)
                else:
                    found.append([action])
            case Send():
                found[-1].append(action)
            case _:
                tail.append(action)
    return found, tail


def reordered(rng: Random, programs: Sequence[Program], swaps: int) -> tuple[Program, ...]:
    """The programs with some tasks moved, each with its RECV and SEND; local hand-overs stay in order."""
    cut = [blocks(program) for program in programs]
    for _ in range(swaps):
        rows, _ = cut[rng.randrange(len(cut))]
        if len(rows) < 2:
            continue
        i = rng.randrange(len(rows) - 1)
        j = min(len(rows) - 1, i + rng.choice([1, 1, 2, 5]))
        moved = rows[:i] + rows[i + 1 : j + 1] + [rows[i]] + rows[j + 1 :]
        if in_order(moved):
            rows[:] = moved
    return relinked([[a for block in rows for a in block] + tail for rows, tail in cut])


def in_order(rows: Sequence[Sequence[Action]]) -> bool:
    """Whether every microbatch visits a rank in the order of its route."""
    rank_of_kind = {"E": 0, "F": 1, "L": 2, "B": 3, "e": 4}
    last: dict[int, tuple[int, int]] = {}
    for block in rows:
        for task in block:
            if isinstance(task, Task):
                key = (rank_of_kind[task.kind], -task.hop if task.kind == "B" else task.hop)
                if last.get(task.microbatch, key) > key:
                    return False
                last[task.microbatch] = key
    return True


def random_ranks(rng: Random, nodes: int, most: int, world: int | None = None) -> list[int]:
    """Ranks that serve `nodes` nodes, `world` of them or up to `most`; every one serves some."""
    world = world or rng.randint(1, min(nodes, most))
    ranks = [*range(world), *(rng.randrange(world) for _ in range(nodes - world))]
    rng.shuffle(ranks)
    return ranks


def visits(plan: dict[str, Any]) -> Counter[int]:
    """How many microbatches visit each stage."""
    return Counter(s for b in plan["microbatches"] for s in b["stages"])
