"""The dispatch rule once more as SimPy processes: one per microbatch, one resource per processor.

Only where memory holds nothing back and no two events of one processor fall together by chance: SimPy
grants an idle resource at once, the dispatch rule first lets everything of that moment happen.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import simpy

from .instances import Json, TaskKey, task_chain
from .simulator import Durations

if TYPE_CHECKING:
    from simpy.resources.resource import PriorityRequest


def rank(key: TaskKey, arrival: int) -> int:
    """Smaller goes first: losses and backwards, then the earlier arrival, then the lower microbatch."""
    return ((key[1] == "F") * 10**18 + arrival) * 10**6 + key[0]


def run_simpy(instance: Json, microbatches: list[Json]) -> dict[TaskKey, tuple[int, int]]:
    """Start and end of every task in nanoseconds."""
    durations = Durations(instance["cluster"], instance["stages"])
    env = simpy.Environment()
    processors = [simpy.PriorityResource(env) for _ in instance["cluster"]["nodes"]]
    completed = {b["id"]: env.event() for b in microbatches}
    ids = {(b["route"], b["wave"]): b["id"] for b in microbatches}
    times: dict[TaskKey, tuple[int, int]] = {}

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
                yield env.timeout(transfer)
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
