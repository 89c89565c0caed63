"""The list of commands, and what derives from it: help, configuration, completion, the reference in the docs."""

import ast
import dataclasses
import importlib.util
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Run

from skippipe.application import compose
from skippipe.application.arguments import for_hydra
from skippipe.commands import BY_NAME, COMMANDS
from skippipe.commands.command import Command
from skippipe.commands.groups import options
from skippipe.commands.help import settings_rows
from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay

each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.key)


@each_command
def test_registration_names_what_there_is(command: Command) -> None:
    assert dataclasses.is_dataclass(command.settings_type)
    known = {field.name for field in dataclasses.fields(command.settings_type)}
    written = {key.partition(".")[0] for key in (*command.writes, *command.aliases.values())}
    assert written | {value.partition("=")[0] for value in command.flags.values()} <= known
    module, _, function = command.run.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    assert function in [item.name for item in body if isinstance(item, ast.FunctionDef)]
    for group, option in command.groups.items():
        assert option is None or option in options(group.partition("@")[0])


@each_command
def test_help_and_configuration_derive_from_the_registration(command: Command, run: Run) -> None:
    assert f"skippipe {command.name} " in (listed := run("--help").out)
    assert command.summary in listed
    text = run(*command.name.split(), "--help").out
    assert text.startswith(f"skippipe {command.name}: {command.summary}.\n")
    for line in command.examples.splitlines():
        assert line in text
    for field in dataclasses.fields(command.settings_type):
        assert re.search(rf"^  {field.name}(=|\.|$| )", text, re.MULTILINE), field.name
    assert not re.search(r"^\w+:", text.partition("\n")[2].replace("Exit status:", ""), re.MULTILINE)
    composed = run(*command.name.split(), "--cfg", "job")
    assert composed.status == 0, composed.err
    for field in dataclasses.fields(command.settings_type):
        assert re.search(rf"^{field.name}:", composed.out, re.MULTILINE), field.name


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.without_effect], ids=lambda command: command.key)
def test_help_lists_no_setting_without_effect(command: Command, run: Run) -> None:
    """Each of them is a setting, or a group of settings, that would be listed otherwise; the others are."""
    every = [key for key, _ in settings_rows(dataclasses.replace(command, without_effect=()))]
    hidden = [[key for key in every if re.match(rf"{re.escape(name)}(=|\.|$)", key)] for name in command.without_effect]
    assert all(hidden)
    listed = re.findall(
        r"^  ([a-z]\S*)", run(*command.name.split(), "--help").out.partition("\nKeys\n")[2], re.MULTILINE
    )
    assert listed == [key for key in every if key not in {hidden_key for keys in hidden for hidden_key in keys}]


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.main_keys], ids=lambda command: command.key)
def test_help_begins_with_the_main_keys_in_a_line_each(command: Command, run: Run) -> None:
    text = run(*command.name.split(), "--help").out
    lines = text.split("\n\n")[1].splitlines()
    assert lines[0] == "Main keys"
    assert [line.split()[0] for line in lines[1:]] == list(command.main_keys)
    assert all(len(line.split()) > 2 for line in lines[1:])
    assert max(map(len, text.splitlines())) <= 120
    assert len(BY_NAME["train"].main_keys) == 20


def test_presets_are_found_where_they_lie(run: Run) -> None:
    text = run("train", "--help").out
    assert re.search(r"^  data= +the text: shipped, debian_docs, fiction,", text, re.MULTILINE)
    assert re.search(r"^  experiment= +ready-made settings: llama124m, llama124m_33,", text, re.MULTILINE)
    assert re.search(r"^  cluster\.regions +\[geo20\] ", text, re.MULTILINE)
    assert len(compose("study", []).arms) > 10


def test_the_list_is_cheap_to_load() -> None:
    """`skippipe --help` needs it, and each key that a shell completes."""
    heavy = ("hydra", "omegaconf", "yaml", "numpy", "rich", "torch", "skippipe.planning")
    code = f"import sys, skippipe.cli; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("name", "argument", "replaced"),
    [
        ("bench planner", "data=folder=x", "folder=folder=x"),
        ("bench planner", "data", "data"),
        ("evaluate", "model=a,b", "model_folder=a,b"),
        ("train", "--dry-run", "dry_run=true"),
        ("train", "runtime.node=a,b's", r"runtime.node='a,b\'s'"),
        ("train", "runtime.node='a,b'", "runtime.node='a,b'"),
        ("train", "train.seed=1,2", "train.seed=1,2"),
    ],
)
def test_arguments_for_hydra(name: str, argument: str, replaced: str) -> None:
    assert for_hydra(BY_NAME[name], argument) == replaced


@pytest.mark.parametrize("name", ["train", "evaluate", "data prepare"])
def test_packages_that_are_missing_are_named(
    name: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = BY_NAME[name]
    monkeypatch.setattr("skippipe.packages.find_spec", lambda _: None)
    message = refused(*name.split(), *(["output=out"] if "output" in command.writes else []))
    needed = f"skippipe {name}: skippipe {name}: requires {', '.join(command.packages)} (not installed)"
    assert message == f"{needed}; pip install 'skippipe[train]'\n"


COMMAND_WORDS = list(dict.fromkeys(command.name.split()[0] for command in COMMANDS))  # fmt: skip


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("skippipe ", COMMAND_WORDS),
        ("skippipe b", COMMAND_WORDS),
        ("skippipe bench p", ["simulator", "planner", "allocator", "figure3"]),
        ("skippipe bench planner planner.t", ["planner.threads=", "planner.time_limit_s="]),
        ("skippipe plan cluster=l", ["cluster=local4"]),
        ("skippipe plan nothing.", []),
    ],
)
def test_completion(line: str, offered: list[str], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag, shell in (("-sc", "bash"), ("--shell-completion", "fish")):
        monkeypatch.setenv("COMP_LINE", line)
        result = run(flag, f"query={shell}")
        assert (result.status, result.err, result.out.split()) == (0, "", offered)


def test_completion_of_every_setting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", "skippipe simulate ")
    assert {"plan=", "order=", "output="} <= set(run("-sc", "query=bash").out.replace(".", "=").split())


def test_completion_is_installed_for_the_command(run: Run) -> None:
    result = run("-sc", "install=bash")
    assert result.status == 0
    assert result.out.rstrip().endswith("hydra_bash_completion skippipe")
    assert run("-sc", "install=dos").status == 2


def test_the_reference_is_up_to_date() -> None:
    """Otherwise: python -m nox -s docs."""
    made = runpy.run_path(str(ROOT / "tools" / "command_reference.py"))["reference"]()
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == made


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(Console(force_terminal=terminal), line_every_s=0.0) as display:
        display.begin("text [b]", total=4)
        display.update(1, "1 of 4 MB")
        display.write_line("a line [b] :smile:")
        display.show_below("details")
    with ProgressDisplay(Console(force_terminal=terminal), line_every_s=math.inf, is_open_ended=True) as display:
        display.begin("search")
        display.update(state=": 3 s")
    shown = capsys.readouterr().out
    assert "a line [b] :smile:" in shown
    if terminal:
        for part in ("text [b]", "1 of 4 MB", "━", "details", "search: 3 s"):
            assert part in shown
    else:
        assert shown == "text [b]: 1 of 4 MB\na line [b] :smile:\n"
