"""The text of `skippipe COMMAND --help`: what it does, main keys, examples, every key with its meaning and range."""

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skippipe.commands.command import Command
from skippipe.commands.groups import options, schema_name

WIDTH = 118
"""Most characters of a line."""


def command_help(command: Command) -> str:
    """Text for Hydra's help template: `$CONFIG` and the like would be filled in, so each `$` is doubled."""
    summary = f"skippipe {command.name}: {command.summary}."
    examples = f"Examples\n{textwrap.indent(command.examples, '  ')}"
    main = f"Main keys\n{_main_key_table(command)}" if command.main_keys else ""
    keys = f"{'All keys' if main else 'Keys'}\n{_key_table(command)}"
    text = "\n\n".join(part for part in (summary, main, examples, command.notes, keys, FLAGS) if part)
    return text.replace("$", "$$")


FLAGS = """\
Flags
  -m, --multirun     run once for every combination of comma-separated values: key=a,b or key=range(1,4)
  --cfg job          print the configuration composed from this command line, and stop
  --config-dir DIR   a folder with configuration files of your own, e.g. DIR/cluster/mine.yaml for cluster=mine
  --hydra-help       more flags, from Hydra

Exit status: 0 on success, 2 for input that cannot be used, 1 for anything else, 130 after Ctrl-C."""


def main_rows(command: Command) -> list[tuple[str, str]]:
    """The main keys of a command, each with its meaning in one line."""
    rows = dict(reversed(settings_rows(command)))
    width = WIDTH - 4 - max(map(len, command.main_keys), default=0)
    return [(key, _in_one_line(rows[key], width)) for key in command.main_keys]


def _main_key_table(command: Command) -> str:
    width = max(map(len, command.main_keys))
    return "\n".join(f"  {key.ljust(width)}  {text}" for key, text in main_rows(command))


def _in_one_line(text: str, width: int) -> str:
    """As many of its clauses as fit, without its range; of a first one that is too long its first words."""
    kept, *others = text.partition(" (at least ")[0].split("; ")
    for clause in others:
        if len(f"{kept}; {clause}") > width:
            break
        kept = f"{kept}; {clause}"
    return textwrap.shorten(kept, width, placeholder=" ...").removesuffix(": ...")


def _key_table(command: Command) -> str:
    rows = settings_rows(command)
    width = max(len(key) for key, _ in rows if len(key) < 36)
    lines = [f"  {key.ljust(width)}  {text}" for key, text in rows]
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent=" " * (width + 4), break_long_words=False) for line in lines
    )


def settings_rows(command: Command) -> list[tuple[str, str]]:
    """Every key that has an effect, with its meaning; groups name their presets, `[preset]` keys are of those."""
    job = command.settings_type
    presets = {
        group: _default_first(options(group), name) for group, name in command.groups.items() if "@" not in group
    }
    known = {item.name for item in dataclasses.fields(job)}
    others = [(f"{group}=", f"ready-made settings: {names}") for group, names in presets.items() if group not in known]
    return [*(row for row in _rows(job, presets) if not _is_without_effect(command, row[0])), *others]


def _is_without_effect(command: Command, key: str) -> bool:
    return any(key in {name, f"{name}="} or key.startswith(f"{name}.") for name in command.without_effect)


def _default_first(names: Iterable[str], default: str | None) -> str:
    return ", ".join(sorted(names, key=lambda name: name != default))


def _rows(job: type[Any], presets: Mapping[str, str], prefix: str = "") -> Iterator[tuple[str, str]]:
    types, meanings = typing.get_type_hints(job), field_docs(job)
    for item in dataclasses.fields(job):
        key, kind = prefix + item.name, types[item.name]
        named = presets.get(key, "")
        if not _is_group(kind):
            yield key, _meaning(item, meanings) + (f"; presets: {named}" if named else "")
            continue
        yield f"{key}=", meanings[item.name] + (f": {named}" if named else "")
        yield from _rows(kind, presets, f"{key}.")
        for variant in kind.__subclasses__():
            yield from _variant_rows(variant, kind, f"{key}.")


def _variant_rows(variant: type[Any], base: type[Any], prefix: str) -> Iterator[tuple[str, str]]:
    """What a kind of preset has beyond the others; its profiles in one row each."""
    types, meanings = typing.get_type_hints(variant), field_docs(variant)
    known = {item.name for item in dataclasses.fields(base)}
    of_kind = [name for name, schema in options(prefix.rstrip(".")).items() if schema == schema_name(variant)]
    for item in dataclasses.fields(variant):
        if item.name in known:
            continue
        inner = ", ".join(x.name for x in dataclasses.fields(types[item.name])) if _is_group(types[item.name]) else ""
        key = f"{prefix}{item.name}" + ("." if inner else "")
        yield key, f"[{', '.join(of_kind)}] {_meaning(item, meanings)}" + (f": {inner}" if inner else "")


def _meaning(item: dataclasses.Field[Any], meanings: dict[str, str]) -> str:
    within = item.metadata.get("within")
    return meanings[item.name] + (f" ({within})" if within and item.name != "skip_ratio" else "")


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def field_docs(job: type[Any]) -> dict[str, str]:
    """Return the text under each field of a dataclass, those it inherits included."""
    docs: dict[str, str] = {}
    for cls in reversed(job.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        docs[statement.target.id] = " ".join(text.split())
    return docs
