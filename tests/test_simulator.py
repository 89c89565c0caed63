"""The simulator against a slow one written from the problem's definition, and against SimPy."""

import itertools
import json
import re
from collections import Counter
from random import Random

import numpy as np
import pytest
from effort import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.instances import (
    Json,
    TaskKey,
    disturbed,
    legal_routes,
    on_shared_processors,
    random_instance,
    random_orders,
    task_chain,
    tight_instance,
)
from reference.plans import plan_of, plan_of_orders, times_of
from reference.simpy_simulator import run_simpy
from reference.simulator import Durations, Outcome, nanoseconds, processors_of, run_dispatch, run_order

from skippipe import Cluster, Plan, simulate
from skippipe.errors import DeadlockError

TASK = re.compile(r"(\d+)([FLB])(\d+)@(\d+)")
TRIED = cases(400, 160)
"""instances of each block"""
Case = tuple[Json, list[Json]]


def draw(seed: int) -> Case | None:
    """An instance with legal routes for it; None where a few draws gave none."""
    rng = Random(seed)
    instance = tight_instance(rng) if seed % 7 == 0 else random_instance(rng, "middle" if seed % 60 == 1 else "small")
    if seed % 3 == 2:
        instance = on_shared_processors(Random(f"shared {seed}"), instance)
    microbatches = legal_routes(rng, instance)
    return None if microbatches is None else (instance, microbatches)


def draw_orders(rng: Random, case: Case) -> dict[int, list[TaskKey]]:
    """Orders that run through, orders that nearly do, and blind ones."""
    orders = random_orders(rng, *case, respect=rng.random() < 0.9)
    return disturbed(rng, orders, rng.choice([0, 0, 1, 2, 5]))


def compare(case: Case, expected: Outcome, text: str, order: str) -> bool:
    """Runs ours on the plan and compares everything; whether the instance runs through."""
    instance, _ = case
    plan = Plan.from_json(text)
    if expected.stuck:
        with pytest.raises(DeadlockError) as caught:
            simulate(plan, order=order)
        check_cycle(expected, str(caught.value))
        return False
    ours = json.loads(simulate(plan, order=order).to_json())
    assert times_of(ours) == expected.times
    assert {(t["microbatch"], t["kind"], t["hop"]): t["node"] for t in ours["tasks"]} == expected.work.node
    last: dict[int, float] = {}
    for t in ours["tasks"]:
        processor = expected.work.durations.processor[t["node"]]
        assert t["start_s"] >= last.get(processor, 0.0)
        last[processor] = t["start_s"]
    said = ours["predicted"]
    assert nearest(said["pipeline_s"]) == expected.pipeline()
    assert nearest(said["iteration_s"]) == expected.iteration(instance["stages"])
    assert [nearest(x) for x in said["allreduce_s"]] == expected.work.durations.allreduce
    return True


def nearest(seconds: float) -> int:
    """Seconds as integer nanoseconds."""
    return round(seconds * 1e9)


def check_cycle(outcome: Outcome, message: str) -> None:
    """The message names tasks that wait for each other in a circle."""
    named: list[TaskKey] = []
    for b, kind, hop, node in TASK.findall(message):
        key = (int(b), kind, int(hop))
        assert outcome.work.node[key] == int(node), message
        assert key not in outcome.times, f"{key} did run: {message}"
        named.append(key)
    if len(named) > 1 and named[0] == named[-1]:
        named.pop()
    assert named, message
    assert len(set(named)) == len(named), message
    steps = list(itertools.pairwise([*named, named[0]]))
    forth = all(waits(outcome, a, b) for a, b in steps)
    back = all(waits(outcome, b, a) for a, b in steps)
    assert forth or back, f"no circle of waiting tasks: {message}"


def waits(outcome: Outcome, a: TaskKey, b: TaskKey) -> bool:
    """Whether `a` cannot run before `b`: it waits for it, or for a later task of `b`'s microbatch."""
    chain = [key for key, _ in task_chain(outcome.work.microbatches[b[0]])]
    return any(c[0] == b[0] and chain.index(b) <= chain.index(c) for c in outcome.waits_for(a))


@pytest.mark.parametrize("block", range(8))
def test_dispatch_agrees_with_the_reference(block: int) -> None:
    ran: Counter[bool] = Counter()
    for seed in range(block * 400, block * 400 + TRIED):
        case = draw(seed)
        if case is None:
            continue
        expected = run_dispatch(*case)
        orders = random_orders(Random(seed), *case)
        ran[compare(case, expected, json.dumps(plan_of_orders(*case, orders)), "dispatch")] += 1
    assert ran[True] > TRIED * 3 / 4
    assert ran[False] > TRIED / 130


@pytest.mark.parametrize("block", range(8))
def test_given_order_agrees_with_the_reference(block: int) -> None:
    ran: Counter[bool] = Counter()
    for seed in range(10_000 + block * 400, 10_000 + block * 400 + TRIED):
        case = draw(seed)
        if case is None:
            continue
        orders = draw_orders(Random(seed), case)
        expected = run_order(*case, orders)
        ran[compare(case, expected, json.dumps(plan_of_orders(*case, orders)), "plan")] += 1
    assert ran[True] > TRIED / 4
    assert ran[False] > TRIED / 14


@settings(
    derandomize=True,
    database=None,
    max_examples=cases(300, 100),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.randoms(use_true_random=False))
def test_both_modes_on_shrinking_instances(rng: Random) -> None:
    instance = random_instance(rng)
    if rng.random() < 0.3:
        instance = on_shared_processors(rng, instance)
    microbatches = legal_routes(rng, instance, tries=5)
    if microbatches is None:
        return
    case = (instance, microbatches)
    orders = random_orders(rng, *case)
    text = json.dumps(plan_of_orders(*case, orders))
    compare(case, run_dispatch(*case), text, "dispatch")
    compare(case, run_order(*case, orders), text, "plan")


def test_the_instances_cover_every_rule() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        case = draw(seed)
        if case is None:
            continue
        instance, rules = case[0], case[0]["constraints"]
        seen.update(f"{name}={rules[name]}" for name in ("cc1", "cc2", "cc3", "tc1", "waves", "max_swaps"))
        seen["jump"] += rules["max_stage_jump"] is not None
        seen["absent"] += bool(instance["absent_stages"])
        seen["idle source"] += 0 in instance["counts"]
        optional = ("transfer_s", "latency_s", "region_of", "norm_s", "step_s")
        seen.update(name for name in optional if name in instance["cluster"])
        seen["reduce"] += any(Durations(instance["cluster"], instance["stages"]).allreduce)
        seen["shared processors"] += len(set(processors_of(instance["cluster"]))) < len(instance["cluster"]["nodes"])
        seen["zero length"] += any(node["forward_s"] == 0 for node in instance["cluster"]["nodes"])
    rules_off = ["cc1=False", "cc2=False", "cc3=False", "tc1=held", "tc1=routes", "tc1=off"]
    wanted = [*rules_off, "waves=1", "waves=2", "waves=3", "max_swaps=0", "max_swaps=3", "jump", "absent"]
    wanted += ["idle source", "transfer_s", "latency_s", "region_of", "norm_s", "step_s", "reduce", "zero length"]
    wanted += ["shared processors"]
    assert {name: seen[name] for name in wanted if seen[name] < 10} == {}


def test_dispatch_order_replayed_gives_the_same_times() -> None:
    """A property of the rules: what the dispatch rule does is the earliest execution of its order."""
    ran, tried = 0, cases(300, 150)
    for seed in range(20_000, 20_000 + tried):
        case = draw(seed)
        if case is None or (outcome := run_dispatch(*case)).stuck:
            continue
        plan = Plan.from_json(json.dumps(plan_of(case[0], outcome)))
        assert plan.check() == []
        first = simulate(plan, order="dispatch")
        assert times_of(json.loads(simulate(first, order="plan").to_json())) == outcome.times
        ran += 1
    assert ran > tried * 2 / 3


def test_the_reference_agrees_with_simpy() -> None:
    """Two independent references: unless two events coincide, both give the same times."""
    ran, longer, tried = 0, Counter[str](), cases(800, 300)
    for seed in range(30_000, 30_000 + tried):
        rng = Random(seed)
        instance = random_instance(rng, "middle" if seed % 40 == 0 else "small")
        instance["constraints"]["tc1"] = "off"
        if seed % 3 == 2:
            instance = on_shared_processors(rng, instance)
        for node in instance["cluster"]["nodes"]:
            for name in ("forward_s", "backward_s", "loss_s"):
                node[name] = rng.uniform(0.1, 2.0)
        for name in ("transfer_s", "latency_s"):
            if name in instance["cluster"]:
                instance["cluster"][name] = [[rng.uniform(0.1, 1.0) for _ in row] for row in instance["cluster"][name]]
        microbatches = legal_routes(rng, instance)
        if microbatches is None:
            continue
        times = run_simpy(instance, microbatches)
        assert times == run_dispatch(instance, microbatches).times, seed
        orders = random_orders(rng, instance, microbatches)
        plan = Plan.from_json(json.dumps(plan_of_orders(instance, microbatches, orders)))
        assert times_of(json.loads(simulate(plan, order="dispatch").to_json())) == times
        ran += 1
        for contention in ("link", "uplink"):
            waited = run_simpy(instance, microbatches, contention)
            plan = simulate(plan.with_contention(contention), order="dispatch")
            assert times_of(json.loads(plan.to_json())) == waited, (seed, contention)
            longer[contention] += waited != times
    assert ran > tried * 3 / 4
    assert longer["uplink"] > longer["link"] > tried / 40


def test_transfer_matrix_agrees_with_the_reference() -> None:
    for seed in range(200):
        rng = Random(seed)
        instance = random_instance(rng)
        if seed % 3 == 2:
            instance = on_shared_processors(rng, instance)
        cluster = Cluster.from_json(json.dumps(instance["cluster"]))
        durations = Durations(instance["cluster"], instance["stages"])
        nodes = range(len(instance["cluster"]["nodes"]))
        sizes = [instance["cluster"]["activation_bytes"], 0.0, 12345.0]
        for size in [None, *sizes] if "latency_s" in instance["cluster"] else [None]:
            expected = [[durations.seconds(i, j, sizes[0] if size is None else size) for j in nodes] for i in nodes]
            np.testing.assert_allclose(cluster.transfer_matrix(size), expected, rtol=1e-15, atol=0)


def one_node(forward_s: float) -> Case:
    """One microbatch on one node."""
    node = {"name": "a", "forward_s": forward_s, "backward_s": 0.0, "loss_s": 0.0, "memory": 1}
    cluster = {"format": "skippipe.cluster/1", "nodes": [node], "transfer_s": [[0.0]], "activation_bytes": 0}
    rules = {"cc1": True, "cc2": True, "cc3": True, "tc1": "held", "tc2": True}
    instance = {
        "cluster": cluster,
        "stages": [[0]],
        "absent_stages": [],
        "constraints": {**rules, "max_swaps": 1, "waves": 1, "max_stage_jump": None},
        "skip_ratio": 0.0,
        "counts": [1],
    }
    return instance, [{"id": 0, "source": 0, "nodes": [0], "stages": [0], "route": 0, "wave": 0}]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, 0),
        (1e-12, 1),
        (1e-9, 1),
        (1.0000001e-9, 1),
        (1.1e-9, 2),
        (0.44, 440_000_000),
        (0.1 + 0.2, 300_000_000),
        (1 / 3, 333_333_334),
        (2.0000000001, 2_000_000_001),
    ],
)
def test_durations_are_rounded_up_to_whole_nanoseconds(seconds: float, expected: int) -> None:
    assert nanoseconds(seconds) == expected
    instance, microbatches = one_node(seconds)
    orders: dict[int, list[TaskKey]] = {0: [(0, "F", 0), (0, "L", 0), (0, "B", 0)]}
    plan = Plan.from_json(json.dumps(plan_of_orders(instance, microbatches, orders)))
    assert nearest(simulate(plan).predicted.iteration_s) == expected


def test_unknown_order_is_refused() -> None:
    instance, microbatches = one_node(1.0)
    plan = Plan.from_json(json.dumps(plan_of(instance, run_dispatch(instance, microbatches))))
    with pytest.raises(ValueError, match="backwards"):
        simulate(plan, order="backwards")
