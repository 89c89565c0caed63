"""`skippipe bench figure3`: the paper's settings, equal effort, dominance, resuming, and what is written."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from reference.independent import verdict

from skippipe import Plan
from skippipe.bench.figure3.networks import NETWORKS, SIZES, Setting, cluster_of, default_sizes
from skippipe.bench.figure3.rows import Row, best_saving, optimum, wrong_rankings
from skippipe.bench.figure3.search import (
    CONTAINED,
    OWN,
    SAME,
    Cell,
    Effort,
    PlanStore,
    SettingPlanner,
    shortest,
    taken_over,
)
from skippipe.bench.figure3.shapes import LAYER_S, MEASURED, MODELS, SEQUENCE

PUBLISHED_GRADIENTS, PUBLISHED_MESSAGE = 1_346_446_748, 16_777_324
"""Bytes in the paper's public code: of stage 0's gradients, and of a message of one sequence, headers included."""
SMALL = (
    "networks=[one_region]",
    "models=[500m]",
    "tokens=[4096]",
    "skip_ratios=[0.25]",
    "work_limit=3000",
    "searches=1",
)
SETTING = Setting("one_region", "500m", 4096, all_reduce=False, sizes=SIZES[6])


# --- settings


def test_the_model_that_the_paper_measured_has_its_bytes_and_times() -> None:
    shape = MODELS[MEASURED]
    assert shape.gradient_bytes(6)[0] == pytest.approx(PUBLISHED_GRADIENTS, rel=1e-4)
    assert shape.message_bytes(SEQUENCE) == pytest.approx(PUBLISHED_MESSAGE, rel=1e-4)
    cluster = cluster_of(Setting("geo20", MEASURED, 2 * SEQUENCE, all_reduce=False, sizes=SIZES[6]), None)
    assert cluster.forward_s[0] == pytest.approx(2 * 4 * LAYER_S)
    assert cluster.backward_s[0] == pytest.approx(1.5 * cluster.forward_s[0])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("model", MODELS)
def test_every_setting_is_a_cluster_of_20_nodes(network: str, model: str) -> None:
    sizes = default_sizes(model)
    cluster = cluster_of(Setting(network, model, 8192, all_reduce=True, sizes=sizes), 1e13)
    assert len(cluster) == sum(sizes) == 20
    assert len(cluster.gradient_bytes) == len(sizes)
    forward_flops = cluster.forward_s[0] * 1e13 / 8192
    assert forward_flops == pytest.approx(MODELS[model].layers / len(sizes) * MODELS[model].layer_flops)


def test_the_networks_have_so_many_regions() -> None:
    names = {network: cluster_of(Setting(network, "8b", 4096, False, SIZES[4]), None).names for network in NETWORKS}
    regions = {network: len({name.rpartition("-")[0] for name in each}) for network, each in names.items()}
    assert (regions["geo20"], regions["five_regions"], regions["one_region"]) == (12, 5, 1)
    assert {len(each) for each in names.values()} == {16}


# --- dominance


def planner(folder: Path, work_limit: int) -> SettingPlanner:
    return SettingPlanner(SETTING, None, 6, Effort(1, work_limit, 0), PlanStore(folder))


def test_an_unlucky_search_takes_over_the_plan_of_a_contained_strategy(tmp_path: Path) -> None:
    found = planner(tmp_path, 60_000).own("skippipe-no-tc2", 0.25)
    hasty = planner(tmp_path, 1)
    own = hasty.own("skippipe", 0.25)
    assert own.iteration_s is not None
    assert found.iteration_s is not None
    better = hasty.at_least_as_good(own, [own, found])
    assert better.iteration_s is not None
    assert better.taken_from == "skippipe-no-tc2"
    assert better.iteration_s <= min(own.iteration_s, found.iteration_s)
    assert better.plan is not None
    assert better.plan.strategy == "skippipe"
    assert better.plan.constraints.tc2
    assert verdict(better.plan.to_json()) == []
    other = Cell(SETTING, "skippipe-no-tc2", 1 / 3, OWN, found.plan)  # another skip ratio: another question
    assert hasty.at_least_as_good(own, [own, other]) is own


def test_a_plan_that_is_taken_over_keeps_its_times_and_gets_the_bound_of_its_new_strategy(tmp_path: Path) -> None:
    good = planner(tmp_path, 60_000).own("skippipe", 0.25).plan
    assert good is not None
    poor = planner(tmp_path, 1).on(good, "skippipe", 0.25, OWN).plan
    assert poor is not None
    assert poor.predicted.iteration_s > good.predicted.iteration_s
    taken = taken_over(good, poor)
    assert taken.tasks == good.tasks
    assert taken.predicted.iteration_s == good.predicted.iteration_s
    assert taken.predicted.lower_bound_s == poor.predicted.lower_bound_s
    assert verdict(taken.to_json()) == []


def test_the_shortest_has_a_plan_where_any_has(tmp_path: Path) -> None:
    none = Cell(SETTING, "full", 0.0, OWN, None, note="none found")
    found = planner(tmp_path, 1).own("full", 0.0)
    assert shortest([none, found]) is found
    assert shortest([none, none]) is none


# --- the command


def test_a_small_part_of_the_figure(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ("bench", "figure3", *SMALL, "all_reduce=[false,true]", "companion.kinds=[]", "output=figure")
    result = run(*command)
    assert result.status == 0, result.err
    folder = tmp_path / "figure"
    figure = json.loads((folder / "rows.json").read_text())
    check_rows(figure["rows"], folder)
    check_page(figure["rows"], folder, result.out)
    plans = {path: path.stat().st_mtime_ns for path in (folder / "plans").iterdir()}
    for path in plans:
        assert verdict(path.read_text()) == []
        assert Plan.from_json(path.read_text()).check() == []
    assert run(*command).status == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "plans").iterdir()} == plans
    assert json.loads((folder / "rows.json").read_text())["rows"] == figure["rows"]


def check_rows(found: list[dict[str, Any]], folder: Path) -> None:
    """Every strategy is there in both comparisons, savings follow, and no strategy is worse than one it contains."""
    rows = {
        (row["all_reduce"], row["allocation"], row["strategy"], row["skip_ratio"]): row["iteration_s"] for row in found
    }
    strategies = [("full", 0.0), ("full-routed", 0.0)] + [
        (name, 0.25) for name in ("random-skip", "skippipe-no-tc2", "skippipe")
    ]
    assert set(rows) == {
        (reduced, kind, *each) for reduced in (False, True) for kind in (OWN, SAME) for each in strategies
    }
    for (reduced, kind, strategy, ratio), seconds in rows.items():
        assert seconds <= rows[reduced, SAME, strategy, ratio]
        for contained in CONTAINED.get(strategy, ()):
            assert seconds <= rows[reduced, kind, contained, ratio]
    assert rows[False, OWN, "full", 0.0] == rows[False, SAME, "full", 0.0]
    for row in found:
        full_s = rows[row["all_reduce"], row["allocation"], "full", 0.0]
        assert row["saved_vs_full"] == pytest.approx(1 - row["iteration_s"] / full_s)
        assert row["lower_bound_s"] <= row["iteration_s"]
    with (folder / "rows.csv").open() as file:
        assert [float(row["iteration_s"]) for row in csv.DictReader(file)] == [row["iteration_s"] for row in found]


def check_page(found: list[dict[str, Any]], folder: Path, printed: str) -> None:
    """Page, terminal and charts show every bar."""
    page = (folder / "figure3.md").read_text()
    assert "one search of 3,000 units of work for each strategy, seed 0" in page
    for row in found:
        assert f" {row['iteration_s']:.2f} |" in page
        assert f" {row['iteration_s']:.2f}" in printed
    for name in ("figure3.svg", "figure3_all_reduce.svg"):
        assert f"({name})" in page
        assert "skippipe-no-tc2 25 %" in (folder / name).read_text()


def test_companions(run: Run, tmp_path: Path) -> None:
    where = ("companion.network=one_region", "companion.model=500m")
    result = run("bench", "figure3", *SMALL, "strategies=[skippipe]", *where)
    assert result.status == 0, result.err
    content = json.loads((tmp_path / "figure3" / "rows.json").read_text())
    assert {(row["nodes"], row["stages"], row["skip_ratio"]) for row in content["straight"]} == {(16, 4, 0.0)}
    assert {row["strategy"] for row in content["straight"]} == {"full", "full-routed"}
    own = [Row(**row) for row in content["ratios"] if row["allocation"] == OWN]
    best = optimum(own)
    assert best is not None
    assert best.iteration_s == min(row.iteration_s for row in own if row.iteration_s is not None)
    page = (tmp_path / "figure3" / "figure3.md").read_text()
    assert f"Shortest with {best.skip_ratio:.1%} skipped: {best.iteration_s:.2f} s, by time alone" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tokens=[5000]"], "tokens[0]: expected a multiple of 4096, the tokens of a sequence, got 5000"),
        (["companion.tokens=1"], "companion.tokens: expected a multiple of 4096"),
        (["networks=[]"], "networks: expected at least one, got []"),
        (["skip_ratios=[0.25,0.9]"], "skip_ratios[1]: expected more than 0 and at most 0.8333, got 0.9"),
        (["checker=nowhere.py"], "checker: expected the file of a Python script, got nowhere.py"),
        (["models=[70b]"], "models[0]: expected one of 500m, 1.5b, 8b, got 70b"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(refused: Callable[..., str], words: list[str], message: str) -> None:
    assert message in refused("bench", "figure3", *words)


# --- tables


def row(strategy: str, iteration_s: float, **others: Any) -> Row:
    place = {"network": "geo20", "model": "8b", "tokens": 4096, "all_reduce": False, "nodes": 20, "stages": 8}
    return Row(**{**place, "skip_ratio": 0.25, "allocation": OWN, **others}, strategy=strategy, iteration_s=iteration_s)


def test_the_best_saving_is_of_skippipe_alone_and_per_network() -> None:
    rows = [
        row("random-skip", 1.0, saved_vs_full=0.9),
        row("skippipe", 5.0, saved_vs_full=0.5),
        row("skippipe", 4.0, saved_vs_full=0.6, tokens=8192),
        row("skippipe", 4.0, saved_vs_full=0.1, network="one_region"),
        row("skippipe", 4.0, saved_vs_full=0.8, allocation=SAME),
    ]
    assert best_saving(rows, OWN) == [rows[2], rows[3]]


def test_rankings_are_wrong_only_where_predictions_differ_clearly() -> None:
    rows = [
        row("full", 10.0, predicted_s=10.0, measured_s=10.0),
        row("full-routed", 9.9, predicted_s=9.9, measured_s=10.5),
        row("skippipe", 9.0, predicted_s=9.0, measured_s=10.1),
        row("random-skip", 1.0, predicted_s=1.0, measured_s=20.0, tokens=8192),
    ]
    assert wrong_rankings(rows, 0.03) == [(rows[2], rows[0])]
