"""What a rank tells whoever watches it: one JSON object a line, `event` its kind.

`failed` comes from every rank, all others from rank 0: `attempt`, `plan`, `validation`, `iteration`, `summary`. The
supervisor of a local run adds `starting`, and `started` and `ended` for every process. What rank 0 tells is kept in
`metrics.jsonl`, each event with the number of its `attempt`; whoever started it adds `run_ended`.
"""

import json
import math
import os
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Report = Callable[[Event], None]


def strict(event: Event) -> Event:
    """The same event as JSON can hold it: a number that is not finite becomes null.

    What such numbers were is said under `not_finite`: "NaN", "Infinity" or "-Infinity", by the dotted keys of each.
    """
    odd: dict[str, str] = {}
    plain: Event = _plain(event, "", odd)
    return plain | {"not_finite": odd} if odd else plain


def _plain(value: Any, path: str, odd: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        odd[path] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return None
    if isinstance(value, dict):
        return {key: _plain(item, f"{path}.{key}" if path else str(key), odd) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}.{number}", odd) for number, item in enumerate(value)]
    return value


class LineWriter:
    """Writes events to a file descriptor, each in one piece."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __call__(self, event: Event) -> None:
        """Write one event; a reader that has gone is no error here, the process is told in another way."""
        line = memoryview((json.dumps(event) + "\n").encode())
        try:
            while line:
                line = line[os.write(self.descriptor, line) :]
        except BrokenPipeError:
            pass


class LineReader:
    """Puts events together from the pieces that a pipe gives."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Take bytes, give the events that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line]
