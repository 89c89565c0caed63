"""How a report looks in a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from skippipe.report.explained import Explained
from skippipe.report.tables import Table, figures, tables
from skippipe.report.terminal import plain_table


def show_report(console: Console, plans: Sequence[Explained], most: int) -> None:
    """Print the figures of all plans side by side, then what explains each of them."""
    _show(console, figures(plans))
    for explained in plans:
        if len(plans) > 1:
            console.print(f"\n{explained.name}", markup=False, style="bold")
        for table in tables(explained, most):
            console.print()
            _show(console, table)


def _show(console: Console, table: Table) -> None:
    console.print(table.title, markup=False, style="bold")
    if table.rows:
        drawn = plain_table()
        drawn.padding = (0, 2, 0, 0)
        for number, heading in enumerate(table.headings):
            drawn.add_column(escape(heading), justify="right" if number else "left", overflow="fold")
        for row in table.rows:
            drawn.add_row(*map(escape, row))
        console.print(drawn)
    for note in table.notes:
        console.print(note, markup=False, soft_wrap=True)
