"""The dispatch rule once more as SimPy processes: one per microbatch, one resource per processor.

Only where memory holds nothing back and no two events of one processor fall together by chance: SimPy
grants an idle resource at once, the dispatch rule first lets everything of that moment happen.
"""

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import simpy

from .instances import Json, TaskKey, task_chain
from .simulator import Durations, nanoseconds

if TYPE_CHECKING:
    from simpy.resources.resource import PriorityRequest


def rank(key: TaskKey, arrival: int) -> int:
    """Smaller goes first: losses and backwards, then the earlier arrival, then the lower microbatch."""
    return ((key[1] == "F") * 10**18 + arrival) * 10**6 + key[0]


def run_simpy(instance: Json, microbatches: list[Json], contention: str = "none") -> dict[TaskKey, tuple[int, int]]:
    """Start and end of every task in nanoseconds; `contention`: as `Plan.with_contention` has it."""
    durations = Durations(instance["cluster"], instance["stages"])
    env = simpy.Environment()
    processors = [simpy.PriorityResource(env) for _ in instance["cluster"]["nodes"]]
    uplinks: dict[Any, simpy.Resource] = {}
    completed = {b["id"]: env.event() for b in microbatches}
    ids = {(b["route"], b["wave"]): b["id"] for b in microbatches}
    times: dict[TaskKey, tuple[int, int]] = {}

    def wait(transfer: int) -> Generator[Any, Any, None]:
        yield env.timeout(transfer)

    def send(at: int, node: int, transfer: int) -> Generator[Any, Any, None]:
        ends = tuple(durations.processor[each] for each in (at, node))
        if contention == "none":
            yield from wait(transfer)
            return
        uplink = uplinks.setdefault(ends if contention == "link" else ends[0], simpy.Resource(env))
        latency = nanoseconds(durations.seconds(at, node, 0.0), math.floor)
        with uplink.request() as turn:
            yield turn
            yield env.timeout(transfer - latency)
        yield env.timeout(latency)

    def travel(b: Json) -> Generator[Any, Any, None]:
        if b["wave"] > 0:
            yield completed[ids[b["route"], b["wave"] - 1]]
        at: int = b["source"]
        held: PriorityRequest | None = None
        for key, node in task_chain(b):
            transfer = durations.transfer(at, node)
            if transfer:
                if held is not None:
                    processors[durations.processor[at]].release(held)
                    held = None
                # What goes to the first task is no message between tasks, and waits for none.
                yield from send(at, node, transfer) if key[1:] != ("F", 0) else wait(transfer)
            # A task that follows immediately on the same processor is queued before that one is released.
            turn = processors[durations.processor[node]].request(priority=rank(key, int(env.now)))
            if held is not None:
                processors[durations.processor[at]].release(held)
            yield turn
            held, start = turn, int(env.now)
            yield env.timeout(durations.task[key[1]][node])
            times[key] = (start, int(env.now))
            at = node
        if held is not None:
            processors[durations.processor[at]].release(held)
        transfer = durations.transfer(at, b["source"])
        if transfer:
            yield env.timeout(transfer)
        completed[b["id"]].succeed()

    for b in sorted(microbatches, key=lambda b: b["id"]):
        env.process(travel(b))
    env.run()
    return times
