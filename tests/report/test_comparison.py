"""Comparison of plans: one that skips more and still takes longer."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import Run
from report.conftest import command

from skippipe import Plan
from skippipe.plan_file import load_plan
from skippipe.report.analysis import PlanAnalysis, analyse_plan
from skippipe.report.comparison import comparison, messages
from skippipe.report.page import make_page

FAR = (
    "cluster=synthetic", "cluster.seed=225", "cluster.nodes=4", "cluster.speed_spread=4", "cluster.node.memory=1",
    "schedule.stages=4", "schedule.microbatches_per_source=3", "planner.work_limit=200000",
)  # fmt: skip
"""One source with little memory and distant stages: routes of two stages need a trip for each."""


Two = tuple[PlanAnalysis, PlanAnalysis]
NAMES = ("skip0.5.json", "skip0.4.json")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with optimal plans that skip half and two fifths; the first takes longer."""
    folder = tmp_path_factory.mktemp("two")
    for name in NAMES:
        command(folder, "plan", *FAR, f"schedule.skip_ratio={name[4:7]}", f"output={name}")
    return folder


@pytest.fixture(scope="module")
def two(made: Path) -> Two:
    """Both, analysed."""
    half, less = (analyse_plan(load_plan(str(made / name)), name) for name in NAMES)
    assert half.plan.predicted.iteration_s > 1.02 * less.plan.predicted.iteration_s
    assert half.plan.predicted.lower_bound_s > less.plan.predicted.iteration_s
    return half, less


def edited(analysis: PlanAnalysis, name: str, **predicted: float) -> PlanAnalysis:
    content = json.loads(analysis.plan.to_json())
    content["predicted"].update(predicted)
    plan = Plan.from_json(json.dumps(content))
    return PlanAnalysis(name, plan, analysis.explanation, [], tasks=analysis.tasks)


def test_more_skipping_can_take_longer(two: Two) -> None:
    half, less = two
    table = comparison(half, less)
    assert table == comparison(less, half)
    assert table.title == "Why skip0.5.json takes longer than skip0.4.json"
    notes = " ".join(table.notes)
    longer_s = half.plan.predicted.iteration_s - less.plan.predicted.iteration_s
    assert f"It takes {longer_s:.3f} s longer" in notes
    assert ", despite fewer stage visits: 6 vs. 7." in notes
    assert "Stages per route: 2 vs. 2 or 3." in notes
    means = [total / count for count, total in map(messages, two)]
    assert means[0] > means[1]
    assert f"Mean message time: {means[0]:.3f} s over 12 messages vs. {means[1]:.3f} s over 14: routes that" in notes
    assert "On the critical path: transfer +" in notes
    bound = half.plan.predicted.lower_bound_s
    assert f"The difference is proved: for its allocation and rules, the lower bound {bound:.3f} s exceeds" in notes
    assert "search may be the cause" not in notes


def test_message_times_match_the_cluster(two: Two) -> None:
    for analysis in two:
        plan, transfer_s = analysis.plan, analysis.plan.cluster.transfer_matrix()
        total, count = 0.0, 0
        for microbatch in plan.microbatches:
            cycle = [*microbatch.nodes, microbatch.source]
            steps = [(a, b) for a, b in itertools.pairwise(cycle) if a != b]
            total += sum(transfer_s[a, b] + transfer_s[b, a] for a, b in steps)
            count += 2 * len(steps)
        found, seconds = messages(analysis)
        assert found == count
        assert seconds == pytest.approx(total, abs=1e-6)


def test_search_may_be_the_cause(two: Two) -> None:
    half, less = two
    loose = edited(half, "loose.json", lower_bound_s=less.plan.predicted.iteration_s / 2)
    last = comparison(loose, less).notes[-1]
    assert last.startswith("The search may be the cause: for its allocation and rules, the lower bound ")
    assert "planner.time_limit_s" in last


def test_equal_plans(two: Two) -> None:
    half, _ = two
    table = comparison(half, half)
    assert table.notes == (f"Both take {half.plan.predicted.iteration_s:.3f} s.",)


def test_other_differences(run: Run, tmp_path: Path, two: Two) -> None:
    """More microbatches, other rules, another allocation and strategy."""
    _, less = two
    (tmp_path / "other.json").write_text(json.dumps({"stages": [[1], [0], [2], [3]]}))
    plain = [setting for setting in FAR if "per_source" not in setting]
    arguments = ("schedule.microbatches_per_source=5", "allocate.stages=other.json", "schedule.max_swaps=0")
    full = ("schedule.strategy=full", "schedule.skip_ratio=0", "output=full.json")
    result = run("plan", *plain, *arguments, *full)
    assert result.status == 0, result.err
    notes = " ".join(comparison(analyse_plan(load_plan(str(tmp_path / "full.json")), "full"), less).notes)
    assert "for 5 microbatches vs. 3: " in notes
    assert "Other differences than the skip ratio: rules, strategies." in notes
    count = sum(len(set(a) - set(b)) for a, b in zip([[1], [0], [2], [3]], less.plan.stages, strict=True))
    assert count
    assert f"Different allocation: {count} nodes serve another stage, the same groups in another stage order." in notes
    assert "Visits per stage: 5, 5, 5, 5 vs. 3, " in notes


def test_terminal_page_and_document_agree(run: Run, tmp_path: Path, made: Path, two: Two) -> None:
    for name in NAMES:
        shutil.copy(made / name, tmp_path)
    result = run("report", "plan=skip0.5.json", "compare=skip0.4.json", "json=all.json", "output=page.html")
    assert result.status == 0, result.err
    notes = comparison(*two).notes
    assert json.loads((tmp_path / "all.json").read_text())["comparison"] == list(notes)
    page = (tmp_path / "page.html").read_text()
    assert page == make_page(two, 10)
    for note in notes:
        assert note in result.out
        assert note.replace("'", "&#x27;") in page
    rate = 3 / two[0].plan.predicted.iteration_s
    assert re.search(rf"^skip0.5.json +skippipe +[\d.]+ s +{rate:.4g} ", result.out, re.MULTILINE)
    assert run("report", "plan=skip0.5.json", "json=one.json", "output=null").status == 0
    assert "comparison" not in json.loads((tmp_path / "one.json").read_text())
