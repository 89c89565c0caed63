"""README and docs: every command is run or, if that takes long, composed and checked; examples are read and run."""

import ast
import copy
import dataclasses
import importlib
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Run
from hydra.core.config_store import ConfigStore

import skippipe
from skippipe.allocation import read_allocation
from skippipe.application import compose
from skippipe.application.arguments import for_hydra
from skippipe.application.configuration import register
from skippipe.commands import BY_NAME, COMMANDS, find_command
from skippipe.commands.command import Command
from skippipe.errors import InputError

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md")
    if path.name != "CHANGELOG.md"
)
FOREIGN = (
    ".", "apt-get", "cargo", "chmod", "env", "eval", "export", "hf", "hostname", "ip", "maturin", "nox", "scp", "ssh",
    "umask", "unzip", "wg", "xdg-open",
)  # fmt: skip
"""Programs of others, whose lines are not checked."""
QUICK = ("plan", "simulate", "report")
"""Commands that are run; of others, settings are composed and checked."""
ENOUGH_S = 0.1
TOY = "nodes"
"""The command that docs/extending.md adds, which has a test of its own."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """All of a page, without their indentation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [Block(language, re.sub(f"^{indent}", "", body, flags=re.MULTILINE)) for indent, language, body in found]


def command_lines(page: str) -> Iterator[str]:
    """Lines of blocks, joined where they go on, without the text beside them; and commands in running text."""
    for block in blocks(page):
        if block.language in ("", "bash", "sh"):
            joined = re.sub(r"\\\n *", "", block.text)
            for line in joined.splitlines():
                command = re.split(r"\s{2,}", line.strip())[0]
                if line and not line.startswith((" ", "{", '"', "#")):
                    yield command
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (re.sub(r"\s+", " ", span) for span in re.findall(r"`((?:skippipe|torchrun) [^`]+)`", text))


def test_pages_are_found() -> None:
    assert {"README.md", "docs/machines.md", "docs/studies/README.md"} <= set(PAGES)
    assert "skippipe plan cluster=geo20 schedule.skip_ratio=0.25" in command_lines("README.md")
    (joined,) = (line for line in command_lines("docs/machines.md") if line.startswith("torchrun") and "plan=" in line)
    assert joined.endswith("-m skippipe.train plan=plan.json folder=runs/mine")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that the pages speak of: clusters of one's own, plans, settings."""
    folder = tmp_path_factory.mktemp("docs")
    config = compose("plan", ["cluster=local4", "cluster.nodes_per_site=8"]).cluster
    from skippipe.presets import preset_spec

    cluster = preset_spec(config).cluster(config)
    (folder / "eight.json").write_text(cluster.to_json())
    (minimal,) = (b.text for b in blocks("docs/files.md") if b.language == "json" and '"nodes"' in b.text[:60])
    (folder / "three.json").write_text(minimal)
    problem = skippipe.Problem(cluster, sizes=[4, 2, 2], microbatches=3)
    for name, seed in (("plan", 0), ("other", 1), ("edited", 2)):
        plan = skippipe.plan(problem, work_limit=1_000, seed=seed)
        skippipe.save_plan(plan, folder / f"{name}.json")
    (folder / "mine" / "cluster").mkdir(parents=True)
    (office,) = (b.text for b in blocks("docs/files.md") if b.language == "yaml")
    (folder / "mine" / "cluster" / "office.yaml").write_text(office)
    return folder


@pytest.fixture(scope="module")
def checked() -> set[tuple[str, str]]:
    """Lines that have been checked, each with the cluster file: pages share many."""
    return set()


@pytest.mark.parametrize("page", PAGES)
def test_commands(
    page: str,
    prepared: Path,
    checked: set[tuple[str, str]],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")  # as torchrun does; settings may refer to it
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    cluster = "three.json" if page in ("docs/machines.md", "docs/files.md") else "eight.json"
    for name in ("mine.json", "my.json", "runs/measured/cluster.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / cluster, tmp_path / name)
    for line in command_lines(page):
        if (line, cluster) not in checked:
            check_line(line, run)
            checked.add((line, cluster))


def check_line(line: str, run: Run) -> None:
    """Run a line, or check what can be checked of it."""
    for part in re.split(r" && | # ", line):
        words = shlex.split(part)
        if "skippipe.train" in words:  # torchrun
            check_command(["train", *words[words.index("skippipe.train") + 1 :]], run)
        elif words[0] == "torchrun" and "skippipe" in words:
            check_command(words[words.index("skippipe") + 1 :], run)
        elif words[0] == "skippipe":
            check_command(words[1:], run)
        elif words[:3] == ["python", "-m", "pytest"]:
            assert all((ROOT / word).exists() for word in words[3:] if not word.startswith("-"))
        elif words[0] == "python" and words[1] != "-m":
            assert (ROOT / words[1]).is_file(), line
        elif words[:4] == ["python", "-m", "nox", "-s"]:
            assert words[4] in sessions(), line
        elif "pip" in words[:3]:
            check_installation(words, line)
        else:
            assert words[0] in FOREIGN or words[:2] == ["python", "-m"], line


def check_command(words: list[str], run: Run) -> None:
    """Run a command of skippipe, or compose its settings."""
    if not words or words[0] in ("COMMAND", TOY) or words[0].startswith("-"):
        return
    command = find_command(words)
    assert command is not None, words
    arguments = [each for each in words[len(command.name.split()) :] if each != "..."]
    if command.name in QUICK and "--cfg" not in arguments:
        hurried = ["planner.time_limit_s=" if each.startswith("planner.time_limit_s=") else each for each in arguments]
        quick = [each for each in hurried if each != "planner.time_limit_s="]
        if command.name == "plan" and "--help" not in arguments:
            quick.append(f"planner.time_limit_s={ENOUGH_S}")
        result = run(command.name, *with_plan(command, quick))
        assert result.status in (0, 1) if "cbs" in str(quick) else result.status == 0, (words, result.err)
    else:
        check_settings(command, arguments)


def with_plan(command: Command, arguments: list[str]) -> list[str]:
    """Commands in running text may be named without what they need."""
    needs = command.name in ("simulate", "report") and not any(each.startswith(("plan=", "--")) for each in arguments)
    return ["plan=plan.json", *arguments] if needs else arguments


def check_settings(command: Command, arguments: list[str]) -> None:
    """Compose and validate the settings, for each job of a sweep's first values."""
    sweep = "-m" in arguments or "--multirun" in arguments
    overrides = []
    folders: list[str] = []
    skip = False
    for i, argument in enumerate(arguments):
        if skip:
            skip = False
        elif argument in ("--cfg", "--config-dir"):
            folders += [arguments[i + 1]] if argument == "--config-dir" else []
            skip = True
        elif argument in command.flags:
            overrides.append(command.flags[argument])
        elif not argument.startswith("-") and "=" in argument and not argument.startswith("hydra/"):
            key, _, value = for_hydra(command, argument).partition("=")
            first = value.split(",")[0] if sweep and not value.startswith("[") else value
            overrides.append(f"{key}={first}")
    if folders:  # files of somebody else
        return
    try:
        assert isinstance(compose(command.name, overrides), command.settings_type)
    except InputError as error:  # what must be given may be left out in running text, or stand as a placeholder
        if error.found not in {"nothing", "NAME"}:
            raise


def sessions() -> set[str]:
    """The sessions of nox."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    return {item.name for item in tree.body if isinstance(item, ast.FunctionDef) and item.decorator_list}


def check_installation(words: list[str], line: str) -> None:
    """Extras exist, and what else is installed is a package of the project's own lists or well known."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in re.findall(r"\.\[(\w+)\]|skippipe\[(\w+)\]", line):
        assert (extra[0] or extra[1]) in extras, line
    assert words[words.index("pip") + 1] in ("install", "download"), line


def test_examples_of_commands_are_those_of_the_reference() -> None:
    """The page that derives from the registration has the examples of all commands, which are checked with it."""
    lines = set(command_lines("docs/commands.md"))
    for command in COMMANDS:
        first = re.split(r"\s{2,}|\\", command.examples.splitlines()[0].strip())[0].strip()
        assert any(line.startswith(first) for line in lines), first
    assert set(BY_NAME) == {command.name for command in COMMANDS}


@pytest.mark.parametrize("page", ["docs/python.md", "docs/extending.md", "README.md"])
def test_python_of_pages(page: str, prepared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The blocks of a page are one program."""
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    eight = skippipe.load_cluster(prepared / "eight.json")
    monkeypatch.chdir(tmp_path)
    four = skippipe.Cluster(eight.names[:4], [0.1] * 4, [0.2] * 4, [0.05] * 4, [8] * 4, transfer_s=[[0.01] * 4] * 4)
    (tmp_path / "mine.json").write_text((four if page == "docs/extending.md" else eight).to_json())
    program = "\n".join(block.text for block in blocks(page) if block.language == "python")
    assert program
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, page, "exec"), names)
    plt.close("all")


@pytest.fixture
def registered_only_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test registers: launchers of sweeps send all of it to processes, which could not import a toy."""
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", copy.deepcopy(store.repo))
    yield
    sys.modules.pop("toy", None)
    register.cache_clear()


@pytest.mark.usefixtures("registered_only_here")
def test_the_command_of_the_guide(prepared: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The toy of docs/extending.md is a command with help, configuration, ranges and completion."""
    _, settings, work, entry = (block.text for block in blocks("docs/extending.md") if block.language == "python")
    (tmp_path / "toy.py").write_text(f"{settings}\n{work}\n{entry}")
    monkeypatch.syspath_prepend(tmp_path)
    toy = importlib.import_module("toy").entry
    command = dataclasses.replace(toy, settings="toy:NodesJob", run="toy:nodes")
    monkeypatch.setattr("skippipe.commands.COMMANDS", (*COMMANDS, command))
    monkeypatch.setitem(BY_NAME, command.name, command)
    plan = prepared / "plan.json"
    lines = run("nodes", f"plan={plan}", "top=2").out.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"local-\d \d+%", lines[0])
    assert "plan: expected plan=..., got nothing" in run("nodes").err
    assert "top: expected an integer of at least 1, got 0" in run("nodes", f"plan={plan}", "top=0").err
    assert "number of nodes listed" in run("nodes", "--help").out


def test_files_of_the_page(tmp_path: Path) -> None:
    cluster, plan, allocation = (block.text for block in blocks("docs/files.md") if block.language == "json")
    for name, text in (("cluster", cluster), ("plan", plan), ("allocation", allocation)):
        (tmp_path / f"{name}.json").write_text(text)
    assert skippipe.load_cluster(tmp_path / "cluster.json").names == ["anna", "bert", "cleo"]
    loaded = skippipe.load_plan(tmp_path / "plan.json")
    simulated = skippipe.simulate(loaded)
    assert simulated.tasks == loaded.tasks
    assert simulated.predicted == loaded.predicted
    assert json.loads(loaded.to_json())["cluster"]["format"] == "skippipe.cluster/1"
    read = read_allocation(str(tmp_path / "allocation.json"))
    assert (read.stages, read.layers) == ([[0, 1], [2]], (2, 4))


def test_the_saving_of_the_three_machines(tmp_path: Path) -> None:
    """The table of docs/machines.md is what is planned for the cluster of docs/files.md; both plans are optimal."""
    (tmp_path / "mine.json").write_text(
        next(block.text for block in blocks("docs/files.md") if block.language == "json")
    )
    problem = skippipe.Problem(
        skippipe.load_cluster(tmp_path / "mine.json"), sizes=[2, 1], microbatches=6, skip_ratio=0.25
    )
    table = next(block.text for block in blocks("docs/machines.md") if block.text.startswith("strategy"))
    shown = {row.split()[0]: row.split()[1:] for row in table.splitlines()}
    routed, skipping = (skippipe.plan(problem, strategy=name) for name in ("full-routed", "skippipe"))
    for plan in (routed, skipping):
        assert plan.predicted.gap < 1e-6
        assert f"{plan.predicted.iteration_s:.3f}" == shown[plan.strategy][0]
    assert f"{1 - skipping.predicted.iteration_s / routed.predicted.iteration_s:.1%}" == shown["skippipe"][-1]


@pytest.mark.parametrize("page", sorted(set(PAGES)))
def test_links(page: str) -> None:
    """Files and headings that a page links to exist."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if heading and path.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, target


def test_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0"
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    for work in (citation, *citation["references"]):
        assert {"title", "type", "authors"} <= work.keys()
        assert all({"name", "family-names"} & author.keys() for author in work["authors"])
