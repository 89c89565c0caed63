"""The command `skippipe`: finds the command that is asked for and gives its exit status."""

import sys
from collections.abc import Sequence

from skippipe import __version__
from skippipe.errors import FAILURE, INTERRUPTED, SUCCESS, UNUSABLE_INPUT
from skippipe.streams import check_streams, drop_output

USAGE = f"""\
skippipe {__version__}: pipeline-parallel training in which microbatches skip stages

Commands
  skippipe plan             routes and order for one iteration; prints what they give, writes the plan
  skippipe simulate         run a plan through the event simulator
  skippipe report           what a plan's time is made of, what to upgrade first; a page with its Gantt chart
  skippipe train            train a model by a plan, on this machine or, under torchrun, on many
  skippipe evaluate         perplexity of a model with stages or layers left out
  skippipe study            many trainings, held against each other, on all GPUs of this machine
  skippipe data prepare     tokenise a text once, into a folder that trainings read
  skippipe data fetch       bring a corpus of free texts
  skippipe export           write a trained model as a folder that transformers reads
  skippipe bench simulator  evaluations per second of the simulator
  skippipe bench planner    what the planner reaches on a fixed set of instances
  skippipe bench allocator  what the node allocator reaches, against greedy and random

  skippipe COMMAND --help   every key of a command, with examples
  skippipe --version        the version

Settings are key=value, e.g. skippipe plan cluster=geo20 schedule.skip_ratio=0.25 output=plan.json
"""


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
        sys.stderr.write(f"skippipe: standard output: {error.strerror or error}\n")
        drop_output()
        return FAILURE
    return status


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("--help", "-h"):
        sys.stdout.write(USAGE)
        return SUCCESS
    if "--version" in arguments:
        sys.stdout.write(f"skippipe {__version__}\n")
        return SUCCESS
    # Hydra takes half a second to import: not for what is answered above.
    from skippipe.application import run_command  # noqa: PLC0415
    from skippipe.commands import COMMANDS  # noqa: PLC0415

    for command in COMMANDS:
        words = command.words.split()
        if arguments[: len(words)] == words:
            return run_command(command, arguments[len(words) :])
    return _unknown(arguments, [command.words for command in COMMANDS])


def _unknown(arguments: list[str], known: list[str]) -> int:
    asked = " ".join(arguments[:2] if arguments[:1] in (["bench"], ["data"]) else arguments[:1])
    problem = f"{asked!r} is no command" if asked else "no command is given"
    sys.stderr.write(f"skippipe: {problem}, one of {', '.join(known)} is expected (see skippipe --help)\n")
    return UNUSABLE_INPUT
