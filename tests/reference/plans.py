"""`skippipe.plan/1` objects made from reference results, with predictions that match their tasks."""

import itertools
from random import Random

from .instances import (
    Json,
    TaskKey,
    disturbed,
    legal_routes,
    on_shared_processors,
    random_instance,
    random_orders,
    task_chain,
)
from .simulator import Outcome, nanoseconds, run_dispatch, run_order


def task_entries(outcome: Outcome) -> list[Json]:
    """The tasks in order of their start; at one processor equal starts keep their order."""
    entries = [
        {
            "node": outcome.work.node[key],
            "microbatch": key[0],
            "kind": key[1],
            "hop": key[2],
            "start_s": start / 1e9,
            "end_s": end / 1e9,
        }
        for key, (start, end) in outcome.times.items()
    ]
    return sorted(entries, key=lambda t: t["start_s"])


def plan_object(instance: Json, microbatches: list[Json], tasks: list[Json], predicted: Json) -> Json:
    """A complete plan around these tasks."""
    counts = zip(instance["stages"][0], instance["counts"], strict=True)
    return {
        "format": "skippipe.plan/1",
        "cluster": instance["cluster"],
        "constraints": instance["constraints"],
        "skip_ratio": instance["skip_ratio"],
        "strategy": "skippipe",
        "stages": instance["stages"],
        "layers": [],
        "absent_nodes": [],
        "absent_stages": instance["absent_stages"],
        "model": None,
        "microbatches_per_source": {str(source): count for source, count in counts},
        "microbatches": sorted(microbatches, key=lambda b: b["id"]),
        "tasks": tasks,
        "predicted": predicted,
        "solver": {"wall_s": 0.0, "seed": 0, "optimal": False},
    }


def plan_of(instance: Json, outcome: Outcome, bound_share: float = 0.0) -> Json:
    """The plan that a complete outcome is; its lower bound is that share of its iteration."""
    iteration = outcome.iteration(instance["stages"]) / 1e9
    low = iteration * bound_share
    predicted = {
        "iteration_s": iteration,
        "pipeline_s": outcome.pipeline() / 1e9,
        "allreduce_s": [x / 1e9 for x in outcome.work.durations.allreduce],
        "lower_bound_s": low,
        "gap": (iteration - low) / low if low > 0 else 0.0,
    }
    return plan_object(instance, list(outcome.work.microbatches.values()), task_entries(outcome), predicted)


def plan_of_orders(instance: Json, microbatches: list[Json], orders: dict[int, list[TaskKey]]) -> Json:
    """A plan that fixes orders only: its times are the positions in the order, its predictions zero."""
    nodes = {key: node for b in microbatches for key, node in task_chain(b)}
    tasks = [
        {"node": nodes[b, kind, hop], "microbatch": b, "kind": kind, "hop": hop, "start_s": float(i), "end_s": float(i)}
        for order in orders.values()
        for i, (b, kind, hop) in enumerate(order)
    ]
    predicted = {
        "iteration_s": 0.0,
        "pipeline_s": 0.0,
        "allreduce_s": [0.0] * len(instance["stages"]),
        "lower_bound_s": 0.0,
        "gap": 0.0,
    }
    return plan_object(instance, microbatches, tasks, predicted)


def times_of(plan: Json) -> dict[TaskKey, tuple[int, int]]:
    """Start and end of each task of a plan in nanoseconds."""
    return {
        (t["microbatch"], t["kind"], t["hop"]): (round(t["start_s"] * 1e9), round(t["end_s"] * 1e9))
        for t in plan["tasks"]
    }


def random_outcome(
    rng: Random, size: str = "small", max_count: int = 3, *, shared: bool = False
) -> tuple[Json, Outcome]:
    """A random instance, with shared processors or without, and a complete execution of random legal routes on it."""
    while True:
        instance = random_instance(rng, size, max_count)
        if shared:
            instance = on_shared_processors(rng, instance)
        microbatches = legal_routes(rng, instance, tries=10)
        if microbatches is None:
            continue
        if rng.random() < 0.3:
            outcome = run_dispatch(instance, microbatches)
        else:
            orders = random_orders(rng, instance, microbatches)
            if rng.random() < 0.5:
                orders = disturbed(rng, orders, rng.randint(1, 3))
            outcome = run_order(instance, microbatches, orders)
        if not outcome.stuck:
            return instance, outcome


def stretched(rng: Random, outcome: Outcome) -> Outcome:
    """The same execution with idle time put in: everything after a random moment comes later."""
    times = dict(outcome.times)
    moment = rng.choice([start for start, _ in times.values()])
    delay = nanoseconds(rng.choice([0.25, 1.0, 3.5]))
    late = {key: start >= moment for key, (start, _) in times.items()}
    moved = {key: (s + delay, e + delay) if late[key] else (s, e) for key, (s, e) in times.items()}
    return Outcome(outcome.work, moved)


def random_plan(rng: Random, size: str = "small", max_count: int = 3, *, shared: bool = False) -> Json:
    """A plan that keeps every rule, with shared processors or without."""
    instance, outcome = random_outcome(rng, size, max_count, shared=shared)
    if rng.random() < 0.2:
        outcome = stretched(rng, outcome)
    plan = plan_of(instance, outcome, rng.choice([0.0, 0.3, 0.8, 1.0]))
    if rng.random() < 0.3 and not shared:
        plan["tasks"] = by_node(plan["tasks"])
    plan["strategy"] = rng.choice(["full", "full-routed", "random-skip", "skippipe-no-tc2", "skippipe"])
    plan["layers"] = rng.choice([[], [4] * len(instance["stages"])])
    return plan


def by_node(tasks: list[Json]) -> list[Json]:
    """The tasks node by node, each node's in its order."""
    ordered = sorted(tasks, key=lambda t: t["node"])
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda t: t["node"])]
    return [t for group in groups for t in group]
