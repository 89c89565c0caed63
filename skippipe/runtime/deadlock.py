"""Proof that programs run to the end, whatever the network does; pure, and without torch.

What is assumed of the executor (`skippipe.runtime.executor`): one thread per rank goes through its list; RECV waits
for its message; SEND waits until at most `sends_in_flight - 1` of the rank's sends are under way, the oldest first;
a collective waits for all its members. Of the network: a message can be under way for ever as long as its receive is
not posted (rendezvous). A rank has at most `recv_buffers` receives of each sender posted, in that sender's order; as
soon as a task begins that needs one of the messages, the next receive is posted.

Each of these is an edge between events; where the events have no circle, nobody can wait for ever.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from skippipe.errors import DeadlockError, InputError
from skippipe.runtime.actions import Norm, Program, Recv, Reduce, Send, Task

MAX_SHOWN = 24


def prove_deadlock_free(programs: Sequence[Program], recv_buffers: int, sends_in_flight: int) -> None:
    """Show that the programs cannot hang.

    Args:
        programs: the program of rank `r` at index `r`.
        recv_buffers: the most receives that a rank has posted and not yet consumed, per sending rank.
        sends_in_flight: the most sends of a rank that are under way.

    Raises:
        DeadlockError: a circle of waiting, named in action codes, or an action that waits for what never comes.
        InputError: a limit below 1.

    """
    cycle = _find_cycle(_events(programs, recv_buffers, sends_in_flight))
    if not cycle:
        return
    shown = cycle[:MAX_SHOWN] + ([f"... {len(cycle) - MAX_SHOWN} more"] if len(cycle) > MAX_SHOWN else [])
    raise DeadlockError(
        f"with recv_buffers={recv_buffers} and sends_in_flight={sends_in_flight} these would wait for each other for "
        "ever:\n  " + "\n  waits for ".join([*shown, cycle[0]])
    )


def min_recv_buffers(programs: Sequence[Program], recv_buffers: int, sends_in_flight: int) -> int | None:
    """Least number of receive buffers, from `recv_buffers` upwards, with which the programs cannot hang.

    Where all receives are posted no send ever waits, so that more sends in flight would not help where that does not.

    Returns:
        `recv_buffers` where it is enough; None where no number is.

    Raises:
        DeadlockError: an action waits for what never comes.
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
    while low < high:  # more buffers never take an order away, so the least can be halved down to
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def peak_recv_buffers(programs: Sequence[Program], recv_buffers: int) -> tuple[int, ...]:
    """The most receive buffers that each rank has at one time: all windows are filled when an iteration begins."""
    return tuple(sum(min(recv_buffers, len(tasks)) for tasks in program.incoming.values()) for program in programs)


@dataclass
class _EventGraph:
    """Events by number, and which of them must come before which."""

    names: list[str] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    """the rank whose thread an event belongs to; None for transfers and collectives"""
    before: list[list[int]] = field(default_factory=list)

    def add(self, name: str, rank: int | None) -> int:
        self.names.append(name)
        self.ranks.append(rank)
        self.before.append([])
        return len(self.names) - 1


def _events(programs: Sequence[Program], recv_buffers: int, sends_in_flight: int) -> _EventGraph:
    for name, limit in (("recv_buffers", recv_buffers), ("sends_in_flight", sends_in_flight)):
        if limit < 1:
            raise InputError(f"{name} is {limit}, at least 1 is expected")
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
        begun = _add_rank(events, program, transfers, collectives, sends_in_flight)
        for sender, tasks in program.incoming.items():
            for task, freeing in zip(tasks[recv_buffers:], begun[sender], strict=False):
                events.before[transfers[task, program.rank]].append(freeing)
    return events


def _add_rank(
    events: _EventGraph,
    program: Program,
    transfers: dict[tuple[Task, int], int],
    collectives: dict[Reduce | Norm, int],
    sends_in_flight: int,
) -> dict[int, list[int]]:
    """Add a rank's thread; return per sender the events that each free a buffer for its messages, in order."""
    previous: int | None = None
    under_way: list[int] = []
    arrived_from: dict[int, int] = {}
    begun: dict[int, list[int]] = defaultdict(list)
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
                if len(under_way) >= sends_in_flight:
                    events.before[event].append(under_way[-sends_in_flight])
                under_way.append(transfer)
                events.before[transfer].append(event)
            case Recv():
                events.before[event].append(transfers[action.task, program.rank])
                arrived_from[action.task.microbatch] = action.from_rank
            case Task() if action.microbatch in arrived_from:
                begun[arrived_from.pop(action.microbatch)].append(event)
            case _:
                pass
        previous = event
    return begun


def _check_messages(programs: Sequence[Program]) -> None:
    """Every SEND has its RECV, the lists of messages agree with both, and collectives have all their members."""
    sent: dict[tuple[int, int], list[Task]] = defaultdict(list)
    received: dict[tuple[int, int], list[Task]] = defaultdict(list)
    joined: dict[Reduce | Norm, list[int]] = defaultdict(list)
    for rank, program in enumerate(programs):
        if program.rank != rank:
            _fail(f"the program at place {rank} is that of rank {program.rank}")
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
            _fail(f"{collective} of ranks {_listed(collective.ranks)} stands in the lists of ranks {_listed(ranks)}")


def _check_link(sender: int, receiver: int, sent: list[Task], received: list[Task], listed: list[Task]) -> None:
    for task in _missing(sent, received):
        _fail(f"SEND {task} -> {receiver} on rank {sender} has no RECV")
    for task in _missing(received, sent):
        _fail(f"RECV {task} <- {sender} on rank {receiver} has no SEND")
    if sent != listed:
        _fail(f"rank {receiver} expects the messages of rank {sender} in another order than that of its SENDs")


def _missing(these: list[Task], those: list[Task]) -> Iterator[Task]:
    """What of `these` is not in `those`, or is here twice."""
    left = set(those)
    for task in these:
        if task not in left:
            yield task
        left.discard(task)


def _check_inputs(program: Program) -> None:
    """Every task and SEND finds on its rank what it needs, and every message its task."""
    held: dict[int, Task] = {}
    arrived: set[int] = set()
    for action in program.actions:
        match action:
            case Send(task, _):
                if task.microbatch in arrived or held.pop(task.microbatch, None) != task:
                    _fail(f"{action} on rank {program.rank} comes when {task} has not just run there")
            case Recv(task, _):
                if task.microbatch in held:
                    _fail(f"{action} on rank {program.rank} comes when {held[task.microbatch]} still waits there")
                held[task.microbatch] = task
                arrived.add(task.microbatch)
            case Task():
                given = held.pop(action.microbatch, None)
                if not _follows(given, action):
                    _fail(f"{action} on rank {program.rank} finds {given or 'nothing'} instead of its input")
                held[action.microbatch] = action
                arrived.discard(action.microbatch)
            case _:
                pass
    for microbatch in sorted(arrived):
        _fail(f"no task of rank {program.rank} needs {held[microbatch]}, which it receives")


def _follows(given: Task | None, task: Task) -> bool:
    """Whether `task` takes the result of `given`; None stands for nothing, or for what ends a microbatch's way."""
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
    """Names of events each of which waits for the next, the last for the first; empty where there is no circle."""
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
    place: dict[int, int] = {}
    while stuck not in place:
        place[stuck] = len(path)
        path.append(stuck)
        held_up_by = [event for event in events.before[stuck] if open_before[event]]
        # What holds it up besides its own thread says more than that thread's order.
        foreign = [event for event in held_up_by if events.ranks[event] != events.ranks[stuck]]
        stuck = (foreign or held_up_by)[0]
    return [events.names[event] for event in _shortened(path[place[stuck] :], events.ranks)]


def _shortened(cycle: list[int], ranks: Sequence[int | None]) -> list[int]:
    """The circle without events that only stand between two others of their own thread."""
    around = zip([cycle[-1], *cycle[:-1]], cycle, [*cycle[1:], cycle[0]], strict=True)
    kept = [here for last, here, following in around if not ranks[last] == ranks[here] == ranks[following] is not None]
    return kept or cycle


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)


def _fail(what: str) -> NoReturn:
    raise DeadlockError(f"the programs do not run to the end: {what}")
