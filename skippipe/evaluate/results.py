"""The folder of an evaluation: one line per measured layer path, so that an evaluation can resume.

settings.json    everything that determines a loss: model, corpus, dtypes
results.jsonl    one line per layer path: losses of every sequence, times
table.json, table.md, perplexity.png    made from these at the end
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

from skippipe.errors import InputError, shown, unexpected, unwritable
from skippipe.evaluate.intervals import Losses
from skippipe.evaluate.omission import LayerPath
from skippipe.files import check_plain, cut_to_lines, open_own, read_json_object, remove_leftovers, write_text

FORMAT = "skippipe.evaluation/1"
SETTINGS, RESULTS, TABLE, MARKDOWN, PLOT = (
    "settings.json", "results.jsonl", "table.json", "table.md", "perplexity.png",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Measurements of one layer path."""

    path: LayerPath
    losses: Losses
    """sum of the token losses of each sequence, shape (sequences,)"""
    seconds: float
    """for the full corpus"""
    time_ratio: float | None
    """time of a forward pass relative to the full model's; None: not measured"""

    def line(self) -> str:
        """Serialise it to a line."""
        return json.dumps(
            {
                "layers": list(self.path),
                "loss": float(self.losses.sum()),
                "seconds": round(self.seconds, 6),
                "time_ratio": self.time_ratio,
                "losses": base64.b64encode(self.losses.astype("<f8").tobytes()).decode(),
            }
        )


def parse_line(line: str, sequences: int) -> Result:
    """Parse a line; raises `ValueError`, also for another number of sequences."""
    try:
        content = json.loads(line)
        losses = np.frombuffer(base64.b64decode(content["losses"], validate=True), dtype="<f8").astype(np.float64)
        path = tuple(int(layer) for layer in content["layers"])
        ratio = content["time_ratio"]
        result = Result(path, losses, float(content["seconds"]), None if ratio is None else float(ratio))
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from None
    if list(path) != content["layers"]:
        raise unexpected("layers", content["layers"], "integers")
    if len(losses) != sequences:
        raise unexpected("losses", len(losses), f"those of {sequences} sequences")
    return result


class Results:
    """Results so far; a context manager that holds the open file."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], sequences: int) -> None:
        """Start or resume an evaluation.

        Args:
            folder: new, empty, or started with the same settings; for exclusive use.
            settings: everything that determines a loss.
            sequences: number of sequences of the corpus.

        Raises:
            InputError: the folder holds other files or results of other settings, or results are damaged.

        """
        begin(folder, settings)
        path = folder / RESULTS
        self.known: dict[LayerPath, Result] = {}
        self._file = os.fdopen(open_own(path), "r+b")
        try:
            cut_to_lines(self._file.fileno())
            self._file.seek(0)
            for number, line in enumerate(self._file.read().splitlines(), 1):
                result = _parsed(line, sequences, path, number)
                self.known[result.path] = result
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, result: Result) -> None:
        """Append a result and sync it to disk."""
        self._file.write((result.line() + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.known[result.path] = result


def _parsed(line: bytes, sequences: int, path: Path, number: int) -> Result:
    try:
        return parse_line(line.decode(), sequences)
    except ValueError as error:
        reason = f"invalid result: {error}"
        raise InputError(reason, file=path, position=[number], hint="choose another output") from None


def check_folder(folder: Path) -> None:
    """Raise `InputError` if a folder holds files, but not those of an evaluation."""
    names = _names(folder)
    if names and SETTINGS not in names:
        raise unexpected("output", f"{folder} with {names[0]} and no {SETTINGS}", "a new or empty folder")


def check_comparison_folder(folder: Path) -> None:
    """Raise `InputError` if a folder holds more than a comparison does, such as an evaluation."""
    foreign = [name for name in _names(folder) if name not in {MARKDOWN, PLOT}]
    if foreign:
        raise unexpected("output", f"{folder} with {foreign[0]}", "a new or empty folder, or that of a comparison")


def _names(folder: Path) -> list[str]:
    """Files in a folder, if it exists, without temporary files of a killed process."""
    if folder.exists() and not folder.is_dir():
        raise unexpected("output", f"the file {folder}", "a folder")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in found if not (name.startswith(".") and name.endswith(".tmp"))]


def make_folder(folder: Path) -> None:
    """Create a folder if necessary; raises `InputError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_plain(folder, [RESULTS, SETTINGS, MARKDOWN, PLOT, TABLE], [])
    except OSError as error:
        raise unwritable(folder, error, "output") from None


def begin(folder: Path, settings: Mapping[str, Any]) -> None:
    """Create a folder with its settings, or check them against those already there."""
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
            hint = "results of other settings; choose another output"
            raise unexpected(key, found.get(key), shown(stated.get(key)), path, hint)
