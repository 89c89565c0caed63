"""The folder of an evaluation: one line for every way that was measured, so that it goes on where it stopped.

settings.json    what decides about a loss: model, text, numbers
results.jsonl    a line for each way through the layers: losses of every sequence, times
table.json, table.md, perplexity.png    made of these at the end
"""

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from skippipe.errors import InputError
from skippipe.evaluate.intervals import Losses
from skippipe.evaluate.omission import Way
from skippipe.files import check_plain, cut_to_lines, open_own, read_json_object, remove_leftovers, write_text

FORMAT = "skippipe.evaluation/1"
SETTINGS, RESULTS, TABLE, PAGE, PICTURE = (
    "settings.json", "results.jsonl", "table.json", "table.md", "perplexity.png",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What was measured on one way through the layers."""

    way: Way
    losses: Losses
    """sum of the token losses of each sequence, shape (sequences,)"""
    seconds: float
    """for the whole text"""
    time_ratio: float | None
    """time of a forward pass over that of the whole model; None: not measured"""

    def line(self) -> str:
        """As it is kept."""
        return json.dumps(
            {
                "layers": list(self.way),
                "loss": float(self.losses.sum()),
                "seconds": round(self.seconds, 6),
                "time_ratio": self.time_ratio,
                "losses": base64.b64encode(self.losses.astype("<f8").tobytes()).decode(),
            }
        )


def parse_line(line: str, sequences: int) -> Result:
    """Make sense of a line; raises `ValueError` where it is none, or of another number of sequences."""
    try:
        content = json.loads(line)
        losses = np.frombuffer(base64.b64decode(content["losses"], validate=True), dtype="<f8").astype(np.float64)
        way = tuple(int(layer) for layer in content["layers"])
        ratio = content["time_ratio"]
        result = Result(way, losses, float(content["seconds"]), None if ratio is None else float(ratio))
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from None
    if list(way) != content["layers"]:
        raise ValueError(f"layers are {content['layers']!r}")
    if len(losses) != sequences:
        raise ValueError(f"{len(losses)} sequences, {sequences} are expected")
    return result


class Results:
    """Results known so far; a context manager, since a file is open."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], sequences: int) -> None:
        """Begin a folder, or go on with one.

        Args:
            folder: a new one, an empty one, or one that was begun with the same settings; nobody else uses it.
            settings: all that decides about a loss.
            sequences: of the text.

        Raises:
            InputError: the folder holds other files, or was begun with other settings, or its results are damaged.

        """
        begin(folder, settings)
        path = folder / RESULTS
        self.known: dict[Way, Result] = {}
        self._file = os.fdopen(open_own(path), "r+b")
        try:
            cut_to_lines(self._file.fileno())
            self._file.seek(0)
            for number, line in enumerate(self._file.read().splitlines(), 1):
                result = _parsed(line, sequences, f"{path}: line {number}")
                self.known[result.way] = result
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, result: Result) -> None:
        """Keep a result, so that it is there after a power cut too."""
        self._file.write((result.line() + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.known[result.way] = result


def _parsed(line: bytes, sequences: int, place: str) -> Result:
    try:
        return parse_line(line.decode(), sequences)
    except ValueError as error:
        raise InputError(f"{place} is no result: {error}; another output is expected") from None


def check_folder(folder: Path) -> None:
    """Raise `InputError` where a folder holds something, and nothing of ours."""
    names = _names(folder)
    if names and SETTINGS not in names:
        raise InputError(f"output={folder} holds {names[0]} and no {SETTINGS}: a new or an empty folder is expected")


def check_comparison_folder(folder: Path) -> None:
    """Raise `InputError` where a folder holds more than a comparison does: an evaluation, say, whose table would go."""
    foreign = [name for name in _names(folder) if name not in {PAGE, PICTURE}]
    if foreign:
        raise InputError(
            f"output={folder} holds {foreign[0]}: a new folder, an empty one, or that of a comparison is expected"
        )


def _names(folder: Path) -> list[str]:
    """What is in a folder that may not be there, but for what a process that was killed has left half-written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output={folder} is a file, a folder is expected")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in found if not (name.startswith(".") and name.endswith(".tmp"))]


def make_folder(folder: Path) -> None:
    """Make a folder where there is none; raises `InputError` where that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_plain(folder, [RESULTS, SETTINGS, PAGE, PICTURE, TABLE], [])
    except OSError as error:
        raise InputError(f"output={folder} cannot be written: {error.strerror or error}") from None


def begin(folder: Path, settings: Mapping[str, Any]) -> None:
    """Make a folder and write its settings; where they stand there already, hold them against these."""
    check_folder(folder)
    path, stated = folder / SETTINGS, {"format": FORMAT, **settings}
    if not path.is_file():
        make_folder(folder)
        remove_leftovers(folder, SETTINGS)
        write_text(path, json.dumps(stated, indent=1) + "\n")
        return
    found = read_json_object(str(path))
    for key in stated | found:
        if found.get(key) != stated.get(key):
            raise InputError(
                f"{path}: {key} is {found.get(key)!r}, here it is {stated.get(key)!r}: these are results of other "
                "settings, another output is expected"
            )
