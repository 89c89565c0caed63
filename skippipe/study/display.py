"""A study's table for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from skippipe.report.terminal import plain_table
from skippipe.study.markdown import ARM_HEADINGS, arm_cells
from skippipe.study.records import ArmRecord

SHOWN = ("arm", "seed", "tokens done", "remaining", "epochs", "validation loss", "gap", "tokens/s", "MFU")
"""Columns of the page's table that fit a terminal."""


def console_table(entries: Iterable[ArmRecord]) -> Table:
    """Build the table of arms."""
    table = plain_table()
    for heading in SHOWN:
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    columns = [ARM_HEADINGS.index(heading) for heading in SHOWN]
    for entry in entries:
        cells = arm_cells(entry)
        table.add_row(*(cells[column] for column in columns))
    return table
