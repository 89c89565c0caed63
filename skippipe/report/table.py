"""A table as terminal and page show it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A heading, rows of text below it (the first column is a name, the rest are figures), and notes."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()
    texts: tuple[int, ...] = (0,)
    """columns that hold words, which begin on the left"""
