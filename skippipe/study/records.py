"""What is known of the arms of a study, wherever they ran: one JSON file that differs little when little is new."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from skippipe.errors import InputError
from skippipe.evaluate.summary import Row, row_from_json, row_json
from skippipe.files import read_json_object, write_text
from skippipe.study.run_history import Point

FORMAT = "skippipe.study/1"
WIDTH = 140


class ArmKey(NamedTuple):
    """Which arm an entry is of."""

    experiment: str
    seed: int

    @property
    def title(self) -> str:
        """How to call it."""
        return f"{self.experiment}, seed {self.seed}"


@dataclass(frozen=True)
class ArmRecord:
    """What is known of one arm."""

    experiment: str
    seed: int
    settings: str
    """hash of everything that decides about what is learnt, but the text"""
    tokens: int
    """of the whole training"""
    strategy: str
    skip_ratio: float
    """of the plan that the run began with"""
    skip_changes: list[tuple[float, float]] = field(default_factory=list)
    """share of the run that comes before, and skip ratio from there on"""
    rules: dict[str, Any] = field(default_factory=dict)
    """cc1, cc2, cc3 and so on"""
    text: str | None = None
    """hash of the text; None: nothing was run yet"""
    text_tokens: int | None = None
    """different tokens that are trained on"""
    model: str | None = None
    parameters: int | None = None
    tokens_done: int = 0
    finished: bool = False
    """the run has come to its end"""
    seconds: float = 0.0
    """spent in iterations"""
    tokens_per_s: float | None = None
    """median over iterations"""
    mfu: float | None = None
    """median over iterations, of executed operations"""
    device: str | None = None
    breakdown: dict[str, float] = field(default_factory=dict)
    """shares of the time by kind of work, where some iterations were taken apart"""
    date: str | None = None
    """day of the latest line of the run, UTC"""
    versions: dict[str, str] = field(default_factory=dict)
    note: str | None = None
    """why the latest attempt failed"""
    curve: list[Point] = field(default_factory=list)
    evaluation: list[Row] = field(default_factory=list)
    """rows of `skippipe evaluate`"""

    @property
    def key(self) -> ArmKey:
        """Which arm this is of."""
        return ArmKey(self.experiment, self.seed)

    @property
    def tokens_left(self) -> int:
        """Tokens that are still to be trained on."""
        return max(self.tokens - self.tokens_done, 0)

    @property
    def epochs(self) -> float | None:
        """How often each token of the text was trained on so far."""
        return None if not self.text_tokens else self.tokens_done / self.text_tokens

    @property
    def latest(self) -> Point | None:
        """The latest losses."""
        return self.curve[-1] if self.curve else None


Records = dict[ArmKey, ArmRecord]


def merged(old: ArmRecord | None, new: ArmRecord) -> ArmRecord:
    """Put together what stands in the records and what is known here: more tokens done wins, then a run at its end.

    Of runs that are equally far, words that were evaluated are put together; day and versions stay those that stand
    there, since a folder that is carried about is read on other machines and other days.

    Raises:
        InputError: the two are of different settings or texts.

    """
    if old is None or (old.settings != new.settings and not old.tokens_done):
        return new
    for what, theirs, ours in (("other settings", old.settings, new.settings), ("another text", old.text, new.text)):
        if theirs is not None and ours is not None and theirs != ours:
            raise InputError(
                f"{new.key.title} stands in the records with {what} (hash {theirs[:8]}, here {ours[:8]}): name "
                "another file, or remove the entry"
            )
    if (old.tokens_done, old.finished) > (new.tokens_done, new.finished):
        return dataclasses.replace(old, note=new.note or old.note)
    if (old.tokens_done, old.finished) < (new.tokens_done, new.finished):
        return dataclasses.replace(new, text=new.text or old.text)
    words = {row.omission for row in new.evaluation}
    return dataclasses.replace(
        new,
        text=new.text or old.text,
        date=old.date or new.date,
        versions=old.versions or new.versions,
        evaluation=[*new.evaluation, *(row for row in old.evaluation if row.omission not in words)],
        note=new.note or (None if words - {row.omission for row in old.evaluation} else old.note),
    )


def load_records(path: Path) -> Records:
    """Read the records; none where there is no file.

    Raises:
        InputError: the file cannot be read or is something else, or its name is one of the page or the figures.

    """
    if path.suffix != ".json":
        raise InputError(f"records is {path}, a name that ends in .json is expected")
    if not path.exists():
        return {}
    content = read_json_object(str(path))
    if content.get("format") != FORMAT:
        raise InputError(f"{path}: format is {content.get('format')!r}, {FORMAT} is expected")
    try:
        entries = [_entry(entry) for entry in content["entries"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not what `skippipe study` writes: {error!r}") from None
    return {entry.key: entry for entry in entries}


def save_records(path: Path, entries: Iterable[ArmRecord]) -> None:
    """Write the records, whole or not at all; the folder is made.

    Raises:
        InputError: the folder cannot be made.
        OSError: they cannot be written.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"records={path} cannot be written: {error.strerror or error}") from None
    write_text(path, records_json(entries))


def records_json(entries: Iterable[ArmRecord]) -> str:
    """The records as they are kept."""
    return format_json({"format": FORMAT, "entries": [_plain(entry) for entry in entries]}) + "\n"


def format_json(value: Any, indent: int = 0) -> str:
    """JSON with what is short on one line, and everything else on a line for each part."""
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
    """Whether a list or an object holds several lists or objects."""
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
