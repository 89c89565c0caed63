"""Comparison of finished evaluations in one table and one plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skippipe.errors import InputError, unexpected
from skippipe.evaluate.omission import parse_omission
from skippipe.evaluate.results import FORMAT, TABLE
from skippipe.evaluate.summary import NONE, Row, row_from_json
from skippipe.files import read_json_object

TEXT = ("text_sha256", "sequence", "sequences")
"""settings that must agree"""


def read_tables(folders: Sequence[str]) -> dict[str, list[Row]]:
    """Read the tables of evaluations, by short names of their folders.

    Raises:
        InputError: an evaluation is missing or unfinished, or the corpora differ; the message names it.

    """
    if len(set(folders)) < len(folders) or len(folders) < 2:
        raise unexpected("compare", list(folders), "at least two different folders")
    contents = [read_table(Path(folder)) for folder in folders]
    for folder, (settings, _) in zip(folders, contents, strict=True):
        for key in TEXT:
            if settings[key] != contents[0][0][key]:
                expected, hint = f"{contents[0][0][key]} as in {folders[0]}", "only perplexities of one corpus compare"
                raise unexpected(key, settings[key], expected, folder, hint)
    return {name: rows for name, (_, rows) in zip(short_names(folders), contents, strict=True)}


def read_table(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read settings and rows of a finished evaluation; raises `InputError`."""
    path = folder / TABLE
    if not path.is_file():
        raise InputError(file=folder, expected="the output of a finished `skippipe evaluate`", found=f"no {TABLE}")
    content = read_json_object(str(path))
    if content.get("format") != FORMAT:
        raise unexpected("format", content.get("format"), FORMAT, path)
    try:
        rows = [row_from_json(row) for row in content["rows"]]
        _check_words([row.omission for row in rows])
        settings = {key: content["settings"][key] for key in TEXT}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not written by `skippipe evaluate`: {error!r}", file=path) from None
    return settings, rows


def _check_words(omissions: Sequence[str]) -> None:
    for omission in omissions:
        parse_omission(omission)
    if NONE not in omissions:
        raise ValueError(f"{NONE} is missing")


def short_names(folders: Sequence[str]) -> list[str]:
    """Names of different folders without their common first and last parts."""
    parts = [list(Path(folder).parts) for folder in folders]
    for end in (0, -1):
        while all(len(own) > 1 for own in parts) and len({own[end] for own in parts}) == 1:
            for own in parts:
                del own[end]
    names = ["/".join(own) for own in parts]
    return names if len(set(names)) == len(names) else list(folders)
