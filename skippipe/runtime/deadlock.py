"""Proof that programs cannot deadlock, whatever the network does; pure, without torch.

Assumptions about the executor (`skippipe.runtime.executor`): one thread per rank runs its program in order; RECV waits
for its message; SEND waits until at most `sends_in_flight - 1` of the rank's sends are in flight, oldest first;
a collective waits for all its members. About the network: a message may stay in flight until its receive is posted
(rendezvous). A rank posts at most `recv_buffers` receives per sender, in that sender's order; it posts the next one
when the task that consumes a message starts.

Each of these is a precedence between events; if the graph is acyclic, no rank can wait forever.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from skippipe.errors import DeadlockError, unexpected
from skippipe.runtime.actions import Norm, Program, Recv, Reduce, Send, Task

MAX_SHOWN = 24


def prove_deadlock_free(programs: Sequence[Program], recv_buffers: int, sends_in_flight: int) -> None:
    """Prove that the programs cannot deadlock.

    Args:
        programs: the program of rank `r` at index `r`.
        recv_buffers: limit on posted, unconsumed receives of a rank, per sender.
        sends_in_flight: limit on a rank's sends in flight.

    Raises:
        DeadlockError: a cycle of waiting actions, named by their codes, or an action whose input never arrives.
        InputError: a limit below 1.

    """
    cycle = _find_cycle(_events(programs, recv_buffers, sends_in_flight))
    if not cycle:
        return
    shown = cycle[:MAX_SHOWN] + ([f"... {len(cycle) - MAX_SHOWN} more"] if len(cycle) > MAX_SHOWN else [])
    raise DeadlockError(
        f"deadlock with recv_buffers={recv_buffers} and sends_in_flight={sends_in_flight}:\n  "
        + "\n  waits for ".join([*shown, cycle[0]])
    )


def min_recv_buffers(programs: Sequence[Program], recv_buffers: int, sends_in_flight: int) -> int | None:
    """Smallest number of receive buffers, at least `recv_buffers`, with which the programs cannot deadlock.

    More sends in flight never help where more buffers do not: once all receives are posted, no send waits.

    Returns:
        `recv_buffers` if it suffices; None if no number does.

    Raises:
        DeadlockError: an action's input never arrives.
        InputError: a limit below 1.

    """

    def fits(buffers: int) -> bool:
        return not _find_cycle(_events(programs, buffers, sends_in_flight))

    if fits(recv_buffers):
        return recv_buffers
    all_posted = max((len(tasks) for program in programs for tasks in program.incoming.values()), default=1)
    low, high = recv_buffers + 1, max(all_posted, recv_buffers + 1)
    if not fits(high):
        return None
    while low < high:  # feasibility is monotone in the number of buffers
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def peak_recv_buffers(programs: Sequence[Program], recv_buffers: int) -> tuple[int, ...]:
    """Peak number of receive buffers of each rank; all windows are full at the start of an iteration."""
    return tuple(sum(min(recv_buffers, len(tasks)) for tasks in program.incoming.values()) for program in programs)


@dataclass
class _EventGraph:
    """Events by number, with their predecessors."""

    names: list[str] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    """the rank whose thread runs an event; None for transfers and collectives"""
    before: list[list[int]] = field(default_factory=list)

    def add(self, name: str, rank: int | None) -> int:
        self.names.append(name)
        self.ranks.append(rank)
        self.before.append([])
        return len(self.names) - 1


def _events(programs: Sequence[Program], recv_buffers: int, sends_in_flight: int) -> _EventGraph:
    for name, limit in (("recv_buffers", recv_buffers), ("sends_in_flight", sends_in_flight)):
        if limit < 1:
            raise unexpected(name, limit, "at least 1")
    _check_messages(programs)
    for program in programs:
        _check_inputs(program)
    events = _EventGraph()
    transfers = {
        (task, program.rank): events.add(f"transfer of {task} from rank {sender} to {program.rank}", None)
        for program in programs
        for sender, tasks in program.incoming.items()
        for task in tasks
    }
    collectives: dict[Reduce | Norm, int] = {}
    for program in programs:
        freeing = _add_rank(events, program, transfers, collectives, sends_in_flight)
        for sender, tasks in program.incoming.items():
            for task, event in zip(tasks[recv_buffers:], freeing[sender], strict=False):
                events.before[transfers[task, program.rank]].append(event)
    return events


def _add_rank(
    events: _EventGraph,
    program: Program,
    transfers: dict[tuple[Task, int], int],
    collectives: dict[Reduce | Norm, int],
    sends_in_flight: int,
) -> dict[int, list[int]]:
    """Add a rank's program; return per sender the events that free its receive buffers, in order."""
    previous: int | None = None
    in_flight: list[int] = []
    arrived_from: dict[int, int] = {}
    freeing: dict[int, list[int]] = defaultdict(list)
    for action in program.actions:
        if isinstance(action, Reduce | Norm):
            if action not in collectives:
                collectives[action] = events.add(f"{action} on ranks {_listed(action.ranks)}", None)
            event = collectives[action]
        else:
            event = events.add(f"{action} on rank {program.rank}", program.rank)
        if previous is not None:
            events.before[event].append(previous)
        match action:
            case Send():
                transfer = transfers[action.task, action.to_rank]
                if len(in_flight) >= sends_in_flight:
                    events.before[event].append(in_flight[-sends_in_flight])
                in_flight.append(transfer)
                events.before[transfer].append(event)
            case Recv():
                events.before[event].append(transfers[action.task, program.rank])
                arrived_from[action.task.microbatch] = action.from_rank
            case Task() if action.microbatch in arrived_from:
                freeing[arrived_from.pop(action.microbatch)].append(event)
            case _:
                pass
        previous = event
    return freeing


def _check_messages(programs: Sequence[Program]) -> None:
    """Check that SENDs, RECVs and `incoming` match, and that collectives have all their members."""
    sent: dict[tuple[int, int], list[Task]] = defaultdict(list)
    received: dict[tuple[int, int], list[Task]] = defaultdict(list)
    joined: dict[Reduce | Norm, list[int]] = defaultdict(list)
    for rank, program in enumerate(programs):
        if program.rank != rank:
            _fail(f"the program at index {rank} is that of rank {program.rank}")
        for action in program.actions:
            match action:
                case Send(task, to_rank):
                    sent[rank, to_rank].append(task)
                case Recv(task, from_rank):
                    received[from_rank, rank].append(task)
                case Reduce() | Norm():
                    joined[action].append(rank)
                case _:
                    pass
    listed = {(sender, p.rank): list(tasks) for p in programs for sender, tasks in p.incoming.items() if tasks}
    for sender, receiver in sorted({*sent, *received, *listed}):
        pair = (sender, receiver)
        _check_link(*pair, sent[pair], received[pair], listed.get(pair, []))
    for collective, ranks in joined.items():
        if sorted(ranks) != sorted(collective.ranks):
            _fail(f"{collective} of ranks {_listed(collective.ranks)} is in the programs of ranks {_listed(ranks)}")


def _check_link(sender: int, receiver: int, sent: list[Task], received: list[Task], listed: list[Task]) -> None:
    for task in _missing(sent, received):
        _fail(f"SEND {task} -> {receiver} on rank {sender} has no RECV")
    for task in _missing(received, sent):
        _fail(f"RECV {task} <- {sender} on rank {receiver} has no SEND")
    if sent != listed:
        _fail(f"rank {receiver} receives the messages of rank {sender} out of order")


def _missing(these: list[Task], those: list[Task]) -> Iterator[Task]:
    """Those of `these` that are not in `those`, or duplicated."""
    left = set(those)
    for task in these:
        if task not in left:
            yield task
        left.discard(task)


def _check_inputs(program: Program) -> None:
    """Check that every task and SEND has its input on its rank, and every message a task that consumes it."""
    held: dict[int, Task] = {}
    arrived: set[int] = set()
    for action in program.actions:
        match action:
            case Send(task, _):
                if task.microbatch in arrived or held.pop(task.microbatch, None) != task:
                    _fail(f"{action} on rank {program.rank} does not follow {task}")
            case Recv(task, _):
                if task.microbatch in held:
                    _fail(f"{action} on rank {program.rank} precedes the use of {held[task.microbatch]}")
                held[task.microbatch] = task
                arrived.add(task.microbatch)
            case Task():
                given = held.pop(action.microbatch, None)
                if not _follows(given, action):
                    _fail(str(unexpected(f"{action} on rank {program.rank}", str(given or "nothing"), "its input")))
                held[action.microbatch] = action
                arrived.discard(action.microbatch)
            case _:
                pass
    for microbatch in sorted(arrived):
        _fail(f"rank {program.rank} receives {held[microbatch]}, which none of its tasks consumes")


def _follows(given: Task | None, task: Task) -> bool:
    """Whether `task` consumes the result of `given`; None: no result pending."""
    if task.kind == "E":
        return given is None
    if given is None:
        return task.kind == "F" and task.hop == 0
    wanted: dict[str, list[tuple[str, int | None]]] = {
        "F": [("F", task.hop - 1)] if task.hop else [("E", 0)],
        "L": [("F", None)],
        "B": [("L", 0), ("B", task.hop + 1)],
        "e": [("B", 0)],
    }
    return any(given.kind == kind and hop in (None, given.hop) for kind, hop in wanted[task.kind])


def _find_cycle(events: _EventGraph) -> list[str]:
    """Names of the events of a cycle, each waiting for the next; empty if the graph is acyclic."""
    open_before = [len(before) for before in events.before]
    after: list[list[int]] = [[] for _ in events.names]
    for event, before in enumerate(events.before):
        for earlier in before:
            after[earlier].append(event)
    ready = [event for event, count in enumerate(open_before) if not count]
    while ready:
        for event in after[ready.pop()]:
            open_before[event] -= 1
            if not open_before[event]:
                ready.append(event)
    stuck = next((event for event, count in enumerate(open_before) if count), None)
    if stuck is None:
        return []
    path: list[int] = []
    index: dict[int, int] = {}
    while stuck not in index:
        index[stuck] = len(path)
        path.append(stuck)
        blockers = [event for event in events.before[stuck] if open_before[event]]
        # A blocker on another thread explains more than the order of its own.
        foreign = [event for event in blockers if events.ranks[event] != events.ranks[stuck]]
        stuck = (foreign or blockers)[0]
    return [events.names[event] for event in _shortened(path[index[stuck] :], events.ranks)]


def _shortened(cycle: list[int], ranks: Sequence[int | None]) -> list[int]:
    """The cycle without events between two others of their own thread."""
    around = zip([cycle[-1], *cycle[:-1]], cycle, [*cycle[1:], cycle[0]], strict=True)
    kept = [here for last, here, following in around if not ranks[last] == ranks[here] == ranks[following] is not None]
    return kept or cycle


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)


def _fail(what: str) -> NoReturn:
    raise DeadlockError(f"inconsistent programs: {what}")
