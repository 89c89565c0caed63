"""Random instances of the scheduling problem, legal routes for them and orders of their tasks.

An instance is a plain dict: `cluster` (a `skippipe.cluster/1` object), `stages`, `absent_stages`,
`constraints`, `skip_ratio` and `counts` (microbatches of each node of stage 0, in its order).
A microbatch is a dict as in `skippipe.plan/1`: id, source, nodes, stages, route, wave.
"""

import itertools
import math
from collections import Counter
from random import Random
from typing import Any

Json = dict[str, Any]
TaskKey = tuple[int, str, int]  # microbatch, kind, hop


# ---------------------------------------------------------------------------------- instances


def _seconds(rng: Random, style: str, high: float) -> float:
    """A length of time: on a coarse grid (many ties), with six digits, or any float at all."""
    if style == "grid":
        return rng.choice([0.0, 0.5, 0.5, 1.0, 1.0, 1.5, 2.0]) * high / 2
    value = rng.uniform(0.02, 1.0) * high
    return round(value, 6) if style == "round" else value


def random_cluster(rng: Random, n: int, s_count: int) -> Json:
    """`n` nodes of unequal speed and memory, links in one of the three forms of the format."""
    style = rng.choice(["grid", "grid", "round", "float"])
    equal = rng.random() < 0.15
    names = [f"node-{i}" for i in range(n)]
    one = [_seconds(rng, style, 2.0) for _ in range(3)]
    nodes = []
    for name in names:
        forward, backward, loss = one if equal else (_seconds(rng, style, h) for h in (2.0, 3.0, 0.5))
        zero = rng.random()
        nodes.append(
            {
                "name": name,
                "forward_s": 0.0 if zero < 0.05 else forward,
                "backward_s": 0.0 if 0.03 < zero < 0.08 else backward,
                "loss_s": 0.0 if zero < 0.15 else loss,
                "memory": rng.choice([1, 1, 2, 2, 3, 4]),
            }
        )
    cluster: Json = {"format": "skippipe.cluster/1", "nodes": nodes}
    side = n
    if rng.random() < 0.3:
        side = rng.randint(1, min(n, 4))
        cluster["region_of"] = [rng.randrange(side) for _ in range(n)]
    regional = "region_of" in cluster

    def matrix(entry: Any) -> list[list[float]]:
        return [[entry() if i != j or regional else 0.0 for j in range(side)] for i in range(side)]

    no_travel = rng.random() < 0.08
    if rng.random() < 0.35:
        cluster["transfer_s"] = matrix(lambda: 0.0 if no_travel else _seconds(rng, style, 2.0))
        cluster["activation_bytes"] = 1000
    else:
        cluster["latency_s"] = matrix(lambda: 0.0 if no_travel else _seconds(rng, style, 1.0))
        cluster["activation_bytes"] = 0 if no_travel else rng.choice([0, 1000, 1000, 12345])
        speeds = [500.0, 1000.0, 2000.0] if style == "grid" else None
        cluster["bandwidth"] = matrix(lambda: rng.choice(speeds) if speeds else rng.uniform(500, 20000))
        if rng.random() < 0.4:
            cluster["overhead_s"] = 0.0 if no_travel else _seconds(rng, style, 0.5)
        if rng.random() < 0.5:
            cluster["gradient_bytes"] = [rng.choice([0, 1000, 3000, 12345.5]) for _ in range(s_count)]
    if rng.random() < 0.25:
        cluster["step_s"] = [_seconds(rng, style, 1.0) for _ in range(n)]
    if rng.random() < 0.25:
        cluster["norm_s"] = _seconds(rng, style, 1.0)
    return cluster


def on_shared_processors(rng: Random, instance: Json) -> Json:
    """The instance where some nodes share processors."""
    nodes = instance["cluster"]["nodes"]
    most = rng.randint(1, max(2, len(nodes) // 2))
    shared = [{**node, "processor": rng.randrange(most)} if rng.random() < 0.7 else node for node in nodes]
    return {**instance, "cluster": {**instance["cluster"], "nodes": shared}}


def random_rules(rng: Random) -> Json:
    """Constraints with every rule on in most draws and each of them off in some."""
    waves = rng.choice([1, 1, 1, 2, 2, 3])
    return {
        "cc1": rng.random() < 0.8,
        "cc2": rng.random() < 0.8,
        "cc3": rng.random() < 0.8,
        "tc1": rng.choice(["held", "held", "routes", "off"]),
        "tc2": rng.random() < 0.9,
        "max_swaps": rng.choice([0, 1, 1, 2, 3]),
        "waves": waves,
        "max_stage_jump": rng.choice([None, None, 1, 2, 3, 4]),
    }


def random_skip_ratio(rng: Random, present: int) -> float:
    """None skipped, an integer number of stages, a fraction, or the maximum."""
    most = (present - 1) / present
    some = rng.uniform(0, most)
    return rng.choice([0.0, rng.randrange(present) / present, some, math.floor(some * 100) / 100, most])


def random_instance(rng: Random, size: str = "small", max_count: int = 4) -> Json:
    """One instance: `small` has 2..9 nodes in 1..5 stages, `middle` has 20 nodes in 3..6."""
    n = 20 if size == "middle" else rng.randint(2, 9)
    s_count = rng.randint(3, 6) if size == "middle" else rng.randint(1, min(5, n))
    absent = [rng.randint(1, s_count - 1)] if s_count > 2 and rng.random() < 0.1 else []
    present = [s for s in range(s_count) if s not in absent]
    nodes = list(range(n))
    rng.shuffle(nodes)
    stages: list[list[int]] = [[] for _ in range(s_count)]
    for i, node in enumerate(nodes):
        stages[present[i] if i < len(present) else rng.choice(present)].append(node)
    rules = random_rules(rng)
    cluster = random_cluster(rng, n, s_count)
    counts = []
    for node in stages[0]:
        high = max_count
        if rules["tc1"] == "routes":
            high = min(high, rules["waves"] * cluster["nodes"][node]["memory"])
        counts.append(rng.randint(0, high))
    if sum(counts) == 0:
        counts[rng.randrange(len(counts))] = 1
    return {
        "cluster": cluster,
        "stages": stages,
        "absent_stages": absent,
        "constraints": rules,
        "skip_ratio": random_skip_ratio(rng, len(present)),
        "counts": counts,
    }


def extended(rng: Random, instance: Json) -> Json:
    """The instance with random weights of the stages or random classes of routes, its skip ratio as these say."""
    stages = len(instance["stages"])
    rules = dict(instance["constraints"])
    if rng.random() < 0.5:
        rules["profile"] = [rng.choice([0, 1, 1, 2, 0.3, 5]) for _ in range(stages - 1)]
        return {**instance, "constraints": rules}
    present = [s for s in range(stages) if s not in instance["absent_stages"]]
    routes = left = len(route_owners(instance))
    classes: list[Json] = []
    while left:
        count = rng.randint(1, left)
        chosen = {s for s in present if rng.random() < 0.5} | ({0} if rules["cc1"] else {rng.choice(present)})
        classes.append({"stages": sorted(chosen), "routes": count})
        left -= count
    rules["classes"] = classes
    visits = sum(len(one["stages"]) * one["routes"] for one in classes)
    return {**instance, "constraints": rules, "skip_ratio": 1 - visits / (routes * len(present))}


def tight_instance(rng: Random) -> Json:
    """A small instance with little memory and routes in any order, on which the dispatch rule often deadlocks."""
    while True:
        instance = random_instance(rng, "small", max_count=6)
        if len(instance["stages"]) > 2 and sum(instance["counts"]) > 3:
            break
    instance["constraints"].update(tc1="held", waves=1, max_swaps=2, max_stage_jump=None, cc2=rng.random() < 0.3)
    for node in instance["cluster"]["nodes"]:
        node["memory"] = rng.choice([1, 1, 1, 2])
    return instance


# ------------------------------------------------------------------------------------- routes


def stage_of(instance: Json) -> dict[int, int]:
    """The stage that each node serves."""
    return {node: s for s, stage in enumerate(instance["stages"]) for node in stage}


def route_owners(instance: Json) -> list[tuple[int, int]]:
    """(source, number of microbatches) of every route, filled in turn."""
    waves, owners = instance["constraints"]["waves"], []
    for source, count in zip(instance["stages"][0], instance["counts"], strict=True):
        owners += [(source, min(waves, count - first)) for first in range(0, count, waves)]
    return owners


def visit_total(instance: Json, routes: int) -> int:
    """T: the total number of stage visits of all routes."""
    present, ratio = len(instance["stages"]) - len(instance["absent_stages"]), float(instance["skip_ratio"])
    return math.floor(routes * present * (1 - ratio) + 0.5 + 1e-6)


def swapped_orders(stages: list[int], most: int) -> list[list[int]]:
    """Every order of the stages after at most `most` disjoint swaps of neighbours (k, k+1)."""
    stages = sorted(stages)
    positions = [i for i in range(len(stages) - 1) if stages[i + 1] == stages[i] + 1]
    found = []
    for count in range(min(most, len(positions)) + 1):
        for chosen in itertools.combinations(positions, count):
            if any(b - a < 2 for a, b in itertools.pairwise(chosen)):
                continue
            order = stages[:]
            for i in chosen:
                order[i], order[i + 1] = order[i + 1], order[i]
            found.append(order)
    return found


def legal_orders(stages: list[int], rules: Json) -> list[list[int]]:
    """Every order in which a route may visit exactly these stages, source's rule not counted."""
    if rules["cc2"]:
        orders = swapped_orders(stages, rules["max_swaps"])
    else:
        orders = [list(p) for p in itertools.permutations(stages)]
    if rules["cc1"]:
        orders = [order for order in orders if order[0] == 0]
    return [order for order in orders if jumps_within(order, rules["max_stage_jump"])]


def jumps_within(order: list[int], most: int | None) -> bool:
    """Whether no step passes the furthest stage so far (0 at the start) by more than `most`."""
    return most is None or all(s - max([0, *order[:i]]) <= most for i, s in enumerate(order))


def _draw_stage_sets(rng: Random, instance: Json, lengths: list[int]) -> list[list[int]] | None:
    """A stage set of each length; under CC3 always from the stages least used so far."""
    rules = instance["constraints"]
    inner = [s for s in range(1, len(instance["stages"])) if s not in instance["absent_stages"]]
    used = Counter(dict.fromkeys(inner, 0))
    sets = []
    for length in lengths:
        first = [0] if rules["cc1"] or length > len(inner) or rng.random() < 0.6 else []
        if length < len(first):
            return None
        ranked = sorted(inner, key=lambda s: (used[s] if rules["cc3"] else 0, rng.random()))
        chosen = ranked[: length - len(first)]
        used.update(chosen)
        sets.append(first + chosen)
    return sets


def legal_routes(rng: Random, instance: Json, tries: int = 60) -> list[Json] | None:
    """Microbatches with random routes that keep every rule on routes; None where none was drawn."""
    rules, stages = instance["constraints"], instance["stages"]
    owners = route_owners(instance)
    total = visit_total(instance, len(owners))
    base, more = divmod(total, len(owners))
    for _ in range(tries):
        lengths = [base + 1] * more + [base] * (len(owners) - more)
        rng.shuffle(lengths)
        sets = _draw_stage_sets(rng, instance, lengths) if base else None
        if sets is None:
            continue
        room = Counter({i: node["memory"] for i, node in enumerate(instance["cluster"]["nodes"])})
        routes = []
        for (source, _), chosen in zip(owners, sets, strict=True):
            orders = legal_orders(chosen, rules)
            if not orders:
                break
            order = rng.choice(orders)
            nodes: list[int] = []
            for s in order:
                can = [x for x in stages[s] if rules["tc1"] != "routes" or room[x] > 0]
                if s == 0 and (rules["cc1"] or rng.random() < 0.5):
                    can = [x for x in can if x == source]
                if not can:
                    break
                nodes.append(rng.choice(can))
            room.subtract(nodes)
            if len(nodes) < len(order):
                break
            routes.append(nodes)
        if len(routes) == len(owners):
            return number_microbatches(rng, instance, owners, routes)
    return None


def number_microbatches(
    rng: Random | None, instance: Json, owners: list[tuple[int, int]], routes: list[list[int]]
) -> list[Json]:
    """One entry per microbatch; ids in order of routes, or shuffled where a generator is given."""
    serves = stage_of(instance)
    found: list[Json] = []
    for number, ((source, count), nodes) in enumerate(zip(owners, routes, strict=True)):
        for wave in range(count):
            entry = {"source": source, "nodes": list(nodes), "stages": [serves[x] for x in nodes]}
            found.append({"id": len(found), **entry, "route": number, "wave": wave})
    if rng is not None and rng.random() < 0.5:
        ids = list(range(len(found)))
        rng.shuffle(ids)
        for b, i in zip(found, ids, strict=True):
            b["id"] = i
    return found


# ------------------------------------------------------------------------------------- orders


def task_chain(microbatch: Json) -> list[tuple[TaskKey, int]]:
    """(task, node) of one microbatch in the order in which they follow each other."""
    b, nodes = microbatch["id"], microbatch["nodes"]
    there = [((b, "F", h), node) for h, node in enumerate(nodes)]
    back = [((b, "B", h), node) for h, node in reversed(list(enumerate(nodes)))]
    return [*there, ((b, "L", 0), microbatch["source"]), *back]


def random_orders(
    rng: Random, instance: Json, microbatches: list[Json], respect: bool = True
) -> dict[int, list[TaskKey]]:
    """An order of tasks for every processor.

    With `respect` tasks are appended one by one, each after its predecessor (and after the wave
    before it, and within memory as long as possible), so most of these orders can be executed.
    Without it each processor's tasks are shuffled blindly.
    """
    chains = {b["id"]: task_chain(b) for b in microbatches}
    stated = [node.get("processor") for node in instance["cluster"]["nodes"]]
    processor = [i if number is None else stated.index(number) for i, number in enumerate(stated)]
    orders: dict[int, list[TaskKey]] = {}
    if not respect:
        for chain in chains.values():
            for key, node in chain:
                orders.setdefault(processor[node], []).append(key)
        for order in orders.values():
            rng.shuffle(order)
        return orders
    rules, nodes = instance["constraints"], instance["cluster"]["nodes"]
    before = {(b["route"], b["wave"]): b["id"] for b in microbatches}
    earlier = {b["id"]: before.get((b["route"], b["wave"] - 1)) for b in microbatches}
    done = dict.fromkeys(chains, 0)
    held: Counter[int] = Counter()
    favourite = rng.random()
    while any(done[b] < len(chains[b]) for b in chains):
        ready = []
        for b, chain in chains.items():
            if done[b] == len(chain):
                continue
            previous = earlier[b]
            if done[b] == 0 and previous is not None and done[previous] < len(chains[previous]):
                continue
            ready.append((*chain[done[b]], b))
        free = [r for r in ready if r[0][1] != "F" or rules["tc1"] != "held" or held[r[1]] < nodes[r[1]]["memory"]]
        pool = free or ready
        backward = [r for r in pool if r[0][1] != "F"]
        key, node, b = rng.choice(backward if backward and rng.random() < favourite else pool)
        orders.setdefault(processor[node], []).append(key)
        done[b] += 1
        held[node] += {"F": 1, "L": 0, "B": -1}[key[1]]
    return orders


def disturbed(rng: Random, orders: dict[int, list[TaskKey]], swaps: int) -> dict[int, list[TaskKey]]:
    """The same orders with some neighbours swapped."""
    copy = {node: order[:] for node, order in orders.items()}
    for _ in range(swaps):
        order = copy[rng.choice(sorted(copy))]
        if len(order) > 1:
            i = rng.randrange(len(order) - 1)
            order[i], order[i + 1] = order[i + 1], order[i]
    return copy
