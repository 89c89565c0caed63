"""Profiles and classes: plans that keep them, exact optimum and feasibility of tiny instances, settings."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from conftest import Run
from effort import cases
from reference.independent import verdict
from reference.instances import Json, extended, random_instance
from reference.optimum import optimum, route_sets
from test_planner import check_plan_of, nanoseconds_at_most, problem_of, solve, tiny_instance

from skippipe import Constraints, Plan
from skippipe.config import STRATEGIES, RouteClass
from skippipe.errors import DeadlockError, ImpossibleError, InputError, NoPlanError
from skippipe.planning import class_routes


def kind(instance: Json) -> str:
    """Which of the two the instance has."""
    return "classes" if instance["constraints"].get("classes") else "profile"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plans_of_random_instances_keep_profiles_and_classes(strategy: str) -> None:
    results: Counter[str] = Counter()
    tried = cases(120, 60)
    for seed in range(tried):
        rng = Random(seed)
        instance = extended(rng, random_instance(rng, "middle" if seed % 20 == 0 else "small"))
        try:
            found, data = solve(instance, strategy, seed=seed, work_limit=10_000)
        except (ImpossibleError, NoPlanError, DeadlockError) as error:
            results[type(error).__name__] += 1
            continue
        assert verdict(found.to_json()) == [], seed
        check_plan_of(instance, strategy, found, data)
        results[kind(instance)] += 1
    assert min(results["profile"], results["classes"]) >= tried / 6, results


def test_bounds_and_plans_against_the_exact_optimum() -> None:
    results: Counter[str] = Counter()
    for seed in range(cases(140, 70)):
        rng = Random(seed)
        instance = extended(rng, tiny_instance(rng))
        best = optimum(instance)
        if best is None:
            for strategy in ("random-skip", "skippipe-no-tc2", "skippipe"):
                with pytest.raises((ImpossibleError, NoPlanError)):
                    solve(instance, strategy)
            results["none"] += 1
            continue
        assert nanoseconds_at_most(problem_of(instance).lower_bound_s(), best[0]), seed
        found, data = solve(instance, "skippipe", seed=seed)
        said = data["predicted"]
        iteration = round(said["iteration_s"] * 1e9)
        assert found.check() == []
        assert nanoseconds_at_most(said["lower_bound_s"], best[0]), (seed, said, best)
        assert iteration >= best[0], seed
        assert not data["solver"]["optimal"] or iteration == best[0], seed
        results[f"{kind(instance)}, {'optimal' if iteration == best[0] else 'longer'}"] += 1
    for one in ("profile", "classes"):
        assert results[f"{one}, optimal"] > 2 * results[f"{one}, longer"], results


def test_impossible_is_said_only_where_no_routes_exist() -> None:
    """Little room for routes and narrow jumps; the exhaustive search decides, and the rule is named."""
    results: Counter[str] = Counter()
    for seed in range(200):
        rng = Random(seed)
        instance = tiny_instance(rng)
        instance["constraints"].update(max_stage_jump=rng.choice([None, 1, 1]), tc1=rng.choice(["held", "routes"]))
        for node in instance["cluster"]["nodes"]:
            node["memory"] = rng.choice([1, 1, 1, 2])
        instance = extended(rng, instance)
        legal = next(route_sets(instance), None)
        try:
            solve(instance, "skippipe", seed=seed)
        except ImpossibleError as error:
            assert legal is None, seed
            results[f"{kind(instance)}: {str(error).split(' cannot hold')[0].split()[-1]}"] += 1
        except NoPlanError:
            assert legal is None, seed
            results["none found"] += 1
        else:
            assert legal is not None, seed
            results["plan"] += 1
    named = {"profile: profile", "profile: TC1", "classes: TC1", "classes: max_stage_jump"}
    assert named <= set(results), results
    assert results["none found"] < 5, results
    assert results["plan"] > 60, results


def test_equal_weights_make_the_plans_of_cc3() -> None:
    for seed in range(40):
        instance = random_instance(Random(seed))
        equal = {
            **instance,
            "constraints": {**instance["constraints"], "profile": [0.7] * (len(instance["stages"]) - 1)},
        }
        if not instance["constraints"]["cc1"]:
            continue  # conflict-based search, which takes no profile there, finds other plans and bounds
        texts = []
        for question in (instance, equal):
            try:
                _, data = solve(question, "skippipe", seed=seed, work_limit=4_000)
            except (ImpossibleError, NoPlanError) as error:
                texts.append(type(error).__name__)
                continue
            texts.append(json.dumps([data["tasks"], data["predicted"]]))
        assert texts[0] == texts[1], seed


def test_conflict_based_search_proves_classes_and_refuses_what_it_cannot_take() -> None:
    proved = 0
    for seed in range(40):
        rng = Random(seed)
        instance = extended(rng, tiny_instance(rng))
        rules = instance["constraints"]
        if not rules["tc2"]:
            continue
        if kind(instance) == "profile" and rules["cc3"] and not rules["cc1"]:
            try:
                with pytest.raises(InputError, match=r"planner\.method: expected auto"):
                    solve(instance, "skippipe", method="cbs", work_limit=None)
            except ImpossibleError:
                assert next(route_sets(instance), None) is None
            continue
        best = optimum(instance)
        if best is None:
            continue
        _, data = solve(instance, "skippipe", method="cbs", work_limit=None)
        assert round(data["predicted"]["iteration_s"] * 1e9) == best[0], seed
        proved += kind(instance) == "classes"
    assert proved > 5


def test_the_allocation_is_searched_with_a_profile_or_classes(run: Run, tmp_path: Path) -> None:
    deep = "schedule.profile=[4,2,1]"
    two = "schedule.classes=[{stages: [0,1,2,3], share: 0.33}, {stages: [0,1], share: 0.67}]"
    for extension, strategy in ((deep, "skippipe"), (two, "skippipe"), (two, "random-skip"), (two, "full")):
        file = tmp_path / "plan.json"
        settings = ["cluster=synthetic", "cluster.nodes=12", "cluster.regions=3", "schedule.stages=4", extension]
        assert (
            run("plan", *settings, f"schedule.strategy={strategy}", "planner.work_limit=40000", f"output={file}").status
            == 0
        )
        assert verdict(file.read_text()) == []
        plan = json.loads(file.read_text())
        visits = Counter(stage for one in plan["microbatches"] for stage in one["stages"])
        routes = len(plan["microbatches"])
        if strategy == "full":
            assert visits[3] == routes
        elif extension is two:
            assert visits[3] == visits[2] == round(routes * 0.33)
            assert visits[1] == routes
        else:
            assert visits[1] > visits[2] > visits[3] > 0


def test_shares_become_counts_by_largest_remainder() -> None:
    def counts(shares: list[float], routes: int) -> list[int]:
        return [count for _, count in class_routes([RouteClass([0], share=share) for share in shares], routes, [0, 1])]

    assert counts([0.33, 0.67], 30) == [10, 20]
    assert counts([1 / 3, 1 / 3, 1 / 3], 10) == [4, 3, 3]
    assert counts([0.5, 0.3, 0.2], 7) == [4, 2, 1]
    assert class_routes([RouteClass([0, 1], routes=4), RouteClass([0], routes=2)], 6, [0, 1]) == [([0, 1], 4), ([0], 2)]


TWO_CLASSES = "schedule.classes=[{stages: [0,1], routes: 20}, {stages: [0], routes: 10}]"
REFUSED = [
    ("schedule.profile=[1,2]", "schedule.profile: expected one weight for each of the 5 stages but stage 0"),
    ("schedule.profile=[1,2,3,4,-1]", "schedule.profile[4]: expected a finite number of at least 0, got -1"),
    (f"schedule.profile=[1,1,1,1,1] {TWO_CLASSES}", "schedule.classes: expected one of the two, or none"),
    ("schedule.classes=[]", "schedule.classes: expected at least one class, or null, got an empty list"),
    ("schedule.classes=[{stages: [0,1], routes: 7}]", "schedule.classes: expected 30 routes in all"),
    ("schedule.classes=[{stages: [0,1]}]", "schedule.classes[0]: expected either routes or share"),
    ("schedule.classes=[{stages: [0,1], share: 0.5}]", "schedule.classes: expected shares with a sum of 1"),
    (
        "schedule.classes=[{stages: [0], share: 0.995}, {stages: [0,1], share: 0.005}]",
        "schedule.classes[1].share: expected a share that gives the class at least one of the 30 routes, got 0.005",
    ),
    (
        "schedule.classes=[{stages: [0], share: 0.5}, {stages: [0,1], routes: 15}]",
        "schedule.classes: expected routes for every class, or shares",
    ),
    ("schedule.classes=[{stages: [1,2], routes: 30}]", "schedule.classes[0].stages: expected stage 0 among them"),
    (
        "schedule.classes=[{stages: [0,6], routes: 30}]",
        "schedule.classes[0].stages[1]: expected a number in 0..5, got 6",
    ),
    (
        "schedule.classes=[{stages: [0,2,2], routes: 30}]",
        "schedule.classes[0].stages[2]: expected a stage that is named",
    ),
    (
        f"schedule.skip_ratio=0.5 {TWO_CLASSES}",
        "schedule.skip_ratio: expected 0.722222, what schedule.classes leave out",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_be_used_is_refused(refused: Callable[..., str], settings: str, message: str) -> None:
    words = settings.replace(" schedule.", "|schedule.").split("|")
    assert message in refused("plan", *words)


def test_files_state_both_and_null_where_they_are_not_used() -> None:
    for seed in range(20):
        rng = Random(seed)
        for instance in (random_instance(rng), extended(rng, random_instance(rng))):
            try:
                found, data = solve(instance, "random-skip", work_limit=1_000)
            except (ImpossibleError, NoPlanError, DeadlockError):
                continue
            for name in ("profile", "classes"):
                assert data["constraints"][name] == instance["constraints"].get(name)
            assert Plan.from_json(found.to_json()).problem() == found.problem()
            if data["constraints"]["classes"]:
                data["constraints"]["classes"][0]["routes"] += 1
                assert any(text.startswith("classes: ") for text in Plan.from_json(json.dumps(data)).check())
                data["constraints"]["profile"] = [1.0] * (len(data["stages"]) - 1)
                with pytest.raises(InputError, match=r"constraints\.classes: expected one of the two"):
                    Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1e-9])
def test_weights_are_finite_and_not_negative(weight: float) -> None:
    instance = random_instance(Random(3), "middle")
    instance["constraints"]["profile"] = [1.0] * (len(instance["stages"]) - 2) + [weight]
    with pytest.raises(InputError, match=r"constraints\.profile\[\d\]: expected a finite number of at least 0"):
        problem_of(instance)


def test_constraints_read_as_they_were_given() -> None:
    rules = Constraints(classes=[([0, 1], 3), ([0], 1)])
    assert (rules.classes, rules.profile) == ([([0, 1], 3), ([0], 1)], None)
    assert "classes=[([0, 1], 3), ([0], 1)]" in repr(rules)
    assert Constraints(profile=[2, 1]).profile == [2.0, 1.0]
