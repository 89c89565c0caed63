"""A slow simulator in integer nanoseconds, written from the problem's definition.

`run_order` gives the earliest times of a fixed order per processor, `run_dispatch` those of the dispatch
rule. A processor has the number of the first node on it. Both give an `Outcome`: the times of the tasks that
ran and the tasks that never could.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from .instances import Json, TaskKey, task_chain

NEVER = -1
Link = tuple[int, int | None]
"""Sending and receiving processor; all receivers: None."""


def nanoseconds(seconds: float, rounded: Callable[[float], int] = math.ceil) -> int:
    """Seconds rounded up, or as `rounded` says, but to the nearest where that is less than a millionth away."""
    scaled = seconds * 1e9
    nearest = round(scaled)
    return nearest if abs(scaled - nearest) <= 1e-6 else rounded(scaled)


def processors_of(cluster: Json) -> list[int]:
    """For each node the first node on its processor."""
    stated = [node.get("processor") for node in cluster["nodes"]]
    return [i if number is None else stated.index(number) for i, number in enumerate(stated)]


class Durations:
    """All lengths of time of one cluster under one allocation, in nanoseconds."""

    def __init__(self, cluster: Json, stages: list[list[int]]) -> None:
        nodes = cluster["nodes"]
        self.cluster = cluster
        self.processor = processors_of(cluster)
        self.transfer = cache(self._transfer)
        self.task = {
            kind: [nanoseconds(node[name]) for node in nodes]
            for kind, name in (("F", "forward_s"), ("L", "loss_s"), ("B", "backward_s"))
        }
        self.memory = [node["memory"] for node in nodes]
        self.allreduce = [self.allreduce_of(s, members) for s, members in enumerate(stages)]
        steps = cluster.get("step_s") or [0.0]
        self.after = nanoseconds(cluster.get("norm_s", 0.0)) + max(nanoseconds(x) for x in steps)

    def seconds(self, i: int, j: int, size: float) -> float:
        """What a message of `size` bytes takes from node i to node j."""
        if self.processor[i] == self.processor[j]:
            return 0.0
        regions = self.cluster.get("region_of")
        if regions is not None:
            i, j = regions[i], regions[j]
        if "transfer_s" in self.cluster:
            return float(self.cluster["transfer_s"][i][j])
        link = self.cluster["latency_s"][i][j] + size / self.cluster["bandwidth"][i][j]
        return float(link + self.cluster.get("overhead_s", 0.0))

    def _transfer(self, i: int, j: int) -> int:
        """What one activation or gradient takes from node i to node j."""
        return nanoseconds(self.seconds(i, j, self.cluster.get("activation_bytes", 0.0)))

    def allreduce_of(self, stage: int, members: list[int]) -> int:
        # What shares a processor is summed there, and is one in the ring.
        first = {self.processor[node]: node for node in reversed(members)}
        members = [node for node in members if first[self.processor[node]] == node]
        sizes, r = self.cluster.get("gradient_bytes") or [], len(members)
        if r < 2 or not sizes:
            return 0
        ring = [(members[i], members[(i + 1) % r]) for i in range(r)]
        return nanoseconds(2 * (r - 1) * max(self.seconds(i, j, sizes[stage] / r) for i, j in ring))


@dataclass
class Work:
    """The tasks of one set of microbatches and what each of them waits for."""

    durations: Durations
    rules: Json
    microbatches: dict[int, Json]
    node: dict[TaskKey, int] = field(default_factory=dict)
    before: dict[TaskKey, TaskKey | None] = field(default_factory=dict)
    after: dict[TaskKey, TaskKey] = field(default_factory=dict)

    @staticmethod
    def of(instance: Json, microbatches: list[Json]) -> "Work":
        """The work that these microbatches are on this instance."""
        durations = Durations(instance["cluster"], instance["stages"])
        work = Work(durations, instance["constraints"], {b["id"]: b for b in microbatches})
        for b in microbatches:
            previous: TaskKey | None = None
            for key, node in task_chain(b):
                work.node[key], work.before[key] = node, previous
                if previous is not None:
                    work.after[previous] = key
                previous = key
        return work

    def length(self, key: TaskKey) -> int:
        """Duration of the task on its node."""
        return self.durations.task[key[1]][self.node[key]]

    def wave_before(self, b: Json) -> Json | None:
        """The microbatch that must complete before this one starts."""
        for other in self.microbatches.values():
            if other["route"] == b["route"] and other["wave"] == b["wave"] - 1:
                return other
        return None

    def leave(self, key: TaskKey, end: int, free: dict[Link, int]) -> int:
        """When the output of a task that ends at `end` leaves; those of one processor are asked for in its order.

        Where messages take turns, `free` has the times at which their links are free, and is kept up to date.
        """
        durations, contention = self.durations, self.durations.cluster.get("contention", "none")
        if contention == "none" or key not in self.after:
            return end
        at, to = self.node[key], self.node[self.after[key]]
        sender, receiver = durations.processor[at], durations.processor[to]
        if sender == receiver:
            return end
        link = (sender, receiver if contention == "link" else None)
        begin = max(end, free.get(link, 0))
        free[link] = begin + durations.transfer(at, to) - nanoseconds(durations.seconds(at, to, 0.0), math.floor)
        return begin

    def arrival(self, key: TaskKey, left: dict[TaskKey, int]) -> int:
        """When the task's input arrives at its node; NEVER while unknown. `left`: when the outputs of tasks left."""
        transfer = self.durations.transfer
        previous = self.before[key]
        if previous is not None:
            return NEVER if previous not in left else left[previous] + transfer(self.node[previous], self.node[key])
        b = self.microbatches[key[0]]
        earlier, ready = self.wave_before(b), 0
        if earlier is not None:
            last = (earlier["id"], "B", 0)
            if last not in left:
                return NEVER
            ready = left[last] + transfer(self.node[last], earlier["source"])
        return ready + transfer(b["source"], self.node[key])

    def limited(self) -> bool:
        """Whether memory holds forwards back while the iteration runs."""
        return bool(self.rules["tc1"] == "held")


@dataclass
class Outcome:
    """Times in nanoseconds, in the order of the starts; `stuck` are the tasks that never ran."""

    work: Work
    times: dict[TaskKey, tuple[int, int]]
    orders: dict[int, list[TaskKey]] | None = None

    @property
    def stuck(self) -> list[TaskKey]:
        """The tasks that could never start."""
        return [key for key in self.work.node if key not in self.times]

    def held(self, node: int, key: TaskKey) -> list[int]:
        """The microbatches that the node holds at the end, or by its order just before `key`."""
        if self.orders is not None:
            order = self.orders[self.work.durations.processor[node]]
            ran = [other for other in order[: order.index(key)] if self.work.node[other] == node]
        else:
            ran = [other for other in self.times if self.work.node[other] == node]
        gone = {other[0] for other in ran if other[1] == "B"}
        return [other[0] for other in ran if other[1] == "F" and other[0] not in gone]

    def waits_for(self, key: TaskKey) -> Iterator[TaskKey]:
        """The unfinished tasks that a stuck task cannot run before."""
        work, node = self.work, self.work.node[key]
        previous = work.before[key]
        if previous is not None:
            yield from [previous] if previous not in self.times else []
        else:
            earlier = work.wave_before(work.microbatches[key[0]])
            if earlier is not None and (earlier["id"], "B", 0) not in self.times:
                yield (earlier["id"], "B", 0)
        if self.orders is not None:
            order = self.orders[work.durations.processor[node]]
            yield from [other for other in order[: order.index(key)] if other not in self.times]
        held = self.held(node, key)
        if key[1] == "F" and work.limited() and len(held) >= work.durations.memory[node]:
            yield from [k for k in work.node if k[0] in held and k[1] == "B" and work.node[k] == node]

    def pipeline(self) -> int:
        """Completion of the last microbatch."""
        work = self.work
        completions = [0]
        for b in work.microbatches.values():
            back = work.durations.transfer(b["nodes"][0], b["source"])
            completions.append(self.times[(b["id"], "B", 0)][1] + back)
        return max(completions)

    def iteration(self, stages: list[list[int]]) -> int:
        """When everything is done: pipeline, all-reduces, then norm and step."""
        work, ends = self.work, [self.pipeline()]
        for members, reduce in zip(stages, work.durations.allreduce, strict=True):
            last = [end for key, (_, end) in self.times.items() if key[1] == "B" and work.node[key] in members]
            ends.append(max(last, default=0) + reduce)
        return max(ends) + work.durations.after


def run_order(instance: Json, microbatches: list[Json], orders: dict[int, list[TaskKey]]) -> Outcome:
    """Earliest times if every processor runs its tasks in the given order."""
    work = Work.of(instance, microbatches)
    times: dict[TaskKey, tuple[int, int]] = {}
    left: dict[TaskKey, int] = {}
    links: dict[Link, int] = {}
    position, free = dict.fromkeys(orders, 0), dict.fromkeys(orders, 0)
    held = dict.fromkeys(work.node.values(), 0)
    moved = True
    while moved:
        moved = False
        for processor in sorted(orders):
            while position[processor] < len(orders[processor]):
                key = orders[processor][position[processor]]
                node = work.node[key]
                arrival = work.arrival(key, left)
                full = work.limited() and held[node] >= work.durations.memory[node]
                if arrival == NEVER or (key[1] == "F" and full):
                    break
                start = max(arrival, free[processor])
                free[processor] = start + work.length(key)
                left[key] = work.leave(key, free[processor], links)
                times[key] = (start, free[processor])
                held[node] += {"F": 1, "L": 0, "B": -1}[key[1]]
                position[processor] += 1
                moved = True
    return Outcome(work, times, orders)


def run_dispatch(instance: Json, microbatches: list[Json]) -> Outcome:
    """The dispatch rule: an idle processor runs a loss or backward first, else the earliest arrival."""
    work = Work.of(instance, microbatches)
    nodes = range(len(instance["cluster"]["nodes"]))
    processor = work.durations.processor
    times: dict[TaskKey, tuple[int, int]] = {}
    left: dict[TaskKey, int] = {}
    links: dict[Link, int] = {}
    running: dict[int, TaskKey] = {}
    coming = {key: work.arrival(key, left) for key in work.node if work.arrival(key, left) != NEVER}
    waiting: dict[TaskKey, int] = {}
    held = dict.fromkeys(nodes, 0)

    def happen(now: int) -> bool:
        """Process all ends and arrivals at this time; whether there were any."""
        ended = [number for number, key in running.items() if times[key][1] == now]
        for number in ended:
            key = running.pop(number)
            left[key] = work.leave(key, now, links)
            held[work.node[key]] -= key[1] == "B"
            for other in work.node:
                if other not in times and other not in coming and other not in waiting:
                    arrival = work.arrival(other, left)
                    if arrival != NEVER:
                        coming[other] = arrival
        came = [key for key, arrival in coming.items() if arrival == now]
        for key in came:
            waiting[key] = coming.pop(key)
        return bool(ended or came)

    def rank(key: TaskKey) -> tuple[bool, int, int]:
        return (key[1] == "F", waiting[key], key[0])

    while running or coming:
        now = min([times[key][1] for key in running.values()] + list(coming.values()))
        while happen(now):
            while happen(now):
                pass
            for number in sorted(set(processor)):
                if number in running:
                    continue
                full = {node for node in nodes if work.limited() and held[node] >= work.durations.memory[node]}
                own = [key for key in waiting if processor[work.node[key]] == number]
                can = [key for key in own if not (key[1] == "F" and work.node[key] in full)]
                if can:
                    key = min(can, key=rank)
                    del waiting[key]
                    running[number] = key
                    times[key] = (now, now + work.length(key))
                    held[work.node[key]] += key[1] == "F"
    return Outcome(work, times)
