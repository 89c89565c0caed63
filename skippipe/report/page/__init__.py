"""The HTML page of a report: one self-contained file."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from skippipe.report.analysis import PlanAnalysis
from skippipe.report.map.svg import stage_map
from skippipe.report.page.columns import plan_columns
from skippipe.report.page.curves import curves
from skippipe.report.table import Table
from skippipe.report.tables import overview, tables

SCRIPTS = ("plan.js", "paint.js", "chart.js", "main.js")


def make_page(plans: Sequence[PlanAnalysis], most: int) -> str:
    """The page of one plan, or of two for comparison; lists `most` upgrades of each."""
    parts = {
        "title": html.escape(" and ".join(analysis.name for analysis in plans)),
        "style": _asset("page.css"),
        "figures": _figures(plans),
        "sections": "\n".join(_sections(analysis, most, named=len(plans) > 1) for analysis in plans),
        "data": embedded({"plans": [plan_columns(analysis) for analysis in plans]}),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
    }
    before, *rest = _asset("page.html").split("{{")
    pieces = [before]
    for piece in rest:
        name, _, after = piece.partition("}}")
        pieces += [parts[name], after]
    return "".join(pieces)


def embedded(value: Any) -> str:
    """JSON that is safe within an HTML script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _figures(plans: Sequence[PlanAnalysis]) -> str:
    """Overview tables; the first follows the page's own heading."""
    first, *others = overview(plans)
    return _table(first) + "".join(_titled(table) for table in others)


def _sections(analysis: PlanAnalysis, most: int, *, named: bool) -> str:
    found = "".join(f"<div>{_titled(table)}</div>" for table in tables(analysis, most))
    heading = f"<h2>{html.escape(analysis.name)}</h2>" if named else ""
    pictures = stage_map(analysis.plan) + curves(analysis.plan.solver.events)
    return f'<section>{heading}<div class="columns">{found}</div>{pictures}</section>'


def _titled(table: Table) -> str:
    return f"<h2>{html.escape(table.title)}</h2>{_table(table)}"


def _table(table: Table) -> str:
    head = _cells("th", table.headings, table.texts)
    body = "".join(f"<tr>{_cells('td', row, table.texts)}</tr>" for row in table.rows)
    rows = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if table.rows else ""
    return rows + _notes(table)


def _cells(tag: str, cells: Sequence[str], texts: Sequence[int]) -> str:
    return "".join(
        f"<{tag}{' class=text' if number in texts else ''}>{html.escape(cell)}</{tag}>"
        for number, cell in enumerate(cells)
    )


def _notes(table: Table) -> str:
    return "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
