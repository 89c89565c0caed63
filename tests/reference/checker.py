"""A slow checker of plans, written from the problem's definition and the file format: every rule, one after the other.

It shares no code with the scheduler. Times may differ by `TOLERANCE`, since files have seconds in decimal.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .instances import Json, TaskKey, jumps_within, swapped_orders, task_chain, visit_total
from .optimum import keeps_shares
from .simulator import Durations, Link, Work

TOLERANCE = 1e-6
"""seconds"""
STRATEGIES = ("full", "full-routed", "random-skip", "skippipe-no-tc2", "skippipe")


class FormError(Exception):
    """The text is no plan in the format `skippipe.plan/1`."""


def findings(text: str) -> list[str]:
    """What is wrong with a plan, empty where nothing is; of its form the first thing only."""
    try:
        plan = json.loads(text, parse_constant=_refuse)
        check_form(plan)
    except (FormError, json.JSONDecodeError) as error:
        return [f"form: {error}"]
    broken = list(_allocation(plan)) or list(_routes(plan))
    try:
        return broken or [*_lengths(plan), *_memory_by_routes(plan), *_execution(plan)]
    except OverflowError:
        return ["form: a time that is no number of nanoseconds"]


# --------------------------------------------------------------------------------------- form


def _refuse(constant: str) -> None:
    raise FormError(f"{constant} is no number")


def _must(condition: bool, what: str) -> None:
    if not condition:
        raise FormError(what)


def _number(value: Any, what: str, low: float = 0.0, high: float = math.inf) -> None:
    _must(isinstance(value, int | float) and not isinstance(value, bool), f"{what}: no number")
    _must(math.isfinite(value) and low <= value <= high, f"{what}: out of range")


def _integer(value: Any, what: str, low: int = 0, high: float = math.inf) -> None:
    _number(value, what, low, high)
    _must(isinstance(value, int), f"{what}: no integer")


def _list(value: Any, what: str, length: int | None = None) -> list[Any]:
    _must(isinstance(value, list) and length in {None, len(value)}, f"{what}: no list of the right length")
    found: list[Any] = value
    return found


def _fields(value: Any, what: str, *names: str) -> Json:
    _must(isinstance(value, dict), f"{what}: no object")
    for name in names:
        _must(name in value, f"{what}.{name}: missing")
    found: Json = value
    return found


def check_form(plan: Any) -> None:
    """Raise `FormError` unless all fields are there, of their types, in range and of matching lengths."""
    _fields(plan, "plan", "format", "cluster", "constraints", "skip_ratio", "strategy", "stages")
    _fields(plan, "plan", "microbatches_per_source", "microbatches", "tasks", "predicted", "solver")
    _must(plan["format"] == "skippipe.plan/1", "format: unknown")
    nodes = _check_cluster(plan["cluster"], len(_list(plan["stages"], "stages")))
    _check_rules(plan["constraints"], len(plan["stages"]))
    _number(plan["skip_ratio"], "skip_ratio", 0.0, 1.0)
    _must(plan["strategy"] in STRATEGIES, "strategy: unknown")
    for numbers in (*plan["stages"], plan.get("absent_nodes", [])):
        for node in _list(numbers, "stages"):
            _integer(node, "node", 0, nodes - 1)
    for stage in _list(plan.get("absent_stages", []), "absent_stages"):
        _integer(stage, "absent_stages", 1, len(plan["stages"]) - 1)
    layers = _list(plan.get("layers", []), "layers")
    _must(len(layers) in {0, len(plan["stages"])}, "layers: not one for each stage")
    for count in _fields(plan["microbatches_per_source"], "microbatches_per_source").values():
        _integer(count, "microbatches_per_source")
    for b in _list(plan["microbatches"], "microbatches"):
        _fields(b, "microbatch", "id", "source", "nodes", "stages", "route", "wave")
        for name in ("id", "route", "wave"):
            _integer(b[name], f"microbatch.{name}")
        for node in (b["source"], *_list(b["nodes"], "microbatch.nodes")):
            _integer(node, "microbatch.nodes", 0, nodes - 1)
        for stage in _list(b["stages"], "microbatch.stages", len(b["nodes"])):
            _integer(stage, "microbatch.stages", 0, len(plan["stages"]) - 1)
    for t in _list(plan["tasks"], "tasks"):
        _fields(t, "task", "node", "microbatch", "kind", "hop", "start_s", "end_s")
        _integer(t["node"], "task.node", 0, nodes - 1)
        _integer(t["microbatch"], "task.microbatch")
        _integer(t["hop"], "task.hop")
        _must(t["kind"] in ("F", "L", "B"), "task.kind: unknown")
        _number(t["start_s"], "task.start_s", -math.inf)
        _number(t["end_s"], "task.end_s", -math.inf)
    predicted = _fields(
        plan["predicted"], "predicted", "iteration_s", "pipeline_s", "allreduce_s", "lower_bound_s", "gap"
    )
    for name in ("iteration_s", "pipeline_s", "lower_bound_s", "gap"):
        _number(predicted[name], f"predicted.{name}")
    for value in _list(predicted["allreduce_s"], "predicted.allreduce_s", len(plan["stages"])):
        _number(value, "predicted.allreduce_s")
    _fields(plan["solver"], "solver")


def _check_cluster(cluster: Any, stages: int) -> int:
    """Check the cluster; give its number of nodes."""
    _fields(cluster, "cluster", "format", "nodes")
    _must(cluster["format"] == "skippipe.cluster/1", "cluster.format: unknown")
    nodes = _list(cluster["nodes"], "nodes")
    for node in nodes:
        _fields(node, "node", "name", "forward_s", "backward_s", "loss_s", "memory")
        _must(isinstance(node["name"], str), "node.name: no text")
        for name in ("forward_s", "backward_s", "loss_s"):
            _number(node[name], f"node.{name}")
        _integer(node["memory"], "node.memory", 1)
        _integer(node.get("processor", 0), "node.processor")
    _must(bool(nodes) and len({node["name"] for node in nodes}) == len(nodes), "nodes: none, or a name twice")
    regions = cluster.get("region_of")
    side = len(nodes)
    if regions is not None:
        for region in _list(regions, "region_of", len(nodes)):
            _integer(region, "region_of")
        matrix = cluster.get("transfer_s", cluster.get("latency_s"))
        side = len(_list(matrix, "links"))
        _must(max(regions) < side, "region_of: no such region")
    reduced = _list(cluster.get("gradient_bytes", []), "gradient_bytes")
    if "transfer_s" in cluster:
        _must(not {"latency_s", "bandwidth"} & cluster.keys() and not reduced, "links: in both forms")
        _check_matrix(cluster["transfer_s"], side, "transfer_s", diagonal=regions is not None)
    else:
        _fields(cluster, "cluster", "latency_s", "bandwidth", "activation_bytes")
        _check_matrix(cluster["latency_s"], side, "latency_s", diagonal=regions is not None)
        _check_matrix(cluster["bandwidth"], side, "bandwidth", diagonal=regions is not None)
    _must(cluster.get("contention", "none") in ("none", "link", "uplink"), "contention: unknown")
    for name in ("overhead_s", "activation_bytes", "norm_s"):
        _number(cluster.get(name, 0.0), name)
    _must(len(reduced) in {0, stages}, "gradient_bytes: not one for each stage")
    steps = _list(cluster.get("step_s", []), "step_s")
    _must(len(steps) in {0, len(nodes)}, "step_s: not one for each node")
    for value in (*reduced, *steps):
        _number(value, "gradient_bytes or step_s")
    return len(nodes)


def _check_matrix(matrix: Any, side: int, what: str, *, diagonal: bool) -> None:
    for i, row in enumerate(_list(matrix, what, side)):
        for j, value in enumerate(_list(row, what, side)):
            if i != j or diagonal:
                _number(value, what)
                _must(value > 0 or what != "bandwidth", f"{what}: nothing can be sent")


def _check_rules(rules: Any, stages: int) -> None:
    _fields(rules, "constraints", "cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump")
    for name in ("cc1", "cc2", "cc3", "tc2"):
        _must(isinstance(rules[name], bool), f"constraints.{name}: neither true nor false")
    _must(rules["tc1"] in ("held", "routes", "off"), "constraints.tc1: unknown")
    _integer(rules["max_swaps"], "constraints.max_swaps")
    _integer(rules["waves"], "constraints.waves", 1)
    if rules["max_stage_jump"] is not None:
        _integer(rules["max_stage_jump"], "constraints.max_stage_jump", 1)
    profile, classes = rules.get("profile"), rules.get("classes")
    _must(profile is None or classes is None, "constraints: profile and classes")
    for weight in [] if profile is None else _list(profile, "constraints.profile", stages - 1):
        _number(weight, "constraints.profile")
    for one in [] if classes is None else _list(classes, "constraints.classes"):
        _fields(one, "class", "stages", "routes")
        _integer(one["routes"], "class.routes", 1)
        for stage in _list(one["stages"], "class.stages"):
            _integer(stage, "class.stages", 0, stages - 1)


# -------------------------------------------------------------------------------- allocation, routes


def _allocation(plan: Json) -> Iterator[str]:
    """Every node serves one stage or is absent; every stage has a node or is absent."""
    placed = Counter([*itertools.chain(*plan["stages"]), *plan.get("absent_nodes", [])])
    for node in range(len(plan["cluster"]["nodes"])):
        lost = not placed[node] and plan.get("absent_stages")  # with its stage
        if placed[node] != 1 and not lost:
            yield f"allocation: node {node} is placed {placed[node]} times"
    for stage, members in enumerate(plan["stages"]):
        if bool(members) == (stage in plan.get("absent_stages", [])):
            yield f"allocation: stage {stage} has {len(members)} nodes"


def _routes_of(plan: Json) -> dict[int, list[Json]]:
    """Microbatches by route, each in the order of the waves."""
    routes: dict[int, list[Json]] = {}
    for b in sorted(plan["microbatches"], key=lambda b: b["wave"]):
        routes.setdefault(b["route"], []).append(b)
    return routes


def _routes(plan: Json) -> Iterator[str]:
    """Each route by itself: numbers, waves, CC1, CC2, jumps; and how many microbatches start where."""
    rules, sources = plan["constraints"], plan["stages"][0]
    serves = {node: s for s, stage in enumerate(plan["stages"]) for node in stage}
    if not plan["microbatches"]:
        yield "microbatches: none"
    if len({b["id"] for b in plan["microbatches"]}) < len(plan["microbatches"]):
        yield "microbatches: a number twice"
    started = Counter(b["source"] for b in plan["microbatches"])
    if started != Counter({int(key): count for key, count in plan["microbatches_per_source"].items()}):
        yield "microbatches_per_source: other numbers are started"
    for b in plan["microbatches"]:
        name, order = f"microbatch {b['id']}", b["stages"]
        if b["source"] not in sources:
            yield f"{name}: its source is not on stage 0"
        if order != [serves.get(node) for node in b["nodes"]]:
            yield f"{name}: stages are not those of its nodes"
        if not order or len(set(order)) < len(order):
            yield f"{name}: no stage, or one twice"
            continue
        if rules["cc1"] and (order[0] != 0 or b["nodes"][0] != b["source"]):
            yield f"{name}: CC1, does not begin at its source"
        if rules["cc2"] and order not in swapped_orders(order, rules["max_swaps"]):
            yield f"{name}: CC2, order {order}"
        if not jumps_within(order, rules["max_stage_jump"]):
            yield f"{name}: max_stage_jump, order {order}"
    for number, members in _routes_of(plan).items():
        if len({(b["source"], *b["nodes"]) for b in members}) > 1:
            yield f"route {number}: its microbatches go different ways"
        waves = [b["wave"] for b in members]
        if len(set(waves)) < len(waves) or max(waves) >= rules["waves"]:
            yield f"route {number}: waves {waves}"


def _lengths(plan: Json) -> Iterator[str]:
    """All routes together: total, lengths, and CC3 or what stands in its place."""
    rules, firsts = plan["constraints"], [members[0] for members in _routes_of(plan).values()]
    absent = sorted(set(plan.get("absent_stages", [])))
    inner = [s for s in range(1, len(plan["stages"])) if s not in absent]
    total = visit_total({**plan, "absent_stages": absent}, len(firsts))
    lengths = [len(b["stages"]) for b in firsts]
    even = {total // len(firsts), -(-total // len(firsts))}
    if sum(lengths) != total or not (rules.get("classes") or set(lengths) <= even):
        yield f"skip_ratio: routes visit {lengths}, {total} in all is asked for"
        return
    visits = Counter(dict.fromkeys(inner, 0))
    visits.update(s for b in firsts for s in b["stages"] if s != 0)
    if not keeps_shares([set(b["stages"]) for b in firsts], visits, rules, inner):
        yield f"CC3, profile or classes: stages are visited {dict(visits)} times"


def _memory_by_routes(plan: Json) -> Iterator[str]:
    visits = Counter(node for members in _routes_of(plan).values() for node in members[0]["nodes"])
    for node, count in visits.items():
        if plan["constraints"]["tc1"] == "routes" and count > plan["cluster"]["nodes"][node]["memory"]:
            yield f"TC1: {count} routes lead over node {node}"


# --------------------------------------------------------------------------------------- execution


def _execution(plan: Json) -> Iterator[str]:
    """Which tasks there are and when: each after its input, one at a time on a processor, within its memory."""
    work = Work.of(plan, plan["microbatches"])
    durations, links = work.durations, dict[Link, int]()
    times: dict[TaskKey, Json] = {(t["microbatch"], t["kind"], t["hop"]): t for t in plan["tasks"]}
    chains = {b["id"]: task_chain(b) for b in plan["microbatches"]}
    expected = dict(itertools.chain(*chains.values()))
    if len(times) < len(plan["tasks"]) or {key: t["node"] for key, t in times.items()} != expected:
        yield "tasks: missing, surplus or on another node"
        return
    for (number, kind, hop), t in times.items():
        lasts = durations.task[kind][t["node"]] / 1e9
        if t["start_s"] < -TOLERANCE or abs(t["end_s"] - t["start_s"] - lasts) > TOLERANCE:
            yield f"task {number}{kind}{hop}: before 0, or does not last {lasts}"
    left = {}
    for t in plan["tasks"]:  # those of a processor in its order
        key = (t["microbatch"], t["kind"], t["hop"])
        left[key] = work.leave(key, round(t["end_s"] * 1e9), links) / 1e9
    home: dict[int, float] = {}
    for b in sorted(plan["microbatches"], key=lambda b: b["wave"]):
        ready, at = home.get(b["route"], 0.0), b["source"]
        for key, node in chains[b["id"]]:
            arrives = ready + durations.transfer(at, node) / 1e9
            if times[key]["start_s"] < arrives - TOLERANCE:
                yield f"task {key}: starts before its input arrives"
            ready, at = left[key], node
        home[b["route"]] = ready + durations.transfer(at, b["source"]) / 1e9
    for number in sorted(set(durations.processor)):
        own = [t for t in plan["tasks"] if durations.processor[t["node"]] == number]
        if any(b["start_s"] < a["start_s"] - TOLERANCE for a, b in itertools.pairwise(own)):
            yield f"node {number}: tasks are not in the order of their starts"
        by_time = sorted(own, key=lambda t: (t["start_s"], t["end_s"]))  # one of length 0 before one that starts then
        if any(b["start_s"] < a["end_s"] - TOLERANCE for a, b in itertools.pairwise(by_time)):
            yield f"node {number}: two tasks at once"
    for node, data in enumerate(plan["cluster"]["nodes"]):
        own = [t for t in plan["tasks"] if t["node"] == node]
        taken = [(t["start_s"] + TOLERANCE, 1) for t in own if t["kind"] == "F"]
        freed = [(t["end_s"], -1) for t in own if t["kind"] == "B"]
        held = itertools.accumulate(change for _, change in sorted([*taken, *freed]))
        if plan["constraints"]["tc1"] == "held" and max(held, default=0) > data["memory"]:
            yield f"TC1: node {node} holds too many microbatches"
    yield from _predictions(plan, durations, max(home.values()))


def _predictions(plan: Json, durations: Durations, pipeline_s: float) -> Iterator[str]:
    said, ends = plan["predicted"], [pipeline_s]
    for members, said_s, reduce in zip(plan["stages"], said["allreduce_s"], durations.allreduce, strict=True):
        last = [t["end_s"] for t in plan["tasks"] if t["kind"] == "B" and t["node"] in members]
        ends.append(max(last, default=0.0) + reduce / 1e9)
        if not _agree(said_s, reduce / 1e9):
            yield f"predicted.allreduce_s: {said_s}"
    iteration_s, bound_s = max(ends) + durations.after / 1e9, said["lower_bound_s"]
    for name, found in (("pipeline_s", pipeline_s), ("iteration_s", iteration_s)):
        if not _agree(said[name], found):
            yield f"predicted.{name}: {said[name]}, by its tasks {found}"
    if bound_s > iteration_s * (1 + 1e-9) + TOLERANCE:
        yield f"predicted.lower_bound_s: {bound_s} above the iteration"
    if bound_s > 0 and abs(said["gap"] - (said["iteration_s"] - bound_s) / bound_s) > TOLERANCE:
        yield f"predicted.gap: {said['gap']}"
    if plan["solver"].get("optimal") is True and said["iteration_s"] > bound_s * (1 + 1e-9):
        yield "solver.optimal: the bound does not prove it"


def _agree(stated: float, found: float) -> bool:
    return abs(stated - found) <= 10 * TOLERANCE * max(1.0, found)
