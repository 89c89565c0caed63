"""The user's own YAML files, from `--config-dir`: faults named with file and line."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf._utils import get_yaml_loader

from skippipe.errors import InputError, printable, unreadable

BYTE_ORDER_MARK = "\ufeff"
MOST_VALUES = 100_000
"""Maximum number of values of a file, aliases expanded, since Hydra copies them."""
OF_HYDRA = ("hydra._internal.core_plugins.", "hydra.experimental.callbacks.", "hydra_plugins.")
"""What a file may have Hydra call: launchers, sweepers and callbacks."""

Location = tuple[str, int]
"""File and line."""


@dataclass
class UserFiles:
    """The user's files from which a configuration was composed."""

    roots: dict[Path, tuple[str, yaml.MappingNode]] = field(default_factory=dict)
    """by path: the group that the file belongs to, with dots, and its content"""

    def location_of(self, key: str) -> Location | None:
        """File and line where a key, such as `cluster.node.memory`, has its value; None where no file has it."""
        for path, (group, root) in self.roots.items():
            inside = key.removeprefix(f"{group}.") if group else key
            # A file may declare that its keys are absolute (`# @package _global_`).
            for parts in (inside.split("."), key.split(".")):
                if (line := _line_of(root, parts)) is not None:
                    return str(path), line
        return None

    def location_of_last(self) -> Location | None:
        """File and line of the file read last: where composing ended if the reason is unknown."""
        for path, (_, root) in reversed(self.roots.items()):
            first = next(iter(_values(root, "defaults")), root)
            return str(path), first.start_mark.line + 1
        return None

    def location_of_default(self, name: str) -> Location | None:
        """File and line of an entry of a defaults list that requests the file `name`, such as `cluster/mars`."""
        for path, (_, root) in self.roots.items():
            for node in _values(root, "defaults"):
                for entry in node.value if isinstance(node, yaml.SequenceNode) else []:
                    if name.rpartition("/")[2] in _words(entry):
                        return str(path), entry.start_mark.line + 1
        return None


@contextlib.contextmanager
def checked_files() -> Iterator[UserFiles]:
    """Within: check each file before Hydra reads it (raises `InputError`); yields the files read."""
    Plugins.instance()  # registers what reads files
    reader = SourcesRegistry.instance().resolve("file")
    files, load = UserFiles(), reader.load_config

    def checked(source: ConfigSource, config_path: str) -> ConfigResult:
        name = config_path if config_path.endswith((".yaml", ".yml")) else f"{config_path}.yaml"
        path = Path(source.path) / name
        if not path.is_file():
            return load(source, config_path)
        text = read_yaml(path)
        files.roots[_named(path)] = (".".join(Path(name).parts[:-1]), parse_mapping(_named(path), text))
        result = load(source, config_path)
        if header := re.match(
            BYTE_ORDER_MARK + r"\s*#\s*@package\s+(\S+)", text
        ):  # Hydra looks for it at the very start
            result.header["package"] = header[1]
        return result

    reader.load_config = checked  # type: ignore[method-assign, assignment]
    try:
        yield files
    finally:
        reader.load_config = load  # type: ignore[method-assign]


def read_yaml(path: Path) -> str:
    """Text of a file; raises `InputError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(_named(path), error) from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"byte {content[error.start]:#04x}"
        raise InputError(expected="UTF-8 text", found=found, file=_named(path), position=[line]) from None


def parse_mapping(path: Path, text: str) -> yaml.MappingNode:
    """Parse a YAML configuration file; raises `InputError` if it is not YAML, or not a mapping."""
    loader: Any = None
    try:
        loader = get_yaml_loader()(text)
        root = loader.get_single_node() or _nothing(text)
        loader.construct_document(root)  # finds duplicate keys
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(part) for part in (error.problem, error.context and f"({error.context})") if part)
        line = 1 if mark is None else mark.line + 1
        raise InputError(f"invalid YAML: {printable(problem)}", file=path, position=[line]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"invalid YAML: character {error.character:#06x} is not allowed"
        raise InputError(reason, file=path, position=[line]) from None
    except RecursionError:
        raise InputError("nested too deeply", file=path, position=[1]) from None
    except (ValueError, TypeError) as error:  # such as a date of month 13, or a list for a key
        raise InputError(f"invalid YAML: {printable(str(error))}", file=path, position=[1]) from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(root, yaml.MappingNode):
        raise _unexpected(path, root, "key: value")
    for node in _values(root, "defaults"):
        if not isinstance(node, yaml.SequenceNode):
            raise _unexpected(path, node, "a list", "defaults")
    if _size(root, {}) > MOST_VALUES:
        raise InputError(expected=f"at most {MOST_VALUES} values", found="more", file=path, position=[1])
    _check_targets(path, root)
    return root


def _unexpected(
    path: Path, node: yaml.Node, expected: str, key: str | None = None, hint: str | None = None
) -> InputError:
    place = [node.start_mark.line + 1]
    return InputError(key=key, found=_kind(node), expected=expected, hint=hint, file=path, position=place)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Number of values in a node; `known` has those of nodes met before, to which aliases lead."""
    if id(node) not in known:
        known[id(node)] = 0  # an alias within itself, which is refused elsewhere
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        values = [value for _, value in inner] if isinstance(node, yaml.MappingNode) else inner
        known[id(node)] = 1 + sum(_size(value, known) for value in values)
    return known[id(node)]


def _check_targets(path: Path, root: yaml.Node) -> None:
    """Refuse keys `_target_` for which Hydra would import and call code: a foreign file must not run programs."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            for value in _values(node, "_target_"):
                if not (isinstance(value, yaml.ScalarNode) and value.value.startswith(OF_HYDRA)):
                    expected = "a launcher, sweeper or callback of Hydra"
                    raise _unexpected(
                        path, value, expected, "_target_", "what runs code of your own belongs on the command line"
                    )
            waiting += [value for _, value in node.value]


def _nothing(text: str) -> yaml.MappingNode:
    """An empty file is a mapping without keys."""
    start = yaml.Mark("", 0, 0, 0, text, 0)
    return yaml.MappingNode("tag:yaml.org,2002:map", [], start, start)


def _line_of(node: yaml.Node, parts: list[str]) -> int | None:
    line = None
    for part in parts:
        name, number = re.fullmatch(r"([^\[]*)(?:\[(\d+)\])?.*", part, re.DOTALL).groups()  # type: ignore[union-attr]
        found = _values(node, name)
        if not found:
            return None
        node = found[0]
        if number is not None and isinstance(node, yaml.SequenceNode) and int(number) < len(node.value):
            node = node.value[int(number)]
        line = node.start_mark.line + 1
    return line


def _values(node: yaml.Node, name: str) -> list[yaml.Node]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return [value for key, value in pairs if key.value == name]


def _words(node: yaml.Node) -> set[str]:
    """Names that an entry of a defaults list requests: `mine`, `group/mine` or `group: mine`."""
    if isinstance(node, yaml.ScalarNode):
        return {str(node.value).rpartition("/")[2]}
    if isinstance(node, yaml.MappingNode):
        return {word for _, value in node.value for word in _words(value)}
    return {word for value in node.value for word in _words(value)}


def _kind(node: yaml.Node) -> str:
    match node:
        case yaml.SequenceNode():
            return "a list"
        case yaml.MappingNode():
            return "a mapping"
        case _:
            return f"{printable(str(node.value))[:60]!r}"


def _named(path: Path) -> Path:
    """The path relative to the current folder, if it is below it."""
    inside = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return Path(printable(str(inside)))
