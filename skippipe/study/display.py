"""A study's table on a console."""

from collections.abc import Iterable

from rich.table import Table

from skippipe.console.output import plain_table
from skippipe.study.markdown import ARM_HEADINGS, arm_cells
from skippipe.study.records import ArmRecord

SHOWN = ("arm", "seed", "tokens done", "left", "each seen", "validation loss", "gap", "tokens/s", "MFU")
"""Columns of the page's table that fit on a console."""


def console_table(entries: Iterable[ArmRecord]) -> Table:
    """Make the table of arms."""
    places = [ARM_HEADINGS.index(heading) for heading in SHOWN]
    rows = ([cells[place] for place in places] for cells in map(arm_cells, entries))
    return plain_table(SHOWN, rows, gap=3)
