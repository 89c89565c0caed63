"""A table, independent of its output."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Title, headings, rows of text and notes."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()
    texts: tuple[int, ...] = (0,)
    """left-aligned columns of text; the others are numbers"""
