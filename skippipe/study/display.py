"""A study's table for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from skippipe.console.output import plain_table
from skippipe.study.markdown import ARM_HEADINGS, arm_cells
from skippipe.study.records import ArmRecord

SHOWN = ("arm", "seed", "tokens done", "remaining", "epochs", "validation loss", "gap", "tokens/s", "MFU")
"""Columns of the page's table that fit a terminal."""


def console_table(entries: Iterable[ArmRecord]) -> Table:
    """Build the table of arms."""
    columns = [ARM_HEADINGS.index(heading) for heading in SHOWN]
    rows = ([cells[column] for column in columns] for cells in map(arm_cells, entries))
    return plain_table(SHOWN, rows, gap=3)
