"""The command `skippipe`: finds the command that is asked for and gives its exit status."""

import sys
from collections.abc import Sequence

from skippipe import __version__
from skippipe.commands import COMMANDS, find_command
from skippipe.console.streams import STANDARD_OUTPUT, check_streams, drop_output, warn
from skippipe.errors import FAILURE, INTERRUPTED, SUCCESS, UNUSABLE_INPUT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    check_streams()
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # who read our output has gone (`skippipe plan | head`)
        drop_output()
        return FAILURE
    except OSError as error:
        warn(f"{STANDARD_OUTPUT}: {error.strerror or error}")
        drop_output()
        return FAILURE
    return status


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("--help", "-h"):
        sys.stdout.write(usage())
        return SUCCESS
    if "--version" in arguments:
        sys.stdout.write(f"skippipe {__version__}\n")
        return SUCCESS
    if arguments and arguments[0] in ("--shell-completion", "-sc"):
        from skippipe.application.completion import complete  # noqa: PLC0415 - imports Hydra

        return complete(arguments[1:])
    command = find_command(arguments)
    if command is None:
        return _refuse(arguments)
    from skippipe.application import run_command  # noqa: PLC0415 - imports Hydra

    return run_command(command, arguments[len(command.name.split()) :])


def usage() -> str:
    """The text of `skippipe --help`."""
    width = max(len(command.name) for command in COMMANDS)
    lines = "\n".join(f"  skippipe {command.name.ljust(width)}  {command.summary}" for command in COMMANDS)
    return f"""\
skippipe {__version__}: pipeline-parallel training in which microbatches skip stages

Commands
{lines}

  skippipe COMMAND --help   every setting of a command, with examples
  skippipe --version        the version

Settings are key=value, e.g. skippipe plan cluster=geo20 schedule.skip_ratio=0.25 output=plan.json
Completion in bash: eval "$(skippipe -sc install=bash)"; in zsh and fish: install=zsh, install=fish
"""


def _refuse(arguments: list[str]) -> int:
    prefixes = {command.name.split()[0] for command in COMMANDS if " " in command.name}
    asked = " ".join(arguments[:2] if arguments[:1] and arguments[0] in prefixes else arguments[:1])
    problem = f"unknown command {asked!r}" if asked else "no command given"
    warn(f"{problem}; choose one of {', '.join(command.name for command in COMMANDS)} (see skippipe --help)")
    return UNUSABLE_INPUT
