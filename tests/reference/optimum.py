"""The exact optimum of tiny instances by exhaustive search: every set of routes, every order."""

import itertools
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from .instances import Json, TaskKey, legal_orders, number_microbatches, route_owners, task_chain, visit_total
from .simulator import Link, Work


def routes_from(instance: Json, source: int) -> list[tuple[int, ...]]:
    """Every route that a microbatch of this source may take, of any length."""
    rules, stages = instance["constraints"], instance["stages"]
    present = [s for s in range(len(stages)) if s not in instance["absent_stages"]]
    found: set[tuple[int, ...]] = set()
    for length in range(1, len(present) + 1):
        for chosen in itertools.combinations(present, length):
            for order in legal_orders(list(chosen), rules):
                options = [[source] if s == 0 and rules["cc1"] else stages[s] for s in order]
                found.update(itertools.product(*options))
    return sorted(found)


def route_sets(instance: Json) -> Iterator[list[list[int]]]:
    """Every legal choice of routes, equal ones of one source counted once."""
    rules, owners = instance["constraints"], route_owners(instance)
    nodes = instance["cluster"]["nodes"]
    serves = {node: s for s, stage in enumerate(instance["stages"]) for node in stage}
    inner = [s for s in range(1, len(instance["stages"])) if s not in instance["absent_stages"]]
    total = visit_total(instance, len(owners))
    lengths = {total // len(owners), -(-total // len(owners))}
    if rules.get("classes"):
        lengths = {len(one["stages"]) for one in rules["classes"]}
    choices = []
    for group, members in itertools.groupby(owners):
        routes = [r for r in routes_from(instance, group[0]) if len(r) in lengths]
        choices.append(list(itertools.combinations_with_replacement(routes, len(list(members)))))
    for parts in itertools.product(*choices):
        routes = [route for part in parts for route in part]
        visits = Counter(x for route in routes for x in route)
        if sum(visits.values()) != total:
            continue
        per_stage = Counter(dict.fromkeys(inner, 0))
        per_stage.update(serves[x] for route in routes for x in route if serves[x] != 0)
        if not keeps_shares([{serves[x] for x in route} for route in routes], per_stage, rules, inner):
            continue
        if rules["tc1"] == "routes" and any(count > nodes[x]["memory"] for x, count in visits.items()):
            continue
        yield [list(route) for route in routes]


def keeps_shares(sets: list[set[int]], per_stage: Counter[int], rules: Json, inner: list[int]) -> bool:
    """CC3 or what stands in its place: a profile, or classes, which also say the lengths."""
    if rules.get("classes"):
        asked: Counter[frozenset[int]] = Counter()
        for one in rules["classes"]:
            asked[frozenset(one["stages"])] += one["routes"]
        return asked == Counter(map(frozenset, sets))
    if not rules["cc3"] or not inner:
        return True
    weights = [Fraction((rules.get("profile") or [1] * max(inner))[s - 1]) for s in inner]
    shares = shared_out(weights, sum(per_stage.values()), len(sets))
    return all(abs(per_stage[s] - share) < 1 for s, share in zip(inner, shares, strict=True))


def shared_out(weights: list[Fraction], visits: int, routes: int) -> list[Fraction]:
    """Exact shares of the visits, in proportion to the weights and none above `routes`: stages fill up one by one."""
    shares = [Fraction(0)] * len(weights)
    open_, left = {i for i, weight in enumerate(weights) if weight}, Fraction(visits)
    while open_:
        unit = left / sum(weights[i] for i in open_)
        greatest = max(open_, key=lambda i: weights[i])
        if weights[greatest] * unit <= routes:
            for i in open_:
                shares[i] = weights[i] * unit
            break
        shares[greatest] = Fraction(routes)
        left -= routes
        open_.remove(greatest)
    return shares


def best_order(instance: Json, microbatches: list[Json], at_most: int | None = None) -> int | None:
    """The shortest iteration of these routes in nanoseconds, None if none is below `at_most`.

    Depth first over schedules in which tasks are appended in the order of their starts, each as
    early as possible; only branches whose remaining work cannot stay below the best are pruned.
    """
    work = Work.of(instance, microbatches)
    durations = work.durations
    serves = {node: s for s, stage in enumerate(instance["stages"]) for node in stage}
    chains = {b["id"]: task_chain(b) for b in microbatches}
    tails = {key: _tail(work, chain[i:], serves) for chain in chains.values() for i, (key, _) in enumerate(chain)}
    best = at_most
    left: dict[TaskKey, int] = {}
    links: dict[Link, int] = {}
    free = dict.fromkeys(range(len(instance["cluster"]["nodes"])), 0)
    held: Counter[int] = Counter()
    load: Counter[int] = Counter()
    for key, node in work.node.items():
        load[durations.processor[node]] += work.length(key)
    idle_end = max(durations.allreduce, default=0)

    def search(last: int, so_far: int) -> None:
        nonlocal best
        ready = []
        for b, chain in chains.items():
            key = next((k for k, _ in chain if k not in left), None)
            if key is None:
                continue
            arrival = work.arrival(key, left)
            if arrival < 0:
                continue
            node = work.node[key]
            start = max(arrival, free[durations.processor[node]])
            if best is not None and start + tails[key] + durations.after >= best:
                return
            if key[1] == "F" and work.limited() and held[node] >= durations.memory[node]:
                continue
            if start >= last:
                ready.append((start, key[1] == "F", b, key, node))
        busy = [max(free[n], last) + load[n] for n in load if load[n]]
        if best is not None and busy and max(busy) + durations.after >= best:
            return
        if len(left) == len(work.node):
            iteration = max(so_far, idle_end) + durations.after
            best = iteration if best is None else min(best, iteration)
            return
        for start, _, _, key, node in sorted(ready):
            number, length = durations.processor[node], work.length(key)
            before = free[number]
            links_before = dict(links)
            free[number] = start + length
            left[key] = work.leave(key, start + length, links)
            load[number] -= length
            held[node] += {"F": 1, "L": 0, "B": -1}[key[1]]
            end = start + tails[key] if key[1] == "B" else 0
            search(start, max(so_far, end))
            held[node] -= {"F": 1, "L": 0, "B": -1}[key[1]]
            load[number] += length
            free[number] = before
            links.clear()
            links.update(links_before)
            del left[key]

    search(0, 0)
    return None if best == at_most else best


def _tail(work: Work, chain: list[tuple[TaskKey, int]], serves: dict[int, int]) -> int:
    """From a task's start to the end of the iteration (without norm and step), if nothing waits."""
    clock = longest = 0
    previous = chain[0][1]
    for key, node in chain:
        clock += work.durations.transfer(previous, node) + work.length(key)
        if key[1] == "B":
            longest = max(longest, clock + work.durations.allreduce[serves[node]])
        previous = node
    source = work.microbatches[chain[0][0][0]]["source"]
    return max(longest, clock + work.durations.transfer(previous, source))


def optimum(instance: Json) -> tuple[int, list[Json]] | None:
    """The shortest iteration in nanoseconds with the microbatches that reach it; None: no legal routes."""
    owners = route_owners(instance)
    best: int | None = None
    chosen: list[Json] = []
    for routes in route_sets(instance):
        microbatches = number_microbatches(None, instance, owners, routes)
        found = best_order(instance, microbatches, best)
        if found is not None:
            best, chosen = found, microbatches
    return None if best is None else (best, chosen)
