"""When nodes go down and come up: read from a file (`skippipe.churn/1`), or drawn. All of them are up at first."""

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from skippipe.errors import InputError, in_file, unexpected
from skippipe.files import read_text

FORMAT = "skippipe.churn/1"


class Change(NamedTuple):
    """A node goes down or comes up."""

    time_s: float
    node: int
    up: bool


def draw_trace(nodes: int, mean_up_s: float, mean_down_s: float, horizon_s: float, seed: int) -> list[Change]:
    """Draw a trace: times up and down are exponential, independent for each node."""
    changes: list[Change] = []
    for node in range(nodes):
        generator, now, up = random.Random(f"{seed} {node}"), 0.0, True  # noqa: S311 - no secret
        while True:
            now += generator.expovariate(1.0 / (mean_up_s if up else mean_down_s))
            if now >= horizon_s:
                break
            up = not up
            changes.append(Change(now, node, up))
    return sorted(changes)


def load_trace(file: str, names: Sequence[str]) -> list[Change]:
    """Read a trace for the nodes with these names.

    Raises:
        InputError: the file cannot be read, or says something else.

    """
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise InputError(file=file, expected=f"a file in the format {FORMAT}", found=error) from None
    try:
        return _changes(content, names)
    except InputError as error:
        raise in_file(error, file) from None


def _changes(content: Any, names: Sequence[str]) -> list[Change]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise unexpected("format", content.get("format") if isinstance(content, dict) else content, FORMAT)
    given = content.get("changes")
    if not isinstance(given, list):
        raise unexpected("changes", given, "a list of changes")
    numbers = {name: number for number, name in enumerate(names)}
    changes = [_change(f"changes[{index}]", change, numbers) for index, change in enumerate(given)]
    up = dict.fromkeys(range(len(names)), True)
    for index, change in sorted(enumerate(changes), key=lambda pair: pair[1]):
        if up[change.node] == change.up:
            found = f"node {names[change.node]} {'up' if change.up else 'down'} twice in a row"
            raise unexpected(f"changes[{index}].up", found, "nodes that go down and come up in turn, up at first")
        up[change.node] = change.up
    return sorted(changes)


def _change(key: str, given: Any, numbers: dict[str, int]) -> Change:
    if not isinstance(given, dict):
        raise unexpected(key, given, "{time_s, node, up}")
    unknown = sorted(given.keys() - {"time_s", "node", "up"})
    if unknown:
        raise unexpected(f"{key}.{unknown[0]}", given[unknown[0]], "time_s, node and up only")
    time_s, node, up = given.get("time_s"), given.get("node"), given.get("up")
    if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not 0 <= time_s < float("inf"):
        raise unexpected(f"{key}.time_s", time_s, "seconds from 0")
    if not isinstance(node, str) or node not in numbers:
        raise unexpected(f"{key}.node", node, "a node of the plan")
    if not isinstance(up, bool):
        raise unexpected(f"{key}.up", up, "true or false")
    return Change(float(time_s), numbers[node], up)
