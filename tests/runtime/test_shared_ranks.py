"""Predicted iteration times where ranks serve several nodes: what their programs take, one task at a time."""

import json
from random import Random

import pytest
from reference.instances import Json
from reference.simulator import Durations
from runtime.machine import random_ranks
from runtime.models import make_plan

from skippipe import Plan, planning
from skippipe.config import PlannerConfig
from skippipe.errors import InputError
from skippipe.planning import PlanningJob
from skippipe.ranks import NO_RANK, processors_of
from skippipe.runtime.actions import Task
from skippipe.runtime.lower import lower


def time_of_programs(content: Json, rank_of: list[int]) -> float:
    """Seconds of an iteration of the lowered programs: the longest path, by repeated relaxation."""
    durations = Durations(content["cluster"], content["stages"])
    programs = lower(Plan.from_json(json.dumps(content)), rank_of)
    sequences = [[action for action in program.actions if isinstance(action, Task)] for program in programs]
    chains: dict[int, list[Task]] = {}
    for task in (task for sequence in sequences for task in sequence):
        chains.setdefault(task.microbatch, []).append(task)
    for chain in chains.values():
        chain.sort(key=lambda task: ("FLB".index(task.kind), -task.hop if task.kind == "B" else task.hop))
    before = {task: chain[i - 1] for chain in chains.values() for i, task in enumerate(chain) if i}
    end = {task: 0 for sequence in sequences for task in sequence}
    while True:
        changed = False
        for sequence in sequences:
            free = 0
            for task in sequence:
                input_ = before.get(task)
                arrived = 0
                if input_ is not None:
                    is_local = rank_of[input_.node] == rank_of[task.node]
                    arrived = end[input_] + (0 if is_local else durations.transfer(input_.node, task.node))
                ended = max(free, arrived) + durations.task[task.kind][task.node]
                changed, end[task], free = changed or ended != end[task], ended, ended
        if not changed:
            break
    result = max(end.values())
    for stage, members in enumerate(content["stages"]):
        ranks = [rank_of[node] for node in members]
        replicas = [node for i, node in enumerate(members) if rank_of[node] not in ranks[:i]]
        last = max((end[task] for task in end if task.kind == "B" and task.stage == stage), default=0)
        result = max(result, last + durations.allreduce_of(stage, replicas))
    return (result + durations.after) / 1e9


@pytest.mark.parametrize("seed", range(40))
def test_the_iteration_is_that_of_the_programs(seed: int) -> None:
    """Of a plan that was made for the nodes alone, and of one that was made for the ranks."""
    rng = Random(seed)
    sizes = rng.choice([[2, 1, 1], [1, 1, 1, 1], [2, 2, 2], [3, 1, 2]])
    text = make_plan(rng, sizes, rng.choice([0.0, 0.25, 1 / 3]), rng.randint(1, 3))
    plan, nodes = Plan.from_json(text), sum(sizes)
    for rank_of in (list(range(nodes)), [0] * nodes, random_ranks(rng, nodes, rng.randint(1, nodes))):
        moved = plan.on_processors(processors_of(rank_of))
        assert moved.check() == []
        found = moved.predicted.iteration_s
        if min(min(t) for t in Durations(json.loads(text)["cluster"], plan.stages).task.values()) > 0:
            # The order of the ranks is that in which they would run the plan as it was made.
            assert found == pytest.approx(time_of_programs(json.loads(text), rank_of), rel=1e-9), rank_of
        assert found == pytest.approx(time_of_programs(json.loads(moved.to_json()), rank_of), rel=1e-9), rank_of
        made = planning.make_plan(PlanningJob(moved.problem()), "skippipe", PlannerConfig(work_limit=300))
        assert made.cluster == moved.cluster
        expected = time_of_programs(json.loads(made.to_json()), rank_of)
        assert made.predicted.iteration_s == pytest.approx(expected, rel=1e-9), rank_of


def test_one_node_per_rank_is_as_planned() -> None:
    plan = Plan.from_json(make_plan(Random(1), [2, 1, 1], 0.25, 3))
    assert plan.on_processors(processors_of([3, 1, 0, 2])) == plan
    assert plan.assumptions.processors == []
    together = plan.on_processors(processors_of([0, 0, 0, 0]))
    assert together.predicted.iteration_s > plan.predicted.iteration_s
    assert together.assumptions.processors == [[0, 1, 2, 3]]
    apart = together.on_processors(processors_of([0, 1, 2, 3]))
    assert apart.assumptions.processors == []
    assert apart.check() == []


def test_nodes_without_a_rank_take_no_part() -> None:
    plan = Plan.from_json(make_plan(Random(1), [2, 1, 1], 0.25, 3))
    assert processors_of([0, NO_RANK, 1, NO_RANK]) == [0, None, 1, None]
    assert plan.on_processors(processors_of([0, 0, 1, 1])) == plan.on_processors(processors_of([5, 5, 2, 2]))


def test_an_entry_for_each_node() -> None:
    plan = Plan.from_json(make_plan(Random(1), [2, 1, 1], 0.25, 3))
    with pytest.raises(InputError, match="processors: expected an entry for each of the 4 nodes, got 3"):
        plan.on_processors([0, 0, 1])
    with pytest.raises(InputError, match=r"processors\[1\]: expected an integer from 0"):
        plan.on_processors([0, -1, None, None])


def test_what_a_plan_assumes_is_what_its_cluster_says() -> None:
    plan = Plan.from_json(make_plan(Random(1), [2, 1, 1], 0.25, 3))
    assert "assumptions" not in json.loads(plan.to_json())
    content = json.loads(plan.on_processors([0, None, 0, None]).to_json())
    assert content["assumptions"] == {"processors": [[0, 2]], "contention": "none"}
    assert [node.get("processor") for node in content["cluster"]["nodes"]] == [0, None, 0, None]
    content["assumptions"]["processors"] = [[0, 1]]
    with pytest.raises(InputError, match=r"assumptions\.processors: expected \[\[0, 2\]\]"):
        Plan.from_json(json.dumps(content))
    content["assumptions"] = {"processors": [[0, 2]], "contention": "cable"}
    with pytest.raises(InputError, match="contention"):
        Plan.from_json(json.dumps(content))
    with pytest.raises(InputError, match="contention: expected none, link or uplink, got cable"):
        plan.with_contention("cable")
