"""The arguments of a command line, given in any order and form, as Hydra reads them."""

import re
from collections.abc import Sequence
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from skippipe.commands.command import Command
from skippipe.errors import InputError, printable
from skippipe.overrides import quoted

_QUOTED = r"""(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
_PLAIN = r"""[^,\[\]{}()=:"'\\]"""
_OTHER_LETTER = r"[^\x00-\x7f]"
_NAME = re.compile(rf"{_QUOTED}|(?P<name>(?! ){_PLAIN}*{_OTHER_LETTER}{_PLAIN}*)")


def hydra_arguments(command: Command, arguments: Sequence[str]) -> list[str]:
    """A command's arguments as Hydra reads them; raises `InputError` as `settings_first` does."""
    ordered = settings_first([for_hydra(command, argument) for argument in arguments])
    return [with_names_quoted(argument) for argument in ordered]


def for_hydra(command: Command, argument: str) -> str:
    """Replace a flag or alias of a command by its setting, and quote a setting that is a single text."""
    key, sign, value = argument.partition("=")
    if argument in command.flags:
        return command.flags[argument]
    if key in command.texts and "," in value and value[0] not in "[\"'":
        return f"{key}={quoted(value)}"
    return (command.aliases.get(key, key) if sign else key) + sign + value


def with_names_quoted(argument: str) -> str:
    """Quote what has letters beyond ASCII in the value of an argument: names of files have them.

    Hydra's lexer refuses such letters outside quotes, so its own parser cannot find what to quote.
    """
    if argument.startswith("-"):  # a flag, which is not Hydra's language
        return argument
    key, sign, value = argument.partition("=")
    return key + sign + _NAME.sub(lambda found: found["quoted"] or f'"{found["name"]}"', value)


def settings_first(arguments: Sequence[str]) -> list[str]:
    """Order a command line as Hydra's parser expects it: all settings, then all flags, each with its value.

    Raises:
        InputError: a flag that is unknown, or that lacks its value or has a wrong one.

    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    found = vars(parser.parse_intermixed_args(_with_topic(arguments[:end])))
    settings = [*(found.pop("overrides") or []), *arguments[end + 1 :]]
    for setting in settings:
        if setting.startswith("-"):
            raise InputError(expected="key=value", found=setting)
    return [*settings, *(flag for name, value in found.items() for flag in _flag(name, value))]


def _with_topic(arguments: Sequence[str]) -> list[str]:
    """Write `--info=all` if no topic follows: settings are no topics."""
    following = [*arguments[1:], "-"]
    bare = (
        flag in ("--info", "-i") and ("=" in after or after.startswith("-"))
        for flag, after in zip(arguments, following, strict=False)
    )
    return ["--info=all" if is_bare else flag for flag, is_bare in zip(arguments, bare, strict=True)]


def _flag(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    match value:
        case str():
            return [f"{flag}={value}"]
        case True:
            return [flag]
        case _:
            return []


def _refuse(message: str) -> NoReturn:
    flag, _, reason = message.removeprefix("argument ").partition(": ")
    if flag == "unrecognized arguments":
        flag, reason = reason.partition(" ")[0], "unknown flag"
    raise InputError(printable(reason), key=flag, hint="--help lists keys and flags")
