"""Lines and tables on a console."""

import os
import sys
from collections.abc import Collection, Iterable, Sequence

import rich.console
from rich.table import Table

PLAIN_WIDTH = 110
"""Width in characters of a stream that is not a terminal."""


class Console(rich.console.Console):
    """A stream that shows text as it is, without markup: colours and its own width on a terminal, plain text elsewhere.

    Tables are fitted to the width; lines are as long as they are.
    """

    def __init__(self, *, stderr: bool = False, force_terminal: bool | None = None) -> None:
        is_terminal = force_terminal or (sys.stderr if stderr else sys.stdout).isatty()
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) > 0 else PLAIN_WIDTH
        super().__init__(
            stderr=stderr,
            force_terminal=force_terminal,
            width=None if is_terminal else width,
            markup=False,
            emoji=False,
            highlight=False,
        )

    def write_line(self, text: str = "", style: str | None = None) -> None:
        """Print a line, or several."""
        self.print(text, style=style, soft_wrap=True)


def plain_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    unbroken: Collection[int] = (),
    gap: int = 2,
) -> Table:
    """Make a table without frames, that is readable in a file.

    Args:
        headings: of the columns.
        rows: cells from left to right.
        left: left-aligned columns, of text; the others are right-aligned.
        unbroken: columns whose cells are never wrapped.
        gap: blanks between two columns.

    """
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for number, heading in enumerate(headings):
        justify = "left" if number in left else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=number in unbroken)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table
