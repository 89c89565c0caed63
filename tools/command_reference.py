"""Write docs/commands.md: every command with its examples and settings, as the package registers them."""

from collections.abc import Iterator
from pathlib import Path

from skippipe.commands import COMMANDS
from skippipe.commands.command import Command
from skippipe.commands.help import FLAGS, settings_rows

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"


def reference() -> str:
    """The page, as Markdown."""
    head = ["# Commands", "Written by `tools/command_reference.py`; the same as `skippipe COMMAND --help`."]
    names = [
        f"| [`skippipe {each.name}`](#skippipe-{each.name.replace(' ', '-')}) | {each.summary} |" for each in COMMANDS
    ]
    overview = "\n".join(["| command | what it does |", "| --- | --- |", *names])
    sections = [part for command in COMMANDS for part in _section(command)]
    return "\n\n".join([*head, overview, f"```text\n{FLAGS}\n```", *sections]) + "\n"


def _section(command: Command) -> Iterator[str]:
    yield f"## skippipe {command.name}"
    yield f"{command.summary[0].upper()}{command.summary[1:]}."
    if command.notes:
        yield command.notes
    yield f"```\n{command.examples}\n```"
    if command.main_keys:
        yield f"Main settings: {', '.join(f'`{key}`' for key in command.main_keys)}."
    rows = (f"| `{key}` | {_cell(meaning)} |" for key, meaning in settings_rows(command))
    yield "\n".join(["| setting | meaning |", "| --- | --- |", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
