"""Mutations of the form of a plan: types, missing and repeated entries, versions."""

import math
from random import Random
from typing import Any

from reference.instances import Json

from .registry import NothingToChangeError, form, pick

WRONG: list[Any] = [
    None,
    True,
    "",
    "x",
    "1",
    [],
    {},
    [[]],
    -1,
    -0.5,
    1.5,
    2**31,
    2**40,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
]


def walk(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every non-empty path into a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = []
    for key, inner in items:
        found.append((*path, key))
        found += walk(inner, (*path, key))
    return found


def _branch(rng: Random, plan: Json) -> tuple[Any, ...]:
    """A path drawn level by level, so that long lists do not dominate the draws."""
    path: tuple[Any, ...] = ()
    value: Any = plan
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        path, value = (*path, key), value[key]
        if rng.random() < 0.15:
            break
    return path


def _parent(plan: Json, path: tuple[Any, ...]) -> Any:
    value: Any = plan
    for key in path[:-1]:
        value = value[key]
    return value


@form
def replaced_value(rng: Random, plan: Json) -> None:
    """A random value is replaced by one of another type or range."""
    path = _branch(rng, plan)
    _parent(plan, path)[path[-1]] = rng.choice(WRONG)
    plan["_path"] = path


@form
def removed_entry(rng: Random, plan: Json) -> None:
    """A random entry is removed."""
    path = _branch(rng, plan)
    del _parent(plan, path)[path[-1]]
    plan["_path"] = path


@form
def doubled_entry(rng: Random, plan: Json) -> None:
    """An entry of a random list is listed twice."""
    lists = [path for path in walk(plan) if isinstance(_parent(plan, path), list)]
    path = pick(rng, lists)
    parent = _parent(plan, path)
    parent.insert(path[-1], parent[path[-1]])
    plan["_path"] = path


@form
def unknown_key(rng: Random, plan: Json) -> None:
    """A key unknown to the format."""
    path = pick(rng, [p for p in walk(plan) if isinstance(p[-1], str) and p[0] != "microbatches_per_source"])
    _parent(plan, path)["unknown"] = rng.choice(WRONG[:-4])
    plan["_path"] = (*path[:-1], "unknown")


@form
def integer_for_float(rng: Random, plan: Json) -> None:
    """A time is written without a decimal point, an integer with one: the same number."""
    path = pick(rng, [p for p in walk(plan) if p[-1] in ("start_s", "end_s", "memory", "forward_s", "latency_s")])
    parent = _parent(plan, path)
    if isinstance(parent[path[-1]], list) or parent[path[-1]] != int(parent[path[-1]]):
        raise NothingToChangeError
    value = parent[path[-1]]
    parent[path[-1]] = float(value) if isinstance(value, int) else int(value)
    plan["_path"] = path


@form
def other_format(rng: Random, plan: Json) -> None:
    """An unknown version."""
    inner = rng.choice([plan, plan["cluster"]])
    inner["format"] = rng.choice(["skippipe.plan/2", "skippipe.cluster/2", "", "skippipe.plan", None])


@form
def both_link_forms(rng: Random, plan: Json) -> None:
    """Transfer times are given in addition to latency and bandwidth, or vice versa."""
    cluster = plan["cluster"]
    if "transfer_s" in cluster:
        side = len(cluster["transfer_s"])
        cluster["latency_s"] = cluster["bandwidth"] = [[1.0] * side] * side
        plan["_path"] = ("cluster", "latency_s")
    else:
        side = len(cluster["latency_s"])
        cluster["transfer_s"] = [[0.0] * side] * side
        plan["_path"] = ("cluster", "transfer_s")


@form
def gradients_without_links(rng: Random, plan: Json) -> None:
    """All-reduce sizes are given in addition to transfer times."""
    if "transfer_s" not in plan["cluster"]:
        raise NothingToChangeError
    plan["cluster"]["gradient_bytes"] = [0.0] * len(plan["stages"])


@form
def zero_bandwidth(rng: Random, plan: Json) -> None:
    """A link has no bandwidth."""
    matrix = plan["cluster"].get("bandwidth", [])
    row = pick(rng, matrix)
    i = rng.randrange(len(row))
    row[i] = rng.choice([0, 0.0, -1000.0])
    plan["_path"] = ("cluster", "bandwidth", matrix.index(row), i)


@form
def ragged_matrix(rng: Random, plan: Json) -> None:
    """A link matrix is not square."""
    name = pick(rng, [k for k in ("transfer_s", "latency_s", "bandwidth") if k in plan["cluster"]])
    matrix = plan["cluster"][name]
    if rng.random() < 0.5:
        rng.choice(matrix).append(1.0)
    else:
        matrix.append([1.0] * len(matrix))
    plan["_path"] = ("cluster", name)


@form
def repeated_name(rng: Random, plan: Json) -> None:
    """Two nodes have the same name."""
    nodes = plan["cluster"]["nodes"]
    nodes[0]["name"] = nodes[-1]["name"]
    plan["_path"] = ("cluster", "nodes", 0, "name")
