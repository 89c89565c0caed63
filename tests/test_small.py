"""The small instances whose optima CP-SAT has proved: nothing of ours may contradict a proof."""

import dataclasses
import json

import pytest
from scripts import load_script

from skippipe.bench import Case, contradictions, load_cases, measure_planner, small_folder, violations
from skippipe.config import PlannerConfig

CASES = load_cases("set", small_folder())
PLANNER = PlannerConfig(work_limit=20_000)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.known and case.known.proved])
def test_a_plan_never_contradicts_a_proof(name: str) -> None:
    case = CASES[name]
    assert case.known is not None
    row, plan = measure_planner(case, "skippipe", PLANNER)
    assert contradictions(row, case.known) == []
    if case.known.iteration_s is None:
        assert plan is None
        return
    assert plan is not None, row.note
    assert violations(plan, case, None) == []
    if row.proved:
        assert row.iteration_s == pytest.approx(case.known.iteration_s, abs=1e-8)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.known and case.known.proved])
def test_conflict_based_search_proves_what_is_proved(name: str) -> None:
    """The same optimum, or that there is no plan, by an independent method."""
    case = CASES[name]
    assert case.known is not None
    row, _ = measure_planner(case, "skippipe", PlannerConfig(method="cbs", work_limit=5_000_000))
    assert row.proved, row
    assert contradictions(row, case.known) == []
    assert row.iteration_s == pytest.approx(case.known.iteration_s, abs=1e-8)


@pytest.mark.parametrize("factor", [1.02, 1.2, 2.0])
def test_a_factor_on_the_bound_is_kept(factor: float) -> None:
    planner = PlannerConfig(method="cbs", suboptimality=factor, work_limit=5_000_000)
    for name, case in CASES.items():
        if not name.startswith(("held-3s", "reference-3s")) or case.known is None or case.known.iteration_s is None:
            continue
        row, plan = measure_planner(case, "skippipe", planner)
        assert plan is not None
        assert row.iteration_s is not None
        assert row.lower_bound_s is not None
        assert violations(plan, case, None) == []
        assert contradictions(row, case.known) == []
        assert row.iteration_s <= factor * row.lower_bound_s * (1 + 1e-9)


def test_the_instances_are_those_that_the_script_draws() -> None:
    small = load_script("small")
    assert sorted(CASES) == sorted(spec.name for spec in small.SPECS)
    for spec in small.SPECS:
        cluster, question = small.draw(spec)
        found = [json.loads((small_folder() / f"{spec.name}{end}").read_text()) for end in (".cluster.json", ".json")]
        assert found[0] == cluster, spec.name
        assert question.items() <= found[1].items(), spec.name


def test_the_set_is_large_and_of_both_rule_sets() -> None:
    proved = [case for case in CASES.values() if case.known is not None and case.known.proved]
    feasible = [case for case in proved if case.known is not None and case.known.iteration_s is not None]
    assert len(feasible) >= 25
    assert len(feasible) < len(proved)
    assert {(case.schedule.tc1, case.schedule.waves) for case in feasible} == {("held", 1), ("routes", 2)}
    for case in CASES.values():
        assert 3 <= len(case.problem.stages) <= 5
        assert 6 <= len(case.problem.cluster) <= 15
        assert 4 <= sum(case.problem.microbatches) <= 18


def reached(name: str) -> tuple[Case, float]:
    """An instance with a proved optimum, and that."""
    case = CASES[name]
    assert case.known is not None
    assert case.known.iteration_s is not None
    return case, case.known.iteration_s


def test_what_contradicts_a_proof_is_noticed() -> None:
    case, best_s = reached("held-3s-06n-04m")
    row, _ = measure_planner(case, "skippipe", PLANNER)
    assert row.iteration_s is not None
    assert contradictions(row, case.known) == []
    for change in (
        {"iteration_s": best_s - 0.001},
        {"lower_bound_s": best_s + 0.001},
        {"iteration_s": None, "lower_bound_s": None, "proved": True},
        {"iteration_s": best_s + 0.001, "lower_bound_s": best_s + 0.001},
    ):
        assert len(contradictions(dataclasses.replace(row, **change), case.known)) == 1, change
    nothing = CASES["held-4s-08n-06m-impossible"].known
    assert contradictions(row, nothing) != []
