"""Lowering of a plan to one program per rank. Pure, without torch.

A rank runs the tasks of its nodes in the plan's order, which is never changed: where the plan has the rank's nodes on
one processor, that is the order of this processor, else the orders of the nodes, merged by start time. A result is sent
right after the task that produces it, and received right before the task that consumes it. Gradients are all-reduced
after a rank's last transfer, stage by stage in the same order on every rank.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from skippipe._scheduler import Microbatch, Plan
from skippipe.errors import InputError, unexpected
from skippipe.ranks import NO_RANK
from skippipe.runtime.actions import Action, Norm, Program, Recv, Reduce, Send, Step, Task, message_tag

Chain = tuple[Task, ...]
"""The tasks of one microbatch; each consumes the result of the previous one."""
Moment = tuple[float, int, int]
"""Sort key of a task: seconds; at equal times embeddings first; then the index in the plan."""


def lower(plan: Plan, rank_of: Sequence[int]) -> tuple[Program, ...]:
    """Lower a plan to the program of every rank.

    Args:
        plan: routes, and the order of every node's tasks.
        rank_of: the rank that serves node `n`, at index `n` (`skippipe.ranks.assign_ranks`); `NO_RANK` if it serves
            no stage.

    Returns:
        The program of rank `r` at index `r`; `skippipe.runtime.deadlock.prove_deadlock_free` proves that they cannot
        deadlock.

    Raises:
        InputError: tasks that do not match the routes, numbers too large for a tag, or a `rank_of` that does not
            match the plan.

    """
    world = _world_size(rank_of, plan)
    stages = plan.stages
    chains = [_chain(microbatch) for microbatch in plan.microbatches]
    order = _merged(_queues(plan, chains), chains)
    reached = {0, *(stage for microbatch in plan.microbatches for stage in microbatch.stages)}
    tails = [_tail(rank, stages, reached, rank_of, world) for rank in range(world)]
    return _programs(order, chains, rank_of, tails)


def lower_evaluation(plan: Plan, rank_of: Sequence[int], microbatches: int) -> tuple[Program, ...]:
    """Lower an evaluation: microbatches run through all stages, forward and loss only.

    Args:
        plan: its allocation; its routes are not used.
        rank_of: as in `lower`.
        microbatches: their number; microbatch `m` visits replica `m` modulo the number of replicas at every stage.

    Returns:
        The program of rank `r` at index `r`; no gradients, no collectives.

    Raises:
        InputError: as in `lower`.

    """
    world = _world_size(rank_of, plan)
    stages = [(s, nodes) for s, nodes in enumerate(plan.stages) if nodes]
    chains, moments = [], {}
    for m in range(microbatches):
        source = stages[0][1][m % len(stages[0][1])]
        chain = [Task("F", m, hop, nodes[m % len(nodes)], s) for hop, (s, nodes) in enumerate(stages)]
        chain.append(Task("L", m, 0, source, 0))
        _check_tags(chain)
        chains.append(tuple(chain))
        # As if every task took one time unit and every source injected one microbatch per unit.
        moments.update({task: (m // len(stages[0][1]) + position, m) for position, task in enumerate(chain)})
    order = sorted(moments, key=lambda task: moments[task])
    return _programs(order, chains, rank_of, [()] * world)


def _world_size(rank_of: Sequence[int], plan: Plan) -> int:
    nodes, needed = len(plan.cluster), {node for stage in plan.stages for node in stage}
    if len(rank_of) != nodes:
        raise unexpected("rank_of", len(rank_of), f"one entry for each of the plan's {nodes} nodes")
    world = max(rank_of) + 1
    serving = {rank for node, rank in enumerate(rank_of) if rank != NO_RANK or node in needed}
    if serving != set(range(world)):
        raise unexpected("rank_of", list(rank_of), "ranks from 0 that each serve a node")
    return world


def _chain(microbatch: Microbatch) -> Chain:
    """All tasks of a microbatch in order."""
    b, source = microbatch.id, microbatch.source
    visits = list(enumerate(zip(microbatch.nodes, microbatch.stages, strict=True)))
    away = microbatch.nodes[0] != source
    chain = [
        *([Task("E", b, 0, source, 0)] if away else []),
        *(Task("F", b, hop, node, stage) for hop, (node, stage) in visits),
        Task("L", b, 0, source, 0),
        *(Task("B", b, hop, node, stage) for hop, (node, stage) in reversed(visits)),
        *([Task("e", b, 0, source, 0)] if away else []),
    ]
    _check_tags(chain)
    return tuple(chain)


def _check_tags(chain: Iterable[Task]) -> None:
    for task in chain:
        if task.kind != "e":
            message_tag(task)


def _queues(plan: Plan, chains: Iterable[Chain]) -> list[list[tuple[Moment, Task]]]:
    """Queues of tasks with their sort keys, in fixed order: one per processor, one per task the plan does not list."""
    known: dict[tuple[int, str, int], Task] = {(t.microbatch, t.kind, t.hop): t for chain in chains for t in chain}
    by_processor: dict[int, list[tuple[Moment, Task]]] = defaultdict(list)
    processors, planned = plan.cluster.processors.tolist(), plan.tasks
    for index, entry in enumerate(planned):
        task = known.pop((entry.microbatch, entry.kind, entry.hop), None)
        if task is None or task.node != entry.node:
            found = f"{entry.microbatch}{entry.kind}{entry.hop} on node {entry.node}"
            raise unexpected(f"tasks[{index}]", found, "each task on the microbatch's route once")
        by_processor[processors[task.node]].append(((entry.start_s, 1, index), task))
    missing = sorted(str(task) for task in known.values() if task.kind not in "Ee")
    if missing:
        raise InputError(f"missing {', '.join(missing)}, which the routes require", key="tasks")
    return [*by_processor.values(), *_embeddings(plan, known.values(), by_processor)]


def _embeddings(
    plan: Plan, tasks: Iterable[Task], by_processor: Mapping[int, list[tuple[Moment, Task]]]
) -> list[list[tuple[Moment, Task]]]:
    """Queues of the embeddings, which a plan does not list: in time for the first forward, after the last backward."""
    wanted = {task.microbatch: task.node for task in tasks}
    if not wanted:
        return []
    travel, processors = plan.cluster.transfer_matrix(), plan.cluster.processors.tolist()
    found: list[list[tuple[Moment, Task]]] = []
    for entry in plan.tasks:
        source = wanted.get(entry.microbatch)
        if source is None or entry.hop or entry.kind == "L":
            continue
        index = len(found)
        if entry.kind == "B":
            returned = entry.end_s + float(travel[entry.node, source])
            found.append([((returned, 2, index), Task("e", entry.microbatch, 0, source, 0))])
        else:
            due = entry.start_s - float(travel[source, entry.node])
            # A source that is busy at that time embeds before its current task, not after it.
            queue = by_processor.get(processors[source], [])
            due = max((start for (start, _, _), _ in queue if start <= due), default=due)
            found.append([((due, 0, index), Task("E", entry.microbatch, 0, source, 0))])
    return found


def _merged(queues: list[list[tuple[Moment, Task]]], chains: Iterable[Chain]) -> list[Task]:
    """Merge all tasks into one order: by sort key, but after their predecessors and in queue order.

    If queues contradict the chains, the earliest blocked task comes next: the deadlock proof reports it.
    """
    waits_for = {task: before for chain in chains for before, task in itertools.pairwise(chain)}
    followers = {before: task for task, before in waits_for.items()}
    queue_of = {task: number for number, queue in enumerate(queues) for _, task in queue}
    head = [0] * len(queues)
    done: set[Task] = set()
    ready: list[tuple[Moment, int]] = []

    def offer(number: int) -> None:
        if head[number] < len(queues[number]):
            moment, task = queues[number][head[number]]
            if task not in waits_for or waits_for[task] in done:
                heapq.heappush(ready, (moment, number))

    for number in range(len(queues)):
        offer(number)
    order: list[Task] = []
    while len(order) < len(queue_of):
        if not ready:
            ready.append(min((queue[head[i]][0], i) for i, queue in enumerate(queues) if head[i] < len(queue)))
        _, number = heapq.heappop(ready)
        task = queues[number][head[number]][1]
        head[number] += 1
        done.add(task)
        order.append(task)
        offer(number)
        follower = followers.get(task)
        if follower is not None and follower not in done and queue_of[follower] != number:
            other = queue_of[follower]
            if queues[other][head[other]][1] == follower:
                offer(other)
    return order


def _programs(
    order: Iterable[Task], chains: Iterable[Chain], rank_of: Sequence[int], tails: Sequence[Sequence[Action]]
) -> tuple[Program, ...]:
    """Distribute the tasks over the ranks and insert the transfers."""
    links = [
        (before, task)
        for chain in chains
        for before, task in itertools.pairwise(chain)
        if rank_of[before.node] != rank_of[task.node]
    ]
    producer = {task: before for before, task in links}
    receiver = {before: rank_of[task.node] for before, task in links}
    actions: list[list[Action]] = [[] for _ in tails]
    sent: list[dict[int, list[Task]]] = [defaultdict(list) for _ in tails]
    for task in order:
        rank = rank_of[task.node]
        if task in producer:
            actions[rank].append(Recv(producer[task], rank_of[producer[task].node]))
        actions[rank].append(task)
        if task in receiver:
            actions[rank].append(Send(task, receiver[task]))
            sent[receiver[task]][rank].append(task)
    return tuple(
        Program(rank, (*actions[rank], *tail), {sender: tuple(sent[rank][sender]) for sender in sorted(sent[rank])})
        for rank, tail in enumerate(tails)
    )


def _tail(
    rank: int, stages: Sequence[Sequence[int]], reached: Collection[int], rank_of: Sequence[int], world: int
) -> tuple[Action, ...]:
    """The actions after a rank's last transfer: all-reduces from the last stage to the first, norm, step.

    Stages that no microbatch visits have no gradient; stage 0 always has one, of embedding and head.
    """
    serving = [
        tuple(dict.fromkeys(rank_of[node] for node in nodes)) if s in reached else () for s, nodes in enumerate(stages)
    ]
    # The last stage first, since its backwards come first.
    reduces = [Reduce(s, ranks) for s, ranks in reversed(list(enumerate(serving))) if rank in ranks and len(ranks) > 1]
    owners = tuple(min(ranks, default=None) for ranks in serving)
    return (*reduces, Norm(tuple(range(world)), owners), Step())
