"""Proposals of phases: measured costs, what is chosen from them, and what is refused."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from skippipe.application import compose
from skippipe.config import PhaseConfig, PhasesConfig, RouteClass
from skippipe.errors import InputError
from skippipe.proposal.costs import MeasuredRun, Recipe, Regime, load_costs
from skippipe.proposal.proposal import Timing, propose
from skippipe.proposal.text import certainty, difference
from skippipe.proposal.timing import phases_text
from skippipe.study.records import ArmKey, load_records

STUDIES = Path(__file__).parent.parent / "docs" / "studies"
TOLERANCE = 0.01
Write = Callable[[str, Any], Path]


def runs(*losses: float, rate: float = 1e-3) -> list[MeasuredRun]:
    return [MeasuredRun("arm", seed, rate, loss, loss + 0.5, loss + 1.0) for seed, loss in enumerate(losses)]


def regime(**losses: tuple[float, ...]) -> Regime:
    recipes = [Recipe(name, name, runs(*own), phases=PhasesConfig()) for name, own in losses.items()]
    return Regime("a regime", 16, 512, 1e6, 1000, 2.0, recipes)


def timed(measured: Regime, **iterations_s: float | None) -> Any:
    timings = [
        (recipe, None if (time_s := iterations_s[recipe.name]) is None else Timing("routed", (), time_s, 50.0))
        for recipe in measured.recipes
    ]
    return propose(measured, timings, TOLERANCE)


def test_the_fastest_that_reaches_the_loss_is_chosen() -> None:
    measured = regime(full=(2.0, 2.1), fast=(2.05, 2.15), good=(1.99, 2.09), better=(1.9, 2.0))
    found = timed(measured, full=10.0, fast=1.0, good=5.0, better=6.0)
    assert found.chosen.recipe.name == "good"
    assert found.chosen.run_s == 1000 * 5.0 + 50.0
    assert [each.recipe.name for each in found.faster] == ["fast"]
    assert timed(measured, full=1.0, fast=9.0, good=5.0, better=None).chosen.recipe.name == "full"
    assert timed(measured, full=10.0, fast=1.0, good=None, better=6.0).chosen.recipe.name == "better"
    assert timed(measured, full=None, fast=1.0, good=None, better=None).chosen is None


def test_differences_are_of_common_seeds() -> None:
    found = timed(regime(full=(2.0, 2.1, 2.2), one=(1.9,), even=(1.99, 2.09, 2.19), wide=(1.8, 2.2)),
                  full=3.0, one=3.0, even=3.0, wide=3.0)  # fmt: skip
    full, one, even, wide = found.candidates
    assert (full.above_full.value, full.above_full.high) == (0.0, 0.0)
    assert (one.above_full.value, one.reaches, one.certain) == (pytest.approx(-0.1), True, False)
    assert even.above_full.high == pytest.approx(-0.01)
    assert even.certain
    assert wide.above_full.value == pytest.approx(-0.05)
    assert wide.reaches
    assert not wide.certain
    costs = dataclasses.replace(load_costs(None), seeds_differ_by=0.01)
    assert certainty(one, full, costs).startswith("not at all by an interval (1 seed against 3)")
    assert certainty(wide, full, costs).endswith("the interval includes a higher loss")
    assert difference(one.above_full) == "-0.1000 (one seed)"


def test_rates_as_close_as_seeds_count_as_equal() -> None:
    recipe = Recipe("r", "r", [*runs(2.0, rate=4e-3), *runs(2.005, 2.007), *runs(2.1, 2.1, 2.1, rate=2e-3)])
    assert {run.learning_rate for run in recipe.best(0.01)} == {1e-3}
    assert {run.learning_rate for run in recipe.best(0.001)} == {4e-3}


def test_the_table_that_ships_is_that_of_the_emulated_study() -> None:
    """Every run of 16 layers stands in its page, with its loss and what its phases left out."""
    page = (STUDIES / "emulated.md").read_text("utf-8")
    costs = load_costs(None)
    assert [(r.layers, r.hidden, r.tokens, r.iterations) for r in costs.regimes] == [
        (16, 512, 150e6, 1526), (16, 256, 300e6, 3052), (16, 256, 300e6, 3052), (24, 640, 200e6, 2035),
    ]  # fmt: skip
    for measured in costs.regimes[:2]:
        assert sum(run.arm.startswith(("wsd_", "n_")) for r in measured.recipes for run in r.runs) > 15
        for recipe in measured.recipes:
            for run in recipe.runs:
                lines = [line for line in page.splitlines() if line.startswith(f"| `{run.arm}`, seed {run.seed} |")]
                (line,) = [line for line in lines if f"| {run.loss:.4f} |" in line]
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                assert float(cells[2]) == pytest.approx(run.learning_rate)
                assert cells[6] == f"{run.quarter:.2f} / {run.half:.2f}"
                if recipe.phases is None:
                    saved = 1 - (recipe.depth or 0) / 16
                else:
                    shares = [phase.share for phase in recipe.phases.list[:-1]]
                    shares.append(1 - sum(share or 0 for share in shares))
                    saved = sum((share or 0) * out for share, out in zip(shares, recipe.left_out, strict=True))
                assert float(cells[3].rstrip("%")) / 100 == pytest.approx(saved, abs=6e-4)


@pytest.mark.parametrize(("study", "number"), [("growth", 2), ("large", 3)])
def test_the_table_that_ships_is_that_of_studies(study: str, number: int) -> None:
    """Every run of these regimes is a record, trained by the phases of the recipe, with its losses."""
    records = load_records(STUDIES / f"{study}.json")
    measured = load_costs(None).regimes[number]
    for recipe in measured.recipes:
        for run in recipe.runs:
            record = records[ArmKey(run.arm, run.seed)]
            assert record.finished
            assert record.latest is not None
            assert record.tokens_done == measured.iterations_of(recipe) * measured.iteration_tokens
            assert run.loss == round(record.latest.loss, 4)
            shown = {row.omission: f"{math.log(row.perplexity.value):.2f}" for row in record.evaluation}
            known = [f"{loss:.2f}" for loss in (run.quarter, run.half) if loss is not None]
            assert [shown[omission] for omission in ("random:0.25", "random:0.5") if omission in shown] == known
            job = compose("train", [f"experiment={run.arm}"])
            assert job.train.learning_rate == run.learning_rate
            if recipe.phases is None:
                assert job.model["num_hidden_layers"] == recipe.depth
            else:
                used = [(phase.share, phase.stages) for phase in job.phases.list]
                assert used == [(phase.share, phase.stages) for phase in recipe.phases.list]


def test_nothing_is_extrapolated() -> None:
    costs = load_costs(None)
    assert [found.tokens for found in costs.regimes_of(16, None)] == [150e6, 300e6, 300e6]
    assert [found.hidden for found in costs.regimes_of(16, 300e6)] == [256, 256]
    with pytest.raises(InputError, match="expected a measured depth: 16, 24, got 20; costs are not ext"):
        costs.regimes_of(20, None)
    with pytest.raises(InputError, match=r"tokens: expected null, or a measured number: 1.5e\+08, 3e\+08, got 2e\+08"):
        costs.regimes_of(16, 2e8)


def test_phases_as_they_are_typed() -> None:
    classes = [RouteClass(depth=1.0, share=0.25), RouteClass([0, 1], share=0.75)]
    phases = PhasesConfig([PhaseConfig(0.8, classes=classes), PhaseConfig(skip_ratio=0.0)])
    shown = "[{share: 0.8, classes: [{depth: 1, share: 0.25}, {stages: [0, 1], share: 0.75}]}, {skip_ratio: 0}]"
    assert phases_text(phases) == shown


@pytest.fixture
def small_costs(write: Write) -> str:
    """Two recipes, of which one leaves out more than the four stages of the cluster let it, and dense models."""
    run = {"arm": "a", "learning_rate": 1e-3, "quarter": 3.0, "half": 4.0}
    half = [{"share": 0.5, "skip_ratio": 0.0, "stages": 0.5}, {"skip_ratio": 0.0}]
    recipes: list[dict[str, Any]] = [
        {"name": "full", "what": "all", "phases": [{"skip_ratio": 0.0}], "left_out": [0.0]},
        {"name": "half", "what": "half", "phases": half, "left_out": [0.5, 0.0], "new_layers": "copy"},
        {"name": "less", "what": "half", "phases": half, "left_out": [0.2, 0.0], "new_layers": "init"},
        {"name": "dense", "what": "dense", "depth": 2},
        {"name": "longer", "what": "dense", "depth": 2, "tokens": 3e6},
    ]
    losses = {"full": (2.0, 2.1), "half": (1.95, 2.0), "less": (1.0, 1.0), "dense": (2.3, 2.4), "longer": (1.9, 2.0)}
    for recipe in recipes:
        recipe["runs"] = [run | {"seed": seed, "loss": loss} for seed, loss in enumerate(losses[recipe["name"]])]
    for each in recipes[-1]["runs"]:  # not evaluated with stages left out
        del each["quarter"], each["half"]
    content = {
        "format": "skippipe.costs/1", "source": "a test", "seeds_differ_by": 0.01,
        "regimes": [{
            "name": "four layers", "layers": 4, "hidden": 64, "tokens": 1e6, "iteration_tokens": 1000,
            "tokens_per_parameter": 20, "recipes": recipes,
        }],
    }  # fmt: skip
    write("costs.json", content)
    return "costs=costs.json"


def test_a_proposal(run: Run, tmp_path: Path, small_costs: str) -> None:
    arguments = ("propose", "cluster=local4", "schedule.stages=4", small_costs, "depth=4", "planner.work_limit=20000")
    result = run(*arguments, "output=proposal.json")
    assert result.status == 0, result.err
    found = json.loads((tmp_path / "proposal.json").read_text())["regimes"][0]
    assert found["chosen"] == "half"
    by_name = {recipe["name"]: recipe for recipe in found["recipes"]}
    assert by_name["less"]["timing"] is None, "it would leave out more than was measured"
    half, full, dense, longer = (by_name[name] for name in ("half", "full", "dense", "longer"))
    assert half["run_s"] == pytest.approx(1000 * half["timing"]["iteration_s"] + half["timing"]["changes_s"])
    assert half["timing"]["changes_s"] > 0, "the copies"
    assert half["run_s"] < full["run_s"]
    assert dense["timing"]["iteration_s"] < full["timing"]["iteration_s"]
    assert (longer["run_s"], longer["reaches_full"]) == (pytest.approx(3 * dense["run_s"]), True)
    assert (longer["quarter_left_out"], longer["half_left_out"]) == (None, None)
    for expected in (
        "train.new_layers=copy train.decay=linear", "Not compared: less", "2 layers, ", "2 layers, 3 M tokens, ",
        "Undecided: dense takes", "Rules bent: without stages 2-3",
        "Measured for 4 layers, 1 M tokens (about 20 a parameter)", "not evaluated",
        "left out later: 3.00, 4.00 (full pipeline: 3.00, 4.00)",
    ):  # fmt: skip
        assert expected in result.out
    # The proposed settings are settings, and take the time that was said.
    (setting,) = [each for each in half["timing"]["settings"] if each.startswith("phases.list")]
    planned = run("plan", "cluster=local4", "schedule.stages=4", "planner.work_limit=20000", setting)
    assert f"iteration time {half['timing']['iteration_s']:.3f} s" in planned.out


def test_a_depth_that_was_not_measured(run: Run, small_costs: str) -> None:
    result = run("propose", "cluster=local4", small_costs, "depth=5", "planner.work_limit=5000")
    assert result.status == 2
    assert "depth: expected a measured depth: 4, got 5" in result.err


def test_costs_that_are_none(run: Run, write: Write) -> None:
    contents: list[Any] = [{"format": "skippipe.costs/2"}, {"format": "skippipe.costs/1"}, []]
    for content in contents:
        write("costs.json", content)
        assert run("propose", "cluster=local4", "costs=costs.json").status == 2
