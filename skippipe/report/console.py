"""How plans and reports look in a terminal, table by table."""

from collections.abc import Sequence

from skippipe._scheduler import Plan
from skippipe.console.output import Console, plain_table
from skippipe.report.explained import Explained
from skippipe.report.stages import stage_table
from skippipe.report.table import Table
from skippipe.report.tables import overview, tables
from skippipe.report.terminal import show_lanes


def show_report(console: Console, plans: Sequence[Explained], most: int) -> None:
    """Print the figures of all plans side by side, then what explains each of them."""
    for number, table in enumerate(overview(plans)):
        if number:
            console.write_line()
        show_table(console, table)
    for explained in plans:
        if len(plans) > 1:
            console.write_line(f"\n{explained.name}", style="bold")
        for table in tables(explained, most):
            console.write_line()
            show_table(console, table)


def show_plan(console: Console, plan: Plan) -> None:
    """Print who serves which stage, and what each node does over time."""
    show_table(console, stage_table(plan))
    console.write_line()
    show_lanes(console, plan)


def show_table(console: Console, table: Table) -> None:
    """Print a table with its title above and its notes below."""
    console.write_line(table.title, style="bold")
    if table.rows:
        console.print(plain_table(table.headings, table.rows, left=table.texts))
    for note in table.notes:
        console.write_line(note)
