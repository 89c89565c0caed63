"""Shared plans and pages of the report tests."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.browser import Browser, find_browser

from skippipe.cli import main

EVENTS = [[0.01, 10, None, 20.0], [0.02, 50, 60.0, 20.0], [0.5, 4000, 45.5, 22.0], [1.0, 9000, 41.0, 25.25]]
STATISTICS = {"tree_nodes": 1234567, "conflicts_tc2": 89, "share": 0.125}
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'> [bold]&amp;{{data}}"


def command(folder: Path, *arguments: str) -> None:
    """Run a command that must succeed, in `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(list(arguments)) == 0


def edited(folder: Path, name: str, output: str, **changes: Any) -> None:
    """Rewrite a plan with other values of some keys."""
    plan = json.loads((folder / name).read_text())
    for key, value in changes.items():
        plan[key] = {**plan[key], **value}
    (folder / output).write_text(json.dumps(plan))


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans: plan.json (20 nodes, with all-reduce and a search), full.json, hostile.json, large.json."""
    folder = tmp_path_factory.mktemp("plans")
    geo = ("plan", "cluster=geo20", "planner.work_limit=20000")
    command(folder, *geo, "cluster.gradient_bytes=3e7", "output=made.json")
    edited(folder, "made.json", "plan.json", solver={"events": EVENTS, "statistics": STATISTICS})
    command(folder, *geo, "schedule.strategy=full", "output=full.json")
    plan = json.loads((folder / "made.json").read_text())
    for number, node in enumerate(plan["cluster"]["nodes"]):
        node["name"] = f"{number}{HOSTILE}"
    for key in ("events", "statistics"):  # others need not say how they searched
        del plan["solver"][key]
    (folder / "hostile.json").write_text(json.dumps(plan))
    command(
        folder, "plan", "cluster=synthetic", "cluster.nodes=1000", "schedule.strategy=random-skip",
        "schedule.stages=20", "schedule.microbatches_per_source=9", "planner.work_limit=1", "output=large.json",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def pages(plans: Path) -> Path:
    """The same folder, with their pages: plan.html, compare.html, hostile.html and large.html."""
    command(plans, "report", "plan=plan.json", "output=plan.html")
    command(plans, "report", "plan=plan.json", "compare=full.json", "output=compare.html")
    command(plans, "report", "plan=hostile.json", "output=hostile.html")
    command(plans, "report", "plan=large.json", "output=large.html")
    return plans


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless browser for all tests."""
    executable = find_browser()
    if executable is None:
        pytest.skip("needs a browser: chromium, chromium-browser or google-chrome on the PATH")
    browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
