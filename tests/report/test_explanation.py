"""Explanations and upgrades compared with the slow simulator, on random plans."""

import copy
import itertools
import json
from random import Random
from typing import Any

import pytest
from reference.instances import Json, TaskKey
from reference.plans import random_plan, times_of
from reference.simulator import Outcome, Work, run_dispatch, run_order

from skippipe import Explanation, Plan, Upgrade, explain, simulate, upgrades

SEEDS = range(120)
UPGRADE_SEEDS = range(40)


def orders_of(plan: Json) -> dict[int, list[TaskKey]]:
    """The tasks of each node in the plan's order."""
    orders: dict[int, list[TaskKey]] = {node: [] for node in range(len(plan["cluster"]["nodes"]))}
    for task in plan["tasks"]:
        orders[task["node"]].append((task["microbatch"], task["kind"], task["hop"]))
    return orders


def reference_of(plan: Json, cluster: Json | None = None) -> Outcome:
    """The plan in its own order, optionally on another cluster."""
    instance = {**plan, "cluster": cluster or plan["cluster"]}
    return run_order(instance, plan["microbatches"], orders_of(plan))


def iteration_of(plan: Json, cluster: Json | None = None) -> int:
    """Its iteration in nanoseconds."""
    return reference_of(plan, cluster).iteration(plan["stages"])


def delayed(work: Work, orders: dict[int, list[TaskKey]], late: TaskKey, by: int) -> Outcome:
    """Earliest times in a given order with one task delayed by so many nanoseconds."""
    times: dict[TaskKey, tuple[int, int]] = {}
    ends: dict[TaskKey, int] = {}
    position = dict.fromkeys(orders, 0)
    while any(position[node] < len(order) for node, order in orders.items()):
        moved = False
        for node, order in orders.items():
            if position[node] == len(order):
                continue
            key = order[position[node]]
            arrival = work.arrival(key, ends)
            if arrival < 0:
                continue
            free = ends[order[position[node] - 1]] if position[node] else 0
            start = max(arrival, free) + (by if key == late else 0)
            times[key], ends[key] = (start, start + work.length(key)), start + work.length(key)
            position[node] += 1
            moved = True
        assert moved
    return Outcome(work, times)


def nanoseconds(values: Any) -> list[int]:
    return [round(value * 1e9) for value in values]


class Case:
    """A random plan, its explanation, and an independent one."""

    def __init__(self, seed: int) -> None:
        self.plan = random_plan(Random(seed), "small", 4)
        self.explanation: Explanation = explain(Plan.from_json(json.dumps(self.plan)))
        self.outcome = reference_of(self.plan)
        self.iteration = self.outcome.iteration(self.plan["stages"])
        self.keys: list[TaskKey] = [(t.microbatch, t.kind, t.hop) for t in self.explanation.plan.tasks]
        self.orders = orders_of(self.plan)

    def node(self, key: TaskKey) -> int:
        return self.outcome.work.node[key]

    def start(self, key: TaskKey) -> int:
        return self.outcome.times[key][0]

    def end(self, key: TaskKey) -> int:
        return self.outcome.times[key][1]

    def idle_pieces(self, key: TaskKey) -> list[tuple[int, int, int]]:
        """When the node of a task was idle between its input's arrival and its start: from, to, microbatches held."""
        node, pieces, held, free = self.node(key), [], 0, 0
        arrival = self.outcome.work.arrival(key, {other: end for other, (_, end) in self.outcome.times.items()})
        for other in self.orders[node]:
            low, high = max(free, arrival), min(self.start(other), self.start(key))
            if low < high:
                pieces.append((low, high, held))
            if other == key:
                break
            free, held = self.end(other), held + {"F": 1, "L": 0, "B": -1}[other[1]]
        return pieces


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [Case(seed) for seed in SEEDS]


def test_times_are_those_of_the_simulator(cases: list[Case]) -> None:
    for case in cases:
        assert times_of(json.loads(case.explanation.plan.to_json())) == case.outcome.times
        ends = {key: end for key, (_, end) in case.outcome.times.items()}
        arrivals = [case.outcome.work.arrival(key, ends) for key in case.keys]
        assert nanoseconds(case.explanation.arrival_s) == arrivals


def test_both_paths_fill_the_iteration(cases: list[Case]) -> None:
    parts = set()
    for case in cases:
        for path in (case.explanation.critical, case.explanation.last):
            spans = [(round(s.start_s * 1e9), round(s.end_s * 1e9)) for s in path]
            assert [0, *(end for _, end in spans)] == [*(start for start, _ in spans), case.iteration]
            assert sum(end - start for start, end in spans) == case.iteration
            parts |= {s.part for s in path}
    assert parts == {"task", "transfer", "busy", "memory", "order", "wave", "all-reduce", "norm", "step"}


def test_the_critical_path_is_a_chain_of_precedences(cases: list[Case]) -> None:
    for case in cases:
        path, work = case.explanation.critical, case.outcome.work
        for segment in path:
            if segment.link is not None:
                assert round((segment.end_s - segment.start_s) * 1e9) == work.durations.transfer(*segment.link)
            if segment.stage is not None:
                length = round((segment.end_s - segment.start_s) * 1e9)
                assert length == work.durations.allreduce[segment.stage]
        on_path = [case.keys[s.task] for s in path if s.task is not None]
        for segment, key in zip([s for s in path if s.task is not None], on_path, strict=True):
            assert (round(segment.start_s * 1e9), round(segment.end_s * 1e9)) == case.outcome.times[key]
        for earlier, later in itertools.pairwise(on_path):
            order = case.orders[case.node(later)]
            before_on_node = order[order.index(later) - 1] if order.index(later) else None
            wave = work.wave_before(work.microbatches[later[0]])
            before_in_chain = work.before[later] or (wave and (wave["id"], "B", 0))
            assert earlier in (before_on_node, before_in_chain)


def test_the_last_microbatch_waits_as_its_tasks_do(cases: list[Case]) -> None:
    for case in cases:
        path, ran = case.explanation.last, [s for s in case.explanation.last if s.part == "task"]
        assert len({case.keys[s.task][0] for s in ran if s.task is not None}) <= 1
        waits = {
            "busy": case.explanation.busy_s,
            "memory": case.explanation.memory_s,
            "order": case.explanation.order_s,
        }
        for segment in path:
            if segment.part in waits:
                assert segment.task is not None
                assert segment.end_s - segment.start_s == pytest.approx(waits[segment.part][segment.task], abs=1e-9)


def test_slack_is_exact(cases: list[Case]) -> None:
    tight = loose = 0
    for case in cases[:50]:
        for key, slack in zip(case.keys, nanoseconds(case.explanation.slack_s), strict=True):
            work, stages = case.outcome.work, case.plan["stages"]
            assert delayed(work, case.orders, key, slack).iteration(stages) == case.iteration
            assert delayed(work, case.orders, key, slack + 1_000_000).iteration(stages) == case.iteration + 1_000_000
            tight, loose = tight + (slack == 0), loose + (slack > 0)
        on_path = {s.task for s in case.explanation.critical if s.task is not None}
        assert all(case.explanation.slack_s[task] == 0 for task in on_path)
    assert tight > 100
    assert loose > 100


def test_what_a_task_waited_for(cases: list[Case]) -> None:
    for case in cases:
        columns = (case.explanation.busy_s, case.explanation.memory_s, case.explanation.order_s)
        arrivals = nanoseconds(case.explanation.arrival_s)
        counted = case.plan["constraints"]["tc1"] == "held"
        for i, key in enumerate(case.keys):
            busy, memory, order = (nanoseconds(column)[i] for column in columns)
            idle = case.idle_pieces(key)
            room = case.outcome.work.durations.memory[case.node(key)]
            full = [to - start for start, to, held in idle if counted and key[1] == "F" and held >= room]
            assert memory == sum(full)
            assert order == sum(to - start for start, to, _ in idle) - memory
            assert busy == case.start(key) - arrivals[i] - memory - order


def test_reasons_and_blockers(cases: list[Case]) -> None:
    seen = set()
    for case in cases:
        explanation, work = case.explanation, case.outcome.work
        arrivals = nanoseconds(explanation.arrival_s)
        for i, (key, reason) in enumerate(zip(case.keys, explanation.reasons, strict=True)):
            seen.add(reason)
            blocker = case.keys[explanation.blockers[i]] if explanation.blockers[i] >= 0 else None
            waited = case.start(key) - arrivals[i]
            assert (waited == 0) == (reason in ("start", "input", "wave"))
            if reason == "start":
                assert (work.before[key], blocker) == (None, None)
            elif reason == "input":
                assert blocker == work.before[key]
            elif reason == "wave":
                wave = work.wave_before(work.microbatches[key[0]])
                assert wave is not None
                assert blocker == (wave["id"], "B", 0)
            else:
                assert blocker is not None
                assert case.node(blocker) == case.node(key)
                assert arrivals[i] < case.end(blocker) <= case.start(key) or case.end(blocker) == case.start(key)
            if reason == "busy":
                assert case.end(blocker or key) == case.start(key)
                assert not case.idle_pieces(key)
            if reason == "memory":
                assert explanation.memory_s[i] > 0
                assert blocker is not None
                assert blocker[1] == "B"
            if reason == "order":
                assert (explanation.memory_s[i], explanation.order_s[i] > 0) == (0, True)
                assert any(to == case.start(blocker or key) for _, to, _ in case.idle_pieces(key))
    assert seen == {"start", "input", "wave", "busy", "memory", "order"}


# ---------------------------------------------------------------------------------- upgrades


def with_faster_node(cluster: Json, node: int) -> Json:
    """The cluster file edited to make one node twice as fast."""
    edited = copy.deepcopy(cluster)
    for name in ("forward_s", "backward_s", "loss_s"):
        edited["nodes"][node][name] /= 2
    return edited


def with_faster_link(cluster: Json, sender: int, receiver: int) -> Json:
    """The cluster with one direction of a link twice as fast."""
    edited = copy.deepcopy(cluster)
    if "transfer_s" in edited:
        edited["transfer_s"][sender][receiver] /= 2
    else:
        edited["latency_s"][sender][receiver] /= 2
        edited["bandwidth"][sender][receiver] *= 2
    return edited


def edited_by_hand(cluster: Json, upgrade: Upgrade) -> Json:
    if upgrade.node is not None:
        return with_faster_node(cluster, upgrade.node)
    assert upgrade.link is not None
    edited = with_faster_link(cluster, *upgrade.link)
    return with_faster_link(edited, *reversed(upgrade.link)) if upgrade.both_ways else edited


def test_upgrades_match_an_edited_cluster() -> None:
    kinds, dispatched = set(), 0
    for seed in UPGRADE_SEEDS:
        plan = random_plan(Random(seed), "small", 4)
        found = upgrades(explain(Plan.from_json(json.dumps(plan))))
        times = [upgrade.iteration_s for upgrade in found]
        assert times == sorted(times)
        for upgrade in found:
            kinds.add((upgrade.node is None, upgrade.both_ways))
            edited = edited_by_hand(plan["cluster"], upgrade)
            kept = iteration_of(plan, edited)
            assert round(upgrade.iteration_s * 1e9) == kept < iteration_of(plan)
            ruled = run_dispatch({**plan, "cluster": edited}, plan["microbatches"])
            shorter = not ruled.stuck and ruled.iteration(plan["stages"]) < kept
            assert (upgrade.dispatched_s is not None) == shorter
            if upgrade.dispatched_s is not None:
                dispatched += 1
                assert round(upgrade.dispatched_s * 1e9) == ruled.iteration(plan["stages"])
            applied = json.loads(upgrade.apply(Plan.from_json(json.dumps(plan)).cluster).to_json())
            assert applied["nodes"] == edited["nodes"]
    assert kinds == {(False, False), (True, False), (True, True)}
    assert dispatched > 0


def test_nothing_else_shortens_the_iteration() -> None:
    for seed in UPGRADE_SEEDS:
        plan = random_plan(Random(seed), "small", 4)
        cluster, whole = plan["cluster"], iteration_of(plan)
        listed = {(u.node, u.link, u.both_ways) for u in upgrades(explain(Plan.from_json(json.dumps(plan))))}
        side = len(cluster.get("transfer_s") or cluster["latency_s"])
        for node in range(len(cluster["nodes"])):
            shorter = iteration_of(plan, with_faster_node(cluster, node)) < whole
            assert shorter == ((node, None, False) in listed)
        for i, j in itertools.product(range(side), repeat=2):
            if i == j and "region_of" not in cluster:
                continue
            one = with_faster_link(cluster, i, j)
            assert (iteration_of(plan, one) < whole) == ((None, (i, j), False) in listed)
            if i < j:
                both = iteration_of(plan, with_faster_link(one, j, i)) < whole
                assert both == ((None, (i, j), True) in listed)


def test_inserted_idle_time_is_removed() -> None:
    plan = random_plan(Random(5), "small", 4)
    late = copy.deepcopy(plan)
    for task in late["tasks"]:
        task["start_s"], task["end_s"] = task["start_s"] + 7.0, task["end_s"] + 7.0
    late["predicted"]["iteration_s"] += 7.0
    explanation = explain(Plan.from_json(json.dumps(late)))
    assert explanation.plan.tasks == simulate(Plan.from_json(json.dumps(plan))).tasks
    assert explanation.critical[0].start_s == 0
