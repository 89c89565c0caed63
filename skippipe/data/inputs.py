"""Input files of a corpus, by names and patterns, or shards of a dataset of the hub."""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from skippipe.data.config import DataConfig
from skippipe.data.corpus import Split
from skippipe.errors import InputError, unexpected, unreadable

SUFFIXES = {".txt": "text", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
COMPRESSED = (".gz", ".bz2", ".xz")
RECURSIVE = "**"
ONE_IN = 20
"""Default validation split: one file in `ONE_IN`, by a hash of its name."""


@dataclass(frozen=True)
class InputFile:
    """A file, or a shard of a dataset of the hub."""

    name: str
    """as given, or as found by a pattern"""
    kind: str
    """text, json, parquet or hub"""
    bytes: int | None = None
    """size of the file; None: unknown"""
    modified: int | None = None
    """modification time in nanoseconds"""

    @property
    def text_bytes(self) -> int | None:
        """Bytes of text in it, if known from its size."""
        return self.bytes if self.kind == "text" and not self.name.endswith(COMPRESSED) else None


Inputs = dict[Split, list[InputFile]]


def find_files(config: DataConfig) -> Inputs:
    """Find the files of both splits, in order and disjoint.

    Raises:
        InputError: a name or pattern without a match, a file of unknown format, a split without files.

    """
    training = _inputs("training", config.training, config)
    validation = _inputs("validation", config.validation, config) if config.validation is not None else None
    if validation is None and config.training is None:
        validation = _inputs("validation", None, config)
    if validation is None:
        training, validation = split_by_name(training)
    else:
        held_out = {os.path.realpath(file.name) for file in validation}
        training = [file for file in training if os.path.realpath(file.name) not in held_out]
    if not training:
        raise unexpected("data.training", "none", "at least one file that is not in data.validation")
    return {"training": training, "validation": validation}


def split_by_name(inputs: Sequence[InputFile]) -> tuple[list[InputFile], list[InputFile]]:
    """Split files into training and validation by a hash of each base name.

    A file's split depends on its name alone, so adding files moves none of the others.
    """
    training: list[InputFile] = []
    validation: list[InputFile] = []
    for file in inputs:
        (validation if falls_to_validation(Path(file.name).name) else training).append(file)
    if not validation or not training:
        part = f"{'none' if not validation else 'all'} of {len(inputs)}"
        hint = f"a hash of its name assigns one file in {ONE_IN} of data.training to validation, here {part}"
        raise unexpected("data.validation", None, "[FILE,...]", hint=hint)
    return training, validation


def falls_to_validation(name: str) -> bool:
    """Whether a file of this name is in the default validation split: one in `ONE_IN` is."""
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") % ONE_IN == 0


def _inputs(split: Split, patterns: Sequence[str] | None, config: DataConfig) -> list[InputFile]:
    if patterns is None:
        return [_file(path, "text") for path in _shipped_files(split)]
    key = f"data.{split}"
    found: dict[str, InputFile] = {}
    for i, pattern in enumerate(patterns):
        entry = f"{key}[{i}]"
        try:
            matches = matching(pattern)
        except OSError as error:
            raise unreadable(error.filename, error, entry) from None
        if not matches:
            hint = f"fetch it with `{config.fetch}`" if config.fetch is not None else None
            raise InputError(f"no such file: {pattern}", key=entry, hint=hint)
        for name in matches:
            path = Path(name)
            if not os.path.isfile(path):  # noqa: PTH113 - handles names that are too long
                raise unexpected(entry, path, "a file")
            found.setdefault(os.path.realpath(path), _file(path, config.format or _format(entry, path)))
    if not found:
        raise unexpected(key, [], "at least one file")
    return list(found.values())


def matching(pattern: str) -> list[str]:
    """Sorted names that match a pattern; an existing path matches itself, whatever characters it contains.

    So does an existing folder at the start of a pattern. `**` matches any folders, and files only if it comes last.
    Raises `OSError` for unreadable folders.
    """
    if os.path.lexists(pattern):
        return [pattern]
    parts = pattern.split("/")
    heads = ("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
    head = next((head for head in heads if head and os.path.isdir(head)), "")  # noqa: PTH112 - handles odd names
    return sorted(set(_expanded(glob.escape(head) + pattern.removeprefix(head))))


def _expanded(pattern: str) -> Iterator[str]:
    parts = pattern.split("/")
    if RECURSIVE not in parts:
        yield from glob.iglob(pattern)  # noqa: PTH207 - absolute ones too
        return
    index = parts.index(RECURSIVE)
    head, tail = "/".join(parts[:index]), "/".join(parts[index + 1 :]) or "*"
    roots = glob.glob(head + "/") if head or index else [""]  # noqa: PTH207
    for folder in roots:
        for inner in _folders(folder):
            names = _expanded(glob.escape(inner) + tail)
            yield from (name for name in names if os.path.isfile(name))  # noqa: PTH113


def _folders(top: str) -> Iterator[str]:
    """A folder and all non-hidden folders below it, each once, so that cyclic links end.

    Names end with a separator, or are empty.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        about = os.stat(folder or os.curdir)  # noqa: PTH116
        if (about.st_dev, about.st_ino) in seen:
            continue
        seen.add((about.st_dev, about.st_ino))
        yield folder
        names = (name for name in sorted(os.listdir(folder or os.curdir), reverse=True) if not name.startswith("."))  # noqa: PTH208
        waiting += (f"{folder}{name}/" for name in names if os.path.isdir(f"{folder}{name}"))  # noqa: PTH112


def _file(path: Path, kind: str) -> InputFile:
    try:
        stat = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return InputFile(str(path), kind, stat.st_size, stat.st_mtime_ns)


def _format(key: str, path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = len(suffixes) > 1 and suffixes[-1] in COMPRESSED
    kind = SUFFIXES.get(suffixes[-2] if packed else suffixes[-1]) if suffixes else None
    if kind is None or (packed and kind == "parquet"):
        expected = f"a suffix of {', '.join(SUFFIXES)}, optionally with {', '.join(COMPRESSED)}, or data.format"
        raise unexpected(key, path, expected)
    return kind


def _shipped_files(split: Split) -> list[Path]:
    folder = Path(str(resources.files("skippipe.data") / "text" / split))
    return sorted(folder.glob("*.txt"))
