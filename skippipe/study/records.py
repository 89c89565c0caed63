"""Records of a study's arms from all machines: one JSON file with small diffs."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from skippipe.errors import InputError, unexpected, unwritable
from skippipe.evaluate.summary import Row, row_from_json, row_json
from skippipe.files import read_json_object, write_text
from skippipe.study.run_history import Point

FORMAT = "skippipe.study/1"
WIDTH = 140


class ArmKey(NamedTuple):
    """Identifies an arm."""

    experiment: str
    seed: int

    @property
    def title(self) -> str:
        """Name in messages and tables."""
        return f"{self.experiment}, seed {self.seed}"


@dataclass(frozen=True)
class ArmRecord:
    """Record of one arm."""

    experiment: str
    seed: int
    settings: str
    """hash of everything that determines what is learnt, except the corpus"""
    tokens: int
    """of the complete training"""
    strategy: str
    skip_ratio: float
    """of the run's first plan"""
    skip_changes: list[tuple[float, float]] = field(default_factory=list)
    """for every phase but the first: fraction of the run before it, and its skip ratio"""
    stages_in_use: list[str] = field(default_factory=list)
    """of every phase, as set; empty: all in all phases"""
    rules: dict[str, Any] = field(default_factory=dict)
    """cc1, cc2, cc3 and so on"""
    text: str | None = None
    """hash of the corpus; None: not started"""
    text_tokens: int | None = None
    """distinct training tokens"""
    model: str | None = None
    parameters: int | None = None
    tokens_done: int = 0
    finished: bool = False
    """whether the training is complete"""
    seconds: float = 0.0
    """spent in iterations"""
    tokens_per_s: float | None = None
    """median over iterations"""
    mfu: float | None = None
    """median over iterations, counting executed operations"""
    device: str | None = None
    breakdown: dict[str, float] = field(default_factory=dict)
    """fraction of time by kind of work, if iterations were profiled"""
    date: str | None = None
    """day of the run's latest event, UTC"""
    versions: dict[str, str] = field(default_factory=dict)
    note: str | None = None
    """why the latest attempt failed"""
    curve: list[Point] = field(default_factory=list)
    evaluation: list[Row] = field(default_factory=list)
    """rows of `skippipe evaluate`"""

    @property
    def key(self) -> ArmKey:
        """The arm's key."""
        return ArmKey(self.experiment, self.seed)

    @property
    def tokens_left(self) -> int:
        """Tokens still to train."""
        return max(self.tokens - self.tokens_done, 0)

    @property
    def epochs(self) -> float | None:
        """Epochs over the training text so far."""
        return None if not self.text_tokens else self.tokens_done / self.text_tokens

    @property
    def latest(self) -> Point | None:
        """The latest losses."""
        return self.curve[-1] if self.curve else None


Records = dict[ArmKey, ArmRecord]


def merged(old: ArmRecord | None, new: ArmRecord) -> ArmRecord:
    """Merge a stored record with this machine's: more tokens wins, then a finished run.

    For equal progress, evaluations are combined; date and versions of the stored record stay, since a copied folder is
    read on other machines and days.

    Raises:
        InputError: different settings or corpora.

    """
    if old is None or (old.settings != new.settings and not old.tokens_done):
        return new
    for what, theirs, ours in (("other settings", old.settings, new.settings), ("another corpus", old.text, new.text)):
        if theirs is not None and ours is not None and theirs != ours:
            reason = f"{new.key.title} is recorded with {what} (hash {theirs[:8]}, here {ours[:8]})"
            raise InputError(reason, key="records", hint="choose another file, or remove the record")
    if (old.tokens_done, old.finished) > (new.tokens_done, new.finished):
        return dataclasses.replace(old, note=new.note or old.note)
    if (old.tokens_done, old.finished) < (new.tokens_done, new.finished):
        return dataclasses.replace(new, text=new.text or old.text)
    omissions = {row.omission for row in new.evaluation}
    return dataclasses.replace(
        new,
        text=new.text or old.text,
        date=old.date or new.date,
        versions=old.versions or new.versions,
        evaluation=[*new.evaluation, *(row for row in old.evaluation if row.omission not in omissions)],
        note=new.note or (None if omissions - {row.omission for row in old.evaluation} else old.note),
    )


def load_records(path: Path) -> Records:
    """Read the records; empty if there is no file.

    Raises:
        InputError: the file is unreadable or malformed, or its name collides with page or plots.

    """
    if path.suffix != ".json":
        raise unexpected("records", path, "a name ending in .json")
    if not path.exists():
        return {}
    content = read_json_object(str(path))
    if content.get("format") != FORMAT:
        raise unexpected("format", content.get("format"), FORMAT, path)
    try:
        entries = [_entry(entry) for entry in content["entries"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not written by `skippipe study`: {error!r}", file=path) from None
    return {entry.key: entry for entry in entries}


def save_records(path: Path, entries: Iterable[ArmRecord]) -> None:
    """Write the records atomically, creating the folder.

    Raises:
        InputError: the folder cannot be created.
        OSError: they cannot be written.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error, "records") from None
    write_text(path, records_json(entries))


def records_json(entries: Iterable[ArmRecord]) -> str:
    """The records as JSON text."""
    return format_json({"format": FORMAT, "entries": [_plain(entry) for entry in entries]}) + "\n"


def format_json(value: Any, indent: int = 0) -> str:
    """Compact JSON: short values on one line, others with one element per line."""
    flat = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (len(flat) + indent <= WIDTH and not _deep(value)):
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {format_json(part, indent + 1)}" for key, part in value.items()
        ]
    else:
        parts = [format_json(part, indent + 1) for part in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + ",\n".join(inner + part for part in parts) + "\n" + " " * indent + end


def _deep(value: Mapping[str, Any] | list[Any]) -> bool:
    """Whether a list or object contains several lists or objects."""
    parts = value.values() if isinstance(value, Mapping) else value
    return sum(isinstance(part, dict | list) and bool(part) for part in parts) > 1


def _plain(entry: ArmRecord) -> dict[str, Any]:
    fields = {item.name: getattr(entry, item.name) for item in dataclasses.fields(entry)}
    return fields | {
        "skip_changes": [list(change) for change in entry.skip_changes],
        "curve": [list(point) for point in entry.curve],
        "evaluation": [row_json(row) for row in entry.evaluation],
    }


def _entry(content: Mapping[str, Any]) -> ArmRecord:
    return ArmRecord(
        **{
            **content,
            "skip_changes": [(float(after), float(ratio)) for after, ratio in content["skip_changes"]],
            "curve": [Point(int(tokens), loss, training) for tokens, loss, training in content["curve"]],
            "evaluation": [row_from_json(row) for row in content["evaluation"]],
        }
    )
