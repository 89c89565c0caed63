"""Output of the benchmarks: JSON with date, machine and versions, and a table."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skippipe.bench import environment
from skippipe.files import write_text

OUT = Path(__file__).parent / "out"
Row = dict[str, Any]


def save(name: str, settings: Row, rows: Sequence[Row], table: str) -> None:
    """Write out/NAME.json and out/NAME.md, and print the table."""
    OUT.mkdir(exist_ok=True)
    content = {"format": "skippipe.bench/1", "bench": name, **environment(), "settings": settings, "rows": list(rows)}
    write_text(OUT / f"{name}.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_text(OUT / f"{name}.md", table)
    sys.stdout.write(table)


def markdown(rows: Sequence[Row]) -> str:
    """A table with one column for each key of the rows; numbers with four significant digits."""
    keys = list(rows[0])
    lines = [keys, ["---"] * len(keys), *([_shown(row[key]) for key in keys] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def percent(share: float | None) -> str:
    """A share as a text for a table."""
    return "-" if share is None else f"{share:+.1%}"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def note(text: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
