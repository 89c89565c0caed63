"""`skippipe report`: output, files and refusals."""

import importlib.util
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from report.conftest import EVENTS, HOSTILE, STATISTICS, edited

from skippipe import Plan, SearchEvent, SearchReport, explain, upgrades
from skippipe.commands.report import short_names
from skippipe.plan_file import load_plan
from skippipe.report.analysis import upgrade_name
from skippipe.report.page import embedded

Refused = Callable[..., str]


def shape_of(path: Path) -> tuple[int, ...]:
    """Shape of a non-empty PNG."""
    from matplotlib.image import imread

    picture = imread(io.BytesIO(path.read_bytes()), format="png")
    assert picture.std() > 0.02
    return tuple(picture.shape)


def test_it_prints_and_writes_a_page(run: Run, plans: Path, tmp_path: Path) -> None:
    result = run("report", f"plan={plans / 'plan.json'}")
    assert result.status == 0, result.err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "written: report.html" in result.out
    explanation = explain(load_plan(str(plans / "plan.json")))
    whole = explanation.plan.predicted.iteration_s
    assert re.search(rf"^iteration +{whole:.3f} s +100.0% +{whole:.3f} s +100.0%$", result.out, re.MULTILINE)
    found = upgrades(explanation)
    rows = re.findall(r"^(node|link) .* (\d+\.\d{3}) s +(\d+\.\d{3}) s +\d+\.\d%", result.out, re.MULTILINE)
    shown = [(f"{u.iteration_s:.3f}", f"{whole - u.iteration_s:.3f}") for u in found[:10]]
    assert [(kept, saved) for _, kept, saved in rows] == shown
    assert upgrade_name(explanation.plan.cluster, found[0]) in result.out
    assert f"{len(found) - 10} more upgrades save less." in result.out
    assert "replanning may save more" in result.out
    assert re.search(r"^tree nodes +1,234,567$", result.out, re.MULTILINE)


def test_seconds_of_the_parts_add_up(run: Run, plans: Path, tmp_path: Path) -> None:
    assert run("report", f"plan={plans / 'plan.json'}", "output=null", "json=all.json").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["all.json"]
    document = json.loads((tmp_path / "all.json").read_text())
    (plan,) = document["plans"]
    assert document["format"] == "skippipe.report/1"
    for path in ("critical", "last_microbatch"):
        assert sum(plan[path]["seconds"].values()) == pytest.approx(plan["iteration_s"], abs=1e-9)
        of_kind = [s for s in plan[path]["segments"] if s["part"] == "transfer"]
        total = sum(s["end_s"] - s["start_s"] for s in of_kind)
        assert plan[path]["seconds"].get("transfer", 0.0) == pytest.approx(total, abs=1e-9)
    planned = json.loads((plans / "plan.json").read_text())
    keys = ("node", "microbatch", "kind", "hop", "start_s", "end_s")
    assert [[t[key] for key in keys] for t in plan["tasks"]] == [[t[key] for key in keys] for t in planned["tasks"]]
    allocation = plan["allocation"]
    assert allocation["stages"] == planned["stages"]
    assert sum(allocation[key] for key in ("replica_s", "tour_s", "compute_s")) == pytest.approx(allocation["score_s"])
    assert max(allocation["slowest_inside_s"]) == allocation["replica_s"]
    assert len(plan["upgrades"]) == len(upgrades(explain(load_plan(str(plans / "plan.json")))))


def test_two_plans_and_all_files(run: Run, plans: Path, tmp_path: Path) -> None:
    result = run(
        "report", f"plan={plans / 'plan.json'}", f"compare={plans / 'full.json'}", "top=2", "output=page.html",
        "picture=gantt.png", "curve=curve.png", "json=all.json",
    )  # fmt: skip
    assert result.status == 0, result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.json", "curve.png", "gantt.png", "page.html"]
    assert len(re.findall(r"^(?:node|link) .* s +\d+\.\d%", result.out, re.MULTILINE)) == 4
    assert [plan["strategy"] for plan in json.loads((tmp_path / "all.json").read_text())["plans"]] == [
        "skippipe",
        "full",
    ]
    height, width, _ = shape_of(tmp_path / "gantt.png")
    assert min(height, width) > 600
    assert shape_of(tmp_path / "curve.png")[0] > 300


def test_plot_of_a_thousand_nodes(run: Run, plans: Path, tmp_path: Path) -> None:
    assert run("report", f"plan={plans / 'large.json'}", "output=null", "picture=gantt.png").status == 0
    assert shape_of(tmp_path / "gantt.png")[0] > 2000


def test_a_plan_without_search_history(run: Run, plans: Path, tmp_path: Path) -> None:
    edited(plans, "plan.json", "silent.json", solver={"events": None, "statistics": 3})
    result = run("report", f"plan={plans / 'silent.json'}", "curve=curve.png")
    assert result.status == 0, result.err
    assert "no curve: the plan has no search history" in result.out
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert 'class="curve"' not in (tmp_path / "report.html").read_text()


def test_replanning_with_the_first_upgrades(run: Run, tmp_path: Path) -> None:
    assert run("plan", "cluster=local4", "planner.work_limit=3000000", "output=plan.json").status == 0
    result = run("report", "plan=plan.json", "replan=true", "output=null", "json=all.json")
    assert result.status == 0, result.err
    assert "replanned" in result.out
    (plan,) = json.loads((tmp_path / "all.json").read_text())["plans"]
    anew = [upgrade["replanned_s"] for upgrade in plan["upgrades"]]
    assert all(time is not None for time in anew[:3])
    assert all(time is None for time in anew[3:])
    # So small a question is solved whatever the cluster: a new plan is never longer than the old one on faster nodes.
    assert all(new <= u["iteration_s"] + 1e-9 for new, u in zip(anew[:3], plan["upgrades"], strict=False))


def test_foreign_names_are_escaped(run: Run, plans: Path, tmp_path: Path) -> None:
    result = run("report", f"plan={plans / 'hostile.json'}", "picture=gantt.png")
    assert result.status == 0, result.err
    assert "[bold]" in result.out
    page = (tmp_path / "report.html").read_text()
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert shape_of(tmp_path / "gantt.png")
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["plans"][0]["nodes"][2] == f"2{HOSTILE}"


@pytest.mark.parametrize("text", [HOSTILE, "<!--<script>", "]]>", "&lt;\u2029", "\ud800"])
def test_embedded_text_round_trip(text: str) -> None:
    assert json.loads(embedded({text: [text]})) == {text: [text]}
    assert not set("<>&\u2028\u2029") & set(embedded(text))


def test_the_page_asks_for_nothing(plans: Path, run: Run, tmp_path: Path) -> None:
    run("report", f"plan={plans / 'plan.json'}")
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(?:src|href)\s*=|url\(|https?:|@import|fetch\(|XMLHttpRequest", page)
    assert "default-src 'none'" in page


def test_refusals(refused: Refused, plans: Path) -> None:
    plan = f"plan={plans / 'plan.json'}"
    assert "plan: expected plan=..., got nothing" in refused("report")
    assert "absent.json: cannot be read" in refused("report", plan, "compare=absent.json")
    message = refused("report", plan, "picture=no/such.png")
    assert re.search(r": picture: \S*no/such.png cannot be written: the folder \S*/no does not exist", message)
    assert "json: expected a file of its own, got " in refused("report", plan, "output=one.html", "json=one.html")
    assert "top: expected an integer of at least 1, got 0" in refused("report", plan, "top=0")
    assert "sweep: unknown key" in refused("report", plan, "sweep=folder")


def test_plots_without_matplotlib(refused: Refused, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "matplotlib" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr("skippipe.packages.find_spec", absent)
    message = refused("report", f"plan={plans / 'plan.json'}", "picture=gantt.png")
    assert "requires matplotlib (not installed)" in message


def test_one_line_per_job_in_a_sweep(run: Run, plans: Path, tmp_path: Path) -> None:
    result = run("report", "-m", f"plan={plans / 'plan.json'},{plans / 'full.json'}")
    assert result.status == 0, result.err
    assert len(re.findall(r"iteration \d+\.\d{3} s$", result.out, re.MULTILINE)) == 2
    assert len(list(tmp_path.glob("multirun/**/report.html"))) == 2


def test_help(run: Run) -> None:
    text = run("report", "--help").out
    assert text.startswith("skippipe report: ")
    for key in ("plan", "compare", "top", "replan", "output", "picture", "curve", "map", "json"):
        assert re.search(rf"^  {key}  +\w", text, re.MULTILINE), key
    assert "skippipe report plan=plan.json compare=other.json" in text


@pytest.fixture
def reporting(plans: Path) -> Callable[..., SearchReport]:
    """What is read of a search from a plan whose `solver` is this."""
    content = json.loads((plans / "plan.json").read_text())

    def read(**solver: Any) -> SearchReport:
        # A number that none can hold stands for what is no number.
        text = json.dumps(content | {"solver": solver}).replace("NaN", "1e999")
        return Plan.from_json(text).solver

    return read


def event_values(event: SearchEvent) -> tuple[float, int, float | None, float | None]:
    return event.elapsed_s, event.work, event.upper_s, event.lower_s


def test_events_of_a_search(reporting: Callable[..., SearchReport]) -> None:
    found = reporting(events=EVENTS, statistics=STATISTICS)
    assert [list(event_values(event)) for event in found.events] == EVENTS
    assert event_values(reporting(events=[[0.01, 10, 50.0, 0.0]]).events[0]) == (0.01, 10, 50.0, None)
    assert found.statistics == STATISTICS


@pytest.mark.parametrize(
    "events",
    [None, 3, "text", [3], [[1, 2, 3]], [[0, 0, "x", 1]], [[1, 1, 5, 1], [0, 2, 5, 1]], [[0, 1, -1, 0]],
     [[True, 1, 2, 3]], [[0, 1, float("nan"), 1]]],
)  # fmt: skip
def test_events_of_another_form_count_as_absent(events: Any, reporting: Callable[..., SearchReport]) -> None:
    assert reporting(events=events, statistics=[1]).events == []
    assert reporting(statistics={"a": True, "b": "x", "c": 2}).statistics == {"c": 2}


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["sweep/0/plan.json", "sweep/4/plan.json"], ["0/plan.json", "4/plan.json"]),
        (["/a/b/one.json", "/a/b/two.json"], ["one.json", "two.json"]),
        (["plan.json", "other/plan.json"], ["plan.json", "other/plan.json"]),
        (["/a/plan.json", "a/plan.json"], ["/a/plan.json", "a/plan.json"]),
        (["a/plan.json", "b/plan.json"], ["a/plan.json", "b/plan.json"]),
        (["runs/mine/plan.json"], ["runs/mine/plan.json"]),
    ],
)
def test_plans_of_one_sweep_have_short_names(paths: list[str], names: list[str]) -> None:
    assert short_names(paths) == names
