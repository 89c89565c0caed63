"""Properties of every strategy's plans, and the exact optimum of tiny instances."""

import itertools
import json
import os
import re
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import PUBLISHED
from effort import cases
from reference.checker import findings
from reference.independent import Question, verdict
from reference.instances import (
    Json,
    legal_routes,
    on_shared_processors,
    random_cluster,
    random_instance,
    random_rules,
    random_skip_ratio,
    route_owners,
)
from reference.optimum import best_order, optimum, route_sets
from reference.plans import times_of
from reference.simulator import processors_of, run_dispatch, run_order

from skippipe import Cluster, Constraints, Plan, Problem, simulate
from skippipe._scheduler import PlanRequest, plan
from skippipe.config import STRATEGIES
from skippipe.errors import DeadlockError, ImpossibleError, InputError, NoPlanError, SchedulerError

DISPATCHED = ("full", "random-skip", "skippipe-no-tc2")
WORK = 20_000
CYCLE = re.compile(r"\d+[FLB]\d+@\d+ waits for \d+[FLB]\d+@\d+")


def problem_of(instance: Json) -> Problem:
    """The question that the instance asks."""
    rules = dict(instance["constraints"])
    if rules.get("classes"):
        rules["classes"] = [(one["stages"], one["routes"]) for one in rules["classes"]]
    return Problem(
        Cluster.from_json(json.dumps(instance["cluster"])),
        instance["stages"],
        instance["counts"],
        skip_ratio=instance["skip_ratio"],
        constraints=Constraints(**rules),
        absent_stages=instance["absent_stages"],
    )


def asked(instance: Json, strategy: str) -> Json:
    """The instance as the strategy has to solve it: the full pipelines skip nothing."""
    question = dict(instance, constraints=dict(instance["constraints"]))
    if strategy.startswith("full"):
        question["skip_ratio"] = 0.0
        question["constraints"].update(profile=None, classes=None)
    if strategy == "full":
        question["constraints"].update(tc1="held", waves=1)
    return question


def solve(instance: Json, strategy: str, **options: Any) -> tuple[Plan, Json]:
    """A plan within fixed work, as an object and as JSON."""
    options = {"time_limit_s": None, "work_limit": WORK, **options}
    found = plan(PlanRequest(problem_of(instance), strategy, **options))
    return found, json.loads(found.to_json())


def plannable(seed: int, size: str = "small") -> Json:
    """A random instance whose sources differ in their counts."""
    return random_instance(Random(seed), size)


def tiny_instance(rng: Random) -> Json:
    """3 or 4 nodes in 2 or 3 stages, at most 4 microbatches: small enough for every order."""
    n = rng.randint(3, 4)
    s_count = rng.randint(2, 3)
    stages: list[list[int]] = [[s] for s in range(s_count)]
    for node in range(s_count, n):
        rng.choice(stages).append(node)
    cluster, rules = random_cluster(rng, n, s_count), random_rules(rng)
    rules["waves"] = rng.choice([1, 1, 2])
    counts = [rng.randint(0, 3) for _ in stages[0]]
    while not 1 <= sum(counts) <= 3:
        counts = [rng.randint(0, 3) for _ in stages[0]]
    return {
        "cluster": cluster,
        "stages": stages,
        "absent_stages": [],
        "constraints": rules,
        "skip_ratio": random_skip_ratio(rng, s_count),
        "counts": counts,
    }


def busy_links(rng: Random) -> Json:
    """A tiny instance in which messages take as long as tasks or longer, so that several meet on a link."""
    instance = tiny_instance(rng)
    cluster, rules = instance["cluster"], instance["constraints"]
    n = len(cluster["nodes"])
    for name in ("transfer_s", "region_of", "overhead_s", "gradient_bytes"):
        cluster.pop(name, None)
    cluster["latency_s"] = [[rng.choice([0.0, 0.1, 0.5]) for _ in range(n)] for _ in range(n)]
    cluster["bandwidth"] = [[1 / rng.choice([0.5, 1.0, 1.5, 2.0]) for _ in range(n)] for _ in range(n)]
    cluster["activation_bytes"] = 1.0
    for node in cluster["nodes"]:
        node.update({name: rng.choice([0.1, 0.3, 0.6, 1.0]) for name in ("forward_s", "backward_s", "loss_s")})
        node["memory"] = rng.choice([2, 3])
    rules.update(tc2=True, cc1=True, cc3=True, waves=1, max_stage_jump=None)
    sources = len(instance["stages"][0])
    return {**instance, "counts": [3] if sources == 1 else [2] + [1] * (sources - 1)}


# ----------------------------------------------------------------------------- every strategy


def check_plan_of(instance: Json, strategy: str, found: Plan, data: Json) -> None:
    """What must be true of any plan, whatever its quality."""
    question = asked(instance, strategy)
    assert found.check() == []
    assert data["strategy"] == strategy
    assert data["stages"] == instance["stages"]
    assert data["absent_stages"] == instance["absent_stages"]
    assert data["skip_ratio"] == pytest.approx(question["skip_ratio"], abs=1e-12)
    for name in ("cc1", "cc2", "cc3", "max_swaps", "max_stage_jump", "tc1", "waves"):
        assert data["constraints"][name] == question["constraints"][name], name
    for name in ("profile", "classes"):
        assert data["constraints"][name] == question["constraints"].get(name), name
    counts = Counter(b["source"] for b in data["microbatches"])
    assert [counts[x] for x in instance["stages"][0]] == instance["counts"]
    assert Plan.from_json(found.to_json()).to_json() == found.to_json()

    question["constraints"] = data["constraints"]
    orders: dict[int, list[tuple[int, str, int]]] = {}
    processors = processors_of(instance["cluster"])
    for t in data["tasks"]:
        orders.setdefault(processors[t["node"]], []).append((t["microbatch"], t["kind"], t["hop"]))
    earliest, times = run_order(question, data["microbatches"], orders), times_of(data)
    assert earliest.stuck == []
    assert all(times[key][0] >= start for key, (start, _) in earliest.times.items())
    assert times_of(json.loads(simulate(found).to_json())) == earliest.times
    if strategy in DISPATCHED:
        assert times == run_dispatch(question, data["microbatches"]).times
    said = data["predicted"]
    assert round(said["iteration_s"] * 1e9) == earliest.iteration(instance["stages"])
    assert said["lower_bound_s"] <= said["iteration_s"] * (1 + 1e-9)
    if said["lower_bound_s"] > 0:
        gap = (said["iteration_s"] - said["lower_bound_s"]) / said["lower_bound_s"]
        assert said["gap"] == pytest.approx(gap, abs=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plans_of_random_instances_keep_every_rule(strategy: str) -> None:
    results: Counter[str] = Counter()
    tried = cases(200, 80)
    for seed in range(tried):
        instance = plannable(seed, "middle" if seed % 20 == 0 else "small")
        try:
            found, data = solve(instance, strategy, seed=seed)
        except (ImpossibleError, NoPlanError, DeadlockError) as error:
            results[type(error).__name__] += 1
            continue
        assert verdict(found.to_json()) == [], seed
        check_plan_of(instance, strategy, found, data)
        results["plan"] += 1
    assert results["plan"] >= tried / 2, results


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plans_for_shared_processors_keep_every_rule(strategy: str) -> None:
    results: Counter[str] = Counter()
    tried = cases(120, 60)
    for seed in range(tried):
        instance = on_shared_processors(
            Random(f"shared {seed}"), plannable(seed, "middle" if seed % 20 == 0 else "small")
        )
        try:
            found, data = solve(instance, strategy, seed=seed, work_limit=WORK // 4)
        except (ImpossibleError, NoPlanError, DeadlockError) as error:
            results[type(error).__name__] += 1
            continue
        assert findings(found.to_json()) == [], seed
        check_plan_of(instance, strategy, found, data)
        results["plan"] += 1
    assert results["plan"] >= tried / 2, results


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_is_found_where_legal_routes_are_drawn(strategy: str) -> None:
    """The planner is at least as good as a few random draws; a dispatch rule that deadlocks is an error."""
    results: Counter[str] = Counter()
    tried = cases(300, 120)
    for seed in (*range(tried), 504, 1117, 1342, 1938):
        instance = plannable(seed)
        question = asked(instance, strategy)
        if legal_routes(Random(seed), question, tries=10) is None:
            continue
        try:
            solve(instance, strategy, seed=seed)
        except DeadlockError as error:
            named = CYCLE.search(str(error)) is not None
            dispatched = strategy in DISPATCHED or not question["constraints"]["tc2"]
            results["deadlock" if named and dispatched else f"wrong deadlock {seed}: {error}"] += 1
        else:
            results["plan"] += 1
    assert results["plan"] > tried * 2 / 3, results
    assert set(results) <= {"plan", "deadlock"}, results
    assert results["deadlock"] < 4 + tried / 20, results


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plans_are_the_same_whatever_the_number_of_threads(strategy: str) -> None:
    compared = 0
    for seed in range(100, 118):
        instance = plannable(seed, "middle" if seed % 6 == 0 else "small")
        texts = []
        for threads in (1, 2, 4, 1):
            try:
                _, data = solve(instance, strategy, seed=seed, threads=threads, work_limit=5_000)
            except SchedulerError as error:
                texts.append(f"{type(error).__name__}: {error}")
                continue
            del data["solver"]
            texts.append(json.dumps(data))
            compared += 1
        assert len(set(texts)) == 1, seed
    assert compared >= 24


def test_another_seed_draws_other_routes() -> None:
    draws = (plannable(seed, "middle") for seed in itertools.count())
    many = (i for i in draws if len(i["stages"]) > 4 and 0.2 < i["skip_ratio"] < 0.6)
    instance = next(i for i in many if i["constraints"]["max_stage_jump"] is None)
    routes = {json.dumps(solve(instance, "random-skip", seed=seed)[1]["microbatches"]) for seed in range(5)}
    assert len(routes) > 1


# ------------------------------------------------------------------------- against the optimum


@pytest.mark.parametrize("block", range(6))
def test_bounds_and_plans_against_the_exact_optimum(block: int) -> None:
    """The last blocks have nodes that share processors."""
    results: Counter[str] = Counter()
    for seed in range(block * 60, block * 60 + cases(60, 24)):
        instance = tiny_instance(Random(seed))
        if block >= 4:
            instance = on_shared_processors(Random(f"shared {seed}"), instance)
        best = optimum(instance)
        if best is None:
            for strategy in ("random-skip", "skippipe-no-tc2", "skippipe"):
                with pytest.raises((ImpossibleError, NoPlanError)):
                    solve(instance, strategy)
            results["impossible"] += 1
            continue
        bound = problem_of(instance).lower_bound_s()
        assert nanoseconds_at_most(bound, best[0]), (seed, bound, best)
        found, data = solve(instance, "skippipe", seed=seed)
        assert found.check() == []
        said = data["predicted"]
        assert nanoseconds_at_most(said["lower_bound_s"], best[0]), (seed, said, best)
        assert round(said["iteration_s"] * 1e9) >= best[0], seed
        assert not data["solver"]["optimal"] or round(said["iteration_s"] * 1e9) == best[0], seed
        results["optimal" if round(said["iteration_s"] * 1e9) == best[0] else "longer"] += 1
        for strategy in ("random-skip", "skippipe-no-tc2"):
            try:
                _, data = solve(instance, strategy, seed=seed)
            except (NoPlanError, DeadlockError):
                continue
            ordered = best_order(instance, data["microbatches"])
            assert ordered is not None
            assert nanoseconds_at_most(data["predicted"]["lower_bound_s"], ordered), (seed, strategy)
            assert round(data["predicted"]["iteration_s"] * 1e9) >= ordered
    assert results["optimal"] > results["longer"] / 4, results


@pytest.mark.parametrize("contention", ["link", "uplink"])
def test_plans_that_know_contention_against_the_exact_optimum(contention: str) -> None:
    results: Counter[str] = Counter()
    for seed in range(2000, 2040):
        instance = busy_links(Random(seed))
        if seed % 5 == 0:
            instance = on_shared_processors(Random(f"shared {seed}"), instance)
        free = optimum(instance)
        instance["cluster"]["contention"] = contention
        best = optimum(instance)
        if free is None or best is None:
            assert free is best
            continue
        found, data = solve(instance, "skippipe", seed=seed)
        iteration_ns = round(data["predicted"]["iteration_s"] * 1e9)
        assert found.check() == []
        assert findings(json.dumps(data)) == []
        assert found.assumptions.contention == data["cluster"]["contention"] == contention
        # Bounds are those of messages that do not disturb each other.
        assert nanoseconds_at_most(data["predicted"]["lower_bound_s"], free[0]), seed
        assert free[0] <= best[0] <= iteration_ns, seed
        assert not data["solver"]["optimal"] or iteration_ns == best[0], seed
        if best[0] > free[0]:
            results["optimal" if iteration_ns == best[0] else "longer"] += 1
    assert results["optimal"] >= 9 * results["longer"], results
    assert results["optimal"] > 3, results


@pytest.mark.parametrize("seed", [11_059, 11_841, 12_770])
def test_bound_of_skippipe_holds_for_all_routes_even_without_tc2(seed: int) -> None:
    instance = tiny_instance(Random(seed))
    assert not instance["constraints"]["tc2"]
    best = optimum(instance)
    assert best is not None
    _, data = solve(instance, "skippipe", seed=seed)
    if data["strategy"] == "skippipe":
        assert nanoseconds_at_most(data["predicted"]["lower_bound_s"], best[0])


def nanoseconds_at_most(bound_s: float, best_ns: int) -> bool:
    """Whether a lower bound in seconds is not above a reachable time."""
    return bound_s * 1e9 <= best_ns * (1 + 1e-9) + 0.5


@pytest.mark.parametrize("strategy", ["full", "full-routed"])
def test_bounds_of_full_pipelines_against_the_exact_optimum(strategy: str) -> None:
    compared, tried = 0, cases(60, 30)
    for seed in range(1000, 1000 + tried):
        instance = tiny_instance(Random(seed))
        instance["counts"] = [min(count, 2) for count in instance["counts"]]
        question = asked(instance, strategy)
        best = optimum(question)
        try:
            found, data = solve(instance, strategy, seed=seed)
        except (ImpossibleError, NoPlanError):
            assert best is None or strategy == "full", seed
            continue
        assert found.check() == []
        assert best is not None, seed
        assert nanoseconds_at_most(data["predicted"]["lower_bound_s"], best[0]), (seed, data["predicted"], best)
        assert round(data["predicted"]["iteration_s"] * 1e9) >= best[0], seed
        compared += 1
    assert compared > tried / 2


def test_impossible_is_said_only_where_no_routes_exist() -> None:
    """Narrow rules: few jumps, no swaps, little room for routes; the exhaustive search decides."""
    results: Counter[str] = Counter()
    tried = cases(200, 100)
    for seed in range(2000, 2000 + tried):
        rng = Random(seed)
        instance = tiny_instance(rng)
        instance["constraints"].update(max_stage_jump=rng.choice([None, 1, 1]), tc1=rng.choice(["held", "routes"]))
        for node in instance["cluster"]["nodes"]:
            node["memory"] = rng.choice([1, 1, 1, 2])
        legal = next(route_sets(instance), None)
        for strategy in ("random-skip", "skippipe-no-tc2", "skippipe"):
            try:
                solve(instance, strategy, seed=seed)
            except ImpossibleError:
                assert legal is None, (seed, strategy)
                results["impossible"] += 1
            except DeadlockError:
                assert strategy != "skippipe"
            except NoPlanError:
                assert legal is None or strategy == "random-skip", (seed, strategy)
                results["none found"] += 1
            else:
                assert legal is not None, (seed, strategy)
                results["plan"] += 1
    assert results["impossible"] > tried / 20, results
    assert results["plan"] > tried / 2, results


def test_more_microbatches_than_routes_of_memory_are_impossible() -> None:
    instance = tiny_instance(Random(5))
    instance["constraints"].update(tc1="routes", waves=1, cc1=True)
    source = instance["stages"][0][0]
    instance["cluster"]["nodes"][source]["memory"] = 1
    instance["counts"] = [2] + [0] * (len(instance["stages"][0]) - 1)
    with pytest.raises(ImpossibleError, match=r"(?i)memory|tc1"):
        solve(instance, "skippipe")


# --------------------------------------------------------------------------------- long calls


def wide_problem(per_stage: int, stage_count: int, sources: int, regions: int) -> Problem:
    """Many equal microbatches over random links between regions: not solved to its proof within seconds."""
    rng = Random(3)
    n = sources + per_stage * (stage_count - 1)
    nodes = [
        {"name": f"n{i}", "forward_s": rng.uniform(0.3, 0.6), "backward_s": rng.uniform(0.5, 0.9)} for i in range(n)
    ]
    for node in nodes:
        node |= {"loss_s": 0.1, "memory": 3}
    cluster = {
        "format": "skippipe.cluster/1",
        "nodes": nodes,
        "region_of": [i % regions for i in range(n)],
        "transfer_s": [[rng.uniform(0.1, 3.0) for _ in range(regions)] for _ in range(regions)],
        "activation_bytes": 1,
    }
    firsts = range(sources, n, per_stage)
    stages = [list(range(sources)), *[list(range(first, first + per_stage)) for first in firsts]]
    return Problem(Cluster.from_json(json.dumps(cluster)), stages, [6] * sources, skip_ratio=0.4)


def long_problem() -> Problem:
    """30 nodes in 7 stages, 36 microbatches."""
    return wide_problem(per_stage=4, stage_count=7, sources=6, regions=30)


def large_problem() -> Problem:
    """1,020 nodes in 20 stages, 420 microbatches."""
    return wide_problem(per_stage=50, stage_count=20, sources=70, regions=12)


SEARCHING = [name for name in STRATEGIES if name != "random-skip"]


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background or others have changed that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("strategy", SEARCHING)
@pytest.mark.parametrize("size", ["long", "large"])
def test_interrupt_ends_a_long_call_at_once(size: str, strategy: str) -> None:
    problem = long_problem() if size == "long" else large_problem()
    if strategy == "full" and size == "long":
        pytest.skip("ends of its own accord")
    waits, kept = [], 0
    for after in (0.05, 0.2, 0.4):
        sent: list[float] = []

        def interrupt(sent: list[float] = sent) -> None:
            sent.append(time.process_time())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(after, interrupt)
        timer.start()
        try:
            try:
                found = plan(PlanRequest(problem, strategy, time_limit_s=20.0))
            except KeyboardInterrupt:
                found = None  # nothing had been found yet
            waits.append(time.process_time() - sent[0])  # of the processor: other work does not count
            if found is not None:
                assert found.solver.interrupted
                assert found.check() == []
                kept += 1
        finally:
            timer.join()
    assert statistics.median(waits) < 0.15, waits
    assert max(waits) < 0.5, waits
    assert kept or size == "large"


def test_long_searches_give_the_same_plan_whatever_the_number_of_threads() -> None:
    """Long enough for every kind of search to have had its turn."""
    found = [
        plan(PlanRequest(long_problem(), time_limit_s=None, work_limit=6_000_000, threads=threads))
        for threads in (1, 3)
    ]
    first, second = (json.loads(each.to_json()) for each in found)
    assert {**first, "solver": None} == {**second, "solver": None}


def test_other_threads_run_while_planning() -> None:
    problem, ticks = long_problem(), [0]
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = ticks[0]
        plan(PlanRequest(problem, time_limit_s=1.0))
        during = ticks[0] - before
    finally:
        done.set()
        thread.join()
    assert during > 100


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("size", "limit"), [("long", 0.2), ("large", 1.0)])
def test_time_limit_is_kept(size: str, limit: float, strategy: str) -> None:
    problem = long_problem() if size == "long" else large_problem()
    took = []
    for seed in range(3):
        begin = time.process_time()
        try:
            found = plan(PlanRequest(problem, strategy, time_limit_s=limit, seed=seed))
        except (NoPlanError, DeadlockError):
            found = None
        took.append(time.process_time() - begin)
        assert found is None or found.check() == []
        if took[-1] < limit + 0.2:
            break
    assert min(took) < limit + 0.2, took


def test_progress_tells_of_falling_incumbents() -> None:
    problem = long_problem()
    events: list[tuple[float, float, float, int]] = []
    found = plan(PlanRequest(problem, time_limit_s=1.0), progress=lambda *event: events.append(event))
    assert events
    for a, b in itertools.pairwise(events):
        assert a[0] <= b[0]
        assert a[1] >= b[1]
        assert a[2] <= b[2] * (1 + 1e-9)
        assert a[3] <= b[3]
    assert all(bound <= incumbent for _, incumbent, bound, _ in events)
    assert found.predicted.iteration_s <= events[-1][1] * (1 + 1e-9)


def test_an_error_in_progress_reaches_the_caller() -> None:
    def fail(*_: float) -> None:
        raise RuntimeError("from the callback")

    begin = time.process_time()
    with pytest.raises(RuntimeError, match="from the callback"):
        plan(PlanRequest(long_problem(), time_limit_s=20.0), progress=fail)
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"strategy": "fastest"}, "fastest"),
        ({"time_limit_s": -1.0}, "time_limit"),
        ({"time_limit_s": float("nan")}, "time_limit"),
        ({"threads": 0}, "threads"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        plan(PlanRequest(long_problem(), **options))


# -------------------------------------------------------------------------- published instance


def published(name: str, rules: Json | None = None) -> tuple[Problem, Json, Path]:
    """A published instance with its allocation, under its own rules or others."""
    file = PUBLISHED / f"{name}.cluster.json"
    facts = json.loads((PUBLISHED / f"{name}.json").read_text())
    problem = Problem(
        Cluster.from_json(file.read_text()),
        facts["stages"],
        [facts["microbatches_per_source"]] * len(facts["stages"][0]),
        skip_ratio=facts["skip_ratio"],
        constraints=Constraints(**(facts["rules"] if rules is None else rules)),
    )
    return problem, facts, file


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_published_instance(strategy: str) -> None:
    problem, facts, file = published("published20")
    best = facts["best_known_s"]["under_its_rules"]
    if strategy == "full-routed":
        # 15 routes over every stage, and room for 9 on each but the first: these rules allow no such plan.
        with pytest.raises(ImpossibleError, match="TC1"):
            plan(PlanRequest(problem, strategy))
        return
    found = plan(
        PlanRequest(problem, strategy, time_limit_s=30.0 if strategy == "skippipe" else 5.0)
    )  # ends with the proof
    question = Question(
        cluster=str(file),
        stages=str(PUBLISHED / "published20.json"),
        rules=json.dumps({"tc1": "held"} if strategy == "full" else facts["rules"]),
        skip_ratio=0.0 if strategy.startswith("full") else facts["skip_ratio"],
        microbatches=facts["microbatches_per_source"],
        best_known=best if strategy == "skippipe" else None,
    )
    assert found.check() == []
    assert verdict(found.to_json(), question) == []
    iteration = found.predicted.iteration_s
    if strategy == "skippipe":
        assert iteration == pytest.approx(best, rel=1e-9)
        assert found.solver.optimal
    elif strategy == "full":
        assert iteration <= 92.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_published_instance_under_our_rules(strategy: str) -> None:
    problem, facts, _ = published("published20", rules={})
    best = facts["best_known_s"]["under_default_rules"]
    found = plan(PlanRequest(problem, strategy, time_limit_s=2.0))
    assert found.check() == []
    assert verdict(found.to_json()) == []
    if strategy in ("skippipe", "full-routed"):
        assert found.predicted.lower_bound_s <= best * (1 + 1e-9) or strategy == "full-routed"
        assert found.predicted.iteration_s < {"skippipe": 37.0, "full-routed": 83.0}[strategy]


def test_published_instance_under_our_rules_is_proved() -> None:
    problem, facts, _ = published("published20", rules={})
    best = facts["best_known_s"]["under_default_rules"]
    found = plan(PlanRequest(problem, method="cbs", time_limit_s=60.0))
    assert found.predicted.iteration_s == pytest.approx(best, rel=1e-9)
    assert found.solver.optimal


def test_random_skipping_is_worse_than_planning() -> None:
    problem, _, _ = published("published20")
    drawn = []
    for seed in range(5):
        try:
            drawn.append(plan(PlanRequest(problem, "random-skip", time_limit_s=1.0, seed=seed)).predicted.iteration_s)
        except (NoPlanError, DeadlockError):
            continue
    assert statistics.median(drawn) > plan(PlanRequest(problem, time_limit_s=1.0)).predicted.iteration_s


def test_the_instances_of_these_tests_are_varied() -> None:
    instances = [plannable(seed) for seed in range(200)]
    assert len({tuple(i["counts"]) for i in instances}) > 40
    assert len({i["constraints"]["tc1"] for i in instances}) == 3
    assert {len(route_owners(i)) for i in instances} >= set(range(1, 8))
