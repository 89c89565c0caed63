"""What a rank tells whoever watches it: one JSON object a line, `event` its kind.

`failed` comes from every rank, all others from rank 0: `plan`, `validation`, `iteration`, `summary`. The supervisor of
a local run adds `starting`, and `started` and `ended` for every process.
"""

import json
import os
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Report = Callable[[Event], None]


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
