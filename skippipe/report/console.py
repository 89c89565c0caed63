"""How plans and reports look in a terminal, table by table."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from skippipe._scheduler import Plan
from skippipe.report.analysis import PlanAnalysis
from skippipe.report.stages import stage_table
from skippipe.report.table import Table
from skippipe.report.tables import overview, tables
from skippipe.report.terminal import plain_table, show_gantt


def show_report(console: Console, plans: Sequence[PlanAnalysis], most: int) -> None:
    """Print the figures of all plans side by side, then what explains each of them."""
    for number, table in enumerate(overview(plans)):
        if number:
            console.print()
        show_table(console, table)
    for analysis in plans:
        if len(plans) > 1:
            console.print(f"\n{analysis.name}", markup=False, style="bold")
        for table in tables(analysis, most):
            console.print()
            show_table(console, table)


def show_plan(console: Console, plan: Plan) -> None:
    """Print who serves which stage, and what each node does over time."""
    show_table(console, stage_table(plan))
    console.print()
    show_gantt(console, plan)


def show_table(console: Console, table: Table) -> None:
    """Print a table with its title above and its notes below."""
    console.print(table.title, markup=False, style="bold")
    if table.rows:
        drawn = plain_table()
        drawn.padding = (0, 2, 0, 0)
        for number, heading in enumerate(table.headings):
            drawn.add_column(escape(heading), justify="left" if number in table.texts else "right", overflow="fold")
        for row in table.rows:
            drawn.add_row(*map(escape, row))
        console.print(drawn)
    for note in table.notes:
        console.print(note, markup=False, soft_wrap=True)
