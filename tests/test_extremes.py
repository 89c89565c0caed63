"""What lies at the edge: sizes, numbers and shapes that nobody means, and that must not crash, hang or wrap around."""

import json
import time
from typing import Any

import numpy as np
import pytest

from skippipe import Cluster, Constraints, Plan, Problem, _scheduler
from skippipe.errors import InputError, SchedulerError


def cluster(nodes: int = 4, memory: int = 3, **links: Any) -> Cluster:
    links = links or {"transfer_s": np.full((nodes, nodes), 0.01)}
    forward_s, backward_s, loss_s = (np.full(nodes, x) for x in (0.04, 0.08, 0.01))
    return Cluster([f"n{i}" for i in range(nodes)], forward_s, backward_s, loss_s, [memory] * nodes, **links)


def problem(counts: list[int], memory: int = 3, **rules: Any) -> Problem:
    stages = [[0, 1], [2], [3]]
    return Problem(cluster(memory=memory), stages, counts, skip_ratio=1 / 3, constraints=Constraints(**rules))


def plan(question: Problem, **options: Any) -> Plan:
    return _scheduler.plan(_scheduler.PlanRequest(question, **{"time_limit_s": None, "work_limit": 2000} | options))


def edited(change: Any) -> Plan:
    content = json.loads(plan(problem([2, 2])).to_json())
    change(content)
    return Plan.from_json(json.dumps(content))


def test_memory_without_end_is_as_good_as_plenty() -> None:
    plenty, endless = (plan(problem([4, 4], memory=memory)) for memory in (100, 2**32 - 1))
    assert endless.predicted.iteration_s == plenty.predicted.iteration_s


@pytest.mark.parametrize("jump", [1, 2, None])
def test_thousands_of_microbatches_end_with_the_time_limit(jump: int | None) -> None:
    begin = time.process_time()
    try:
        made = plan(problem([3000, 3000], max_stage_jump=jump), time_limit_s=1.0, work_limit=None)
    except SchedulerError:
        assert jump == 1  # nobody reaches stage 2 then
    else:
        assert made.check() == []
    assert time.process_time() - begin < 10, "of the processor: other work does not count"


@pytest.mark.parametrize("count", [20_001, 2**63 - 1])
def test_too_many_microbatches_are_refused(count: int) -> None:
    with pytest.raises(InputError, match="microbatches"):
        problem([count, count])


def test_many_stages_with_jumps_are_planned_in_time() -> None:
    stages = [[i] for i in range(40)]
    question = Problem(cluster(40, memory=20), stages, [4], skip_ratio=0.0, constraints=Constraints(max_stage_jump=4))
    assert plan(question, strategy="full").check() == []


def test_numbers_of_microbatches_may_be_large() -> None:
    def renumber(content: dict[str, Any]) -> None:
        for entry in content["microbatches"]:
            entry["id"] += 2**40
        for task in content["tasks"]:
            task["microbatch"] += 2**40

    numbered = edited(renumber)
    assert numbered.check() == []
    again = _scheduler.simulate(numbered)
    assert {task.microbatch for task in again.tasks} == {microbatch.id for microbatch in numbered.microbatches}


def test_a_route_over_an_idle_node_is_refused() -> None:
    def lose_stage(content: dict[str, Any]) -> None:
        content["stages"][2], content["absent_stages"] = [], [2]

    lost = edited(lose_stage)
    assert lost.check()
    with pytest.raises(InputError):
        _scheduler.simulate(lost)


def test_the_dispatch_rule_keeps_no_proof_that_it_breaks() -> None:
    for seed in range(20):
        made = plan(problem([seed % 3 + 1, 2], memory=2), seed=seed)
        assert _scheduler.simulate(made, order="dispatch").check() == []


@pytest.mark.parametrize("path", [["constraints"], ["cluster"], ["predicted"], ["tasks", 0], ["cluster", "nodes", 1]])
def test_a_list_is_no_object(path: list[Any]) -> None:
    def flatten(content: dict[str, Any]) -> None:
        *parents, last = path
        for key in parents:
            content = content[key]
        content[last] = list(content[last].values())

    with pytest.raises(InputError, match="object"):
        edited(flatten)


def test_what_stands_on_the_diagonal_is_written_as_a_number() -> None:
    matrix = np.full((4, 4), 0.02)
    np.fill_diagonal(matrix, np.nan)
    assert len(Cluster.from_json(cluster(transfer_s=matrix).to_json())) == 4
