"""Programs contain the plan's tasks in its order, with exactly the transfers they need."""

import itertools
import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.plans import plan_of_orders, random_plan
from runtime.machine import hangs, random_ranks

from skippipe import Plan, planning
from skippipe.config import AllocateConfig, PlannerConfig, ScheduleConfig, SitesConfig
from skippipe.errors import InputError
from skippipe.presets import preset_spec
from skippipe.runtime.actions import MAX_HOP, MAX_MICROBATCH, Norm, Recv, Reduce, Send, Step, Task, message_tag
from skippipe.runtime.deadlock import min_recv_buffers, peak_recv_buffers, prove_deadlock_free
from skippipe.runtime.lower import lower, lower_evaluation

RULES = {
    "absent_stages": [],
    "constraints": {
        "cc1": True, "cc2": True, "cc3": False, "tc1": "held", "tc2": True,
        "max_swaps": 1, "waves": 1, "max_stage_jump": None,
    },
}  # fmt: skip
EXHAUSTIVE = settings(derandomize=True, database=None, deadline=None, max_examples=300)


def plan_and_ranks(seed: int, most: int = 6) -> tuple[dict[str, Any], Plan, list[int]]:
    rng = Random(seed)
    content = random_plan(rng)
    return content, Plan.from_json(json.dumps(content)), random_ranks(rng, len(content["cluster"]["nodes"]), most)


def chain(microbatch: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Kind, hop and node of all its tasks, embedding included, in order."""
    nodes, source = microbatch["nodes"], microbatch["source"]
    found = [("F", h, n) for h, n in enumerate(nodes)] + [("L", 0, source)]
    found += [("B", h, n) for h, n in reversed(list(enumerate(nodes)))]
    return found if nodes[0] == source else [("E", 0, source), *found, ("e", 0, source)]


@EXHAUSTIVE
@given(st.integers(0, 2**32))
def test_programs_contain_the_plan(seed: int) -> None:
    content, plan, ranks = plan_and_ranks(seed)
    programs = lower(plan, ranks)
    assert [p.rank for p in programs] == list(range(max(ranks) + 1))

    # Every task once, on the rank of its node.
    tasks = [(p.rank, a) for p in programs for a in p.actions if isinstance(a, Task)]
    wanted = Counter((b["id"], kind, hop, node) for b in content["microbatches"] for kind, hop, node in chain(b))
    assert Counter((t.microbatch, t.kind, t.hop, t.node) for _, t in tasks) == wanted
    assert all(rank == ranks[t.node] and t.node in content["stages"][t.stage] for rank, t in tasks)

    # Each node keeps the plan's order; a rank goes by start.
    for node in range(len(ranks)):
        planned = [(t["microbatch"], t["kind"], t["hop"]) for t in content["tasks"] if t["node"] == node]
        run = [(t.microbatch, t.kind, t.hop) for _, t in tasks if t.node == node and t.kind not in "Ee"]
        assert run == planned
    start = {(t["microbatch"], t["kind"], t["hop"]): t["start_s"] for t in content["tasks"]}
    for program in programs:
        starts = [
            start[a.microbatch, a.kind, a.hop] for a in program.actions if isinstance(a, Task) and a.kind not in "Ee"
        ]
        assert starts == sorted(starts)

    # A message for every step between two ranks, next to its tasks.
    steps = {
        (b["id"], *before): (ranks[before[2]], ranks[after[2]])
        for b in content["microbatches"]
        for before, after in itertools.pairwise(chain(b))
        if ranks[before[2]] != ranks[after[2]]
    }
    sends = {
        (a.task.microbatch, a.task.kind, a.task.hop, a.task.node): (p.rank, a.to_rank)
        for p in programs
        for a in p.actions
        if isinstance(a, Send)
    }
    receives = {
        (a.task.microbatch, a.task.kind, a.task.hop, a.task.node): (a.from_rank, p.rank)
        for p in programs
        for a in p.actions
        if isinstance(a, Recv)
    }
    assert sends == steps
    assert receives == steps
    for program in programs:
        for before, after in itertools.pairwise(program.actions):
            if isinstance(after, Send):
                assert before == after.task
            if isinstance(before, Recv):
                assert isinstance(after, Task)
                assert after.microbatch == before.task.microbatch
        for sender, listed in program.incoming.items():
            assert list(listed) == [
                a.task for a in programs[sender].actions if isinstance(a, Send) and a.to_rank == program.rank
            ]
        tags = [message_tag(task) for listed in program.incoming.values() for task in listed]
        assert len(set(tags)) == len(tags)


@EXHAUSTIVE
@given(st.integers(0, 2**32))
def test_programs_end_with_allreduce_norm_and_step(seed: int) -> None:
    content, plan, ranks = plan_and_ranks(seed)
    reached = {0, *(stage for microbatch in content["microbatches"] for stage in microbatch["stages"])}
    serving = [
        list(dict.fromkeys(ranks[n] for n in nodes)) if s in reached else []
        for s, nodes in enumerate(content["stages"])
    ]
    for program in lower(plan, ranks):
        tail = [a for a in program.actions if not isinstance(a, Task | Send | Recv)]
        assert list(program.actions[len(program.actions) - len(tail) :]) == tail
        *reduces, norm, step = tail
        shared = [(s, tuple(r)) for s, r in enumerate(serving) if len(r) > 1 and program.rank in r][::-1]
        assert [(a.stage, a.ranks) for a in reduces if isinstance(a, Reduce)] == shared
        assert len(reduces) == len(shared)
        assert norm == Norm(tuple(range(max(ranks) + 1)), tuple(min(r) if r else None for r in serving))
        assert step == Step()


@EXHAUSTIVE
@given(st.integers(0, 2**32))
def test_enough_buffers_always_suffice(seed: int) -> None:
    """A feasible plan has deadlock-free programs, whichever ranks serve its nodes."""
    _, plan, ranks = plan_and_ranks(seed)
    programs = lower(plan, ranks)
    buffers = min_recv_buffers(programs, 1, 1)
    assert buffers is not None
    prove_deadlock_free(programs, buffers, 1)
    assert not hangs(programs, buffers, 1)
    if buffers > 1:
        assert hangs(programs, buffers - 1, 1)


def test_zero_length_tasks_follow_their_inputs() -> None:
    """At equal times on one rank, a plan may list a consumer before its producer."""
    cluster = {
        "format": "skippipe.cluster/1",
        "nodes": [{"name": f"n{i}", "forward_s": 0.0, "backward_s": 0.0, "loss_s": 0.0, "memory": 4} for i in range(2)],
        "transfer_s": [[0.0, 0.0], [0.0, 0.0]],
    }
    instance = {"cluster": cluster, "stages": [[0], [1]], "skip_ratio": 0.0, "counts": [1], **RULES}
    microbatch = {"id": 0, "source": 0, "nodes": [0, 1], "stages": [0, 1], "route": 0, "wave": 0}
    content = plan_of_orders(
        instance, [microbatch], {1: [(0, "F", 1), (0, "B", 1)], 0: [(0, "F", 0), (0, "L", 0), (0, "B", 0)]}
    )
    for task in content["tasks"]:
        task["start_s"] = task["end_s"] = 0.0
    (program,) = lower(Plan.from_json(json.dumps(content)), [0, 0])
    assert str(program) == "rank 0: 0F0, 0F1, 0L, 0B1, 0B0, NORM, STEP"


def test_a_small_plan_reads_as_expected() -> None:
    content, ranks = small_plan(), [0, 1, 1]
    programs = lower(Plan.from_json(json.dumps(content)), ranks)
    assert str(programs[0]) == (
        "rank 0: 0F0, SEND 0F0 -> 1, 1F0, SEND 1F0 -> 1, RECV 0F2 <- 1, 0L, SEND 0L -> 1, RECV 1F1 <- 1, 1L, "
        "SEND 1L -> 1, RECV 0B1 <- 1, 0B0, RECV 1B1 <- 1, 1B0, NORM, STEP"
    )
    assert str(programs[1]) == (
        "rank 1: RECV 0F0 <- 0, 0F1, RECV 1F0 <- 0, 1F1, SEND 1F1 -> 0, 0F2, SEND 0F2 -> 0, RECV 0L <- 0, 0B2, "
        "RECV 1L <- 0, 1B1, SEND 1B1 -> 0, 0B1, SEND 0B1 -> 0, NORM, STEP"
    )
    assert peak_recv_buffers(programs, 1) == (1, 1)
    assert peak_recv_buffers(programs, 3) == (3, 3)
    assert peak_recv_buffers(programs, 99) == (4, 4)


def small_plan() -> dict[str, Any]:
    """Three nodes and stages, two microbatches: one visits all stages, the other skips stage 1."""
    cluster = {
        "format": "skippipe.cluster/1",
        "nodes": [{"name": f"n{i}", "forward_s": 1.0, "backward_s": 1.0, "loss_s": 1.0, "memory": 4} for i in range(3)],
        "transfer_s": [[0.0] * 3 for _ in range(3)],
    }
    instance = {"cluster": cluster, "stages": [[0], [1], [2]], "skip_ratio": 1 / 6, "counts": [2], **RULES}
    microbatches = [
        {"id": 0, "source": 0, "nodes": [0, 1, 2], "stages": [0, 1, 2], "route": 0, "wave": 0},
        {"id": 1, "source": 0, "nodes": [0, 2], "stages": [0, 2], "route": 1, "wave": 0},
    ]
    orders = {
        0: [(0, "F", 0), (1, "F", 0), (0, "L", 0), (1, "L", 0), (0, "B", 0), (1, "B", 0)],
        1: [(0, "F", 1), (0, "B", 1)],
        2: [(1, "F", 1), (0, "F", 2), (0, "B", 2), (1, "B", 1)],
    }
    content = plan_of_orders(instance, microbatches, orders)
    times = {0: [0, 1, 4, 5, 8, 9], 1: [1, 7], 2: [2, 3, 5, 6]}
    for node, starts in times.items():
        for task, start in zip([t for t in content["tasks"] if t["node"] == node], starts, strict=True):
            task.update(start_s=float(start), end_s=float(start + 1))
    return content


@pytest.mark.parametrize("replicas", [[2, 1, 1], [1, 1], [2, 3], [1]])
@pytest.mark.parametrize("strategy", ["full", "full-routed", "random-skip", "skippipe-no-tc2", "skippipe"])
def test_plans_of_the_planner_complete(replicas: list[int], strategy: str) -> None:
    machines = SitesConfig(sites=1, nodes_per_site=sum(replicas), stage_sizes=replicas)
    machines.node.forward_s, machines.node.backward_s, machines.node.loss_s, machines.node.memory = 0.04, 0.08, 0.01, 4
    for link in (machines.inside, machines.between):
        link.latency_s, link.bandwidth = 1e-3, 1e9
    assert preset_spec(machines).names
    schedule = ScheduleConfig(skip_ratio=0.0 if len(replicas) == 1 else 1 / 3)
    job = planning.planning_job(machines, AllocateConfig(objective="surrogate"), schedule)
    plan = planning.make_plan(job, strategy, PlannerConfig(work_limit=2000))
    programs = lower(plan, range(sum(replicas)))
    buffers = min_recv_buffers(programs, 2, 2)
    assert buffers is not None
    assert not hangs(programs, buffers, 2)


@EXHAUSTIVE
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_evaluation_takes_every_microbatch_through_the_whole_model(seed: int, microbatches: int) -> None:
    content, plan, ranks = plan_and_ranks(seed)
    programs = lower_evaluation(plan, ranks, microbatches)
    tasks = [a for p in programs for a in p.actions if isinstance(a, Task)]
    present = [s for s, nodes in enumerate(content["stages"]) if nodes]
    for m in range(microbatches):
        chain = sorted((t for t in tasks if t.microbatch == m), key=lambda t: (t.kind, t.hop))
        assert [(t.kind, t.stage) for t in chain] == [("F", s) for s in present] + [("L", 0)]
        assert chain[0].node == chain[-1].node
        assert all(t.node in content["stages"][t.stage] for t in chain)
    assert not any(isinstance(a, Reduce | Norm | Step) for p in programs for a in p.actions)
    buffers = min_recv_buffers(programs, 1, 1)
    assert buffers is not None
    assert not hangs(programs, buffers, 1)
    prove_deadlock_free(lower_evaluation(plan, range(len(ranks)), microbatches), 1, 1)


def test_tags_are_unique_and_bounded() -> None:
    tasks = [Task(kind, b, hop, 0, 0) for kind in ("F", "B") for b in (0, 1, MAX_MICROBATCH) for hop in (0, 1, MAX_HOP)]
    tasks += [Task(kind, b, 0, 0, 0) for kind in ("E", "L") for b in (0, 1, MAX_MICROBATCH)]
    tags = [message_tag(task) for task in tasks]
    assert len(set(tags)) == len(tags)
    assert min(tags) >= 256
    assert max(tags) < 2**31


@pytest.mark.parametrize("task", [Task("F", MAX_MICROBATCH + 1, 0, 0, 0), Task("F", 0, MAX_HOP + 1, 0, 0)])
def test_numbers_too_large_for_a_tag_are_refused(task: Task) -> None:
    with pytest.raises(InputError, match=f"^microbatch.* {task.microbatch}\\b"):
        message_tag(task)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [([0, 1], "plan's 3 nodes, got 2"), ([0, 2, 2], "ranks from 0"), ([0, -1, 0], "ranks from 0")],
)
def test_invalid_ranks_are_refused(ranks: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lower(Plan.from_json(json.dumps(small_plan())), ranks)


def test_tasks_off_the_routes_are_refused() -> None:
    content = small_plan()
    lost = content["tasks"].pop()
    with pytest.raises(InputError, match=f"{lost['microbatch']}{lost['kind']}{lost['hop']}, which the routes require"):
        lower(Plan.from_json(json.dumps(content)), [0, 1, 2])
    content["tasks"] += [content["tasks"][0]]
    with pytest.raises(InputError, match=r"tasks\[11\]: expected each task .*, got 0F0 on node 0"):
        lower(Plan.from_json(json.dumps(content)), [0, 1, 2])
