"""Completion in shells: names of commands from their list, settings and their values from Hydra's own completion."""

import os
import sys
from collections.abc import Sequence

from skippipe.application.run import run_command
from skippipe.commands import COMMANDS, find_command
from skippipe.errors import SUCCESS

FLAG = "--shell-completion"


def complete(arguments: Sequence[str]) -> int:
    """Answer `install=SHELL`, `uninstall=SHELL` or, for the line in `COMP_LINE`, `query=SHELL`; the exit status."""
    if not any(argument.startswith("query=") for argument in arguments):
        return run_command(COMMANDS[0], [FLAG, *arguments])
    line = os.environ.get("COMP_LINE", "")
    words = line.split()[1:]
    command = find_command(words)
    typed = words if line[-1:].isspace() else words[:-1]
    if command is None or len(typed) < len(command.name.split()):
        separator = "\n" if "query=fish" in arguments else " "
        sys.stdout.write(separator.join(next_words(typed)) + "\n")
        return SUCCESS
    settings = line.split(maxsplit=1 + len(command.name.split()))[1 + len(command.name.split()) :]
    os.environ["COMP_LINE"] = " ".join(["skippipe", *settings]) + (" " if not settings else "")
    return run_command(command, [FLAG, *arguments])


def next_words(typed: Sequence[str]) -> list[str]:
    """Words that may follow the complete words `typed` in the name of a command."""
    names = [command.name.split() for command in COMMANDS]
    return list(dict.fromkeys(name[len(typed)] for name in names if name[:-1][: len(typed)] == list(typed)))
