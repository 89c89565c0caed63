"""`allocate.layers=auto` in training: nodes are measured before stages are built, and get the layers that suit them."""

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pool as pools
import pytest
from torch import Tensor
from train.alone import EventDict, free_port, of_kind, rank_in_pool, train_in_pool
from train.conftest import Folder
from train.jobs import TINY_MODEL, make_cluster, make_job

from skippipe.cluster import Cluster
from skippipe.config import AllocateConfig, PhaseConfig, PhasesConfig, PlannerConfig
from skippipe.errors import InputError
from skippipe.plan_file import load_plan
from skippipe.planning import make_plan
from skippipe.runtime.stage import Stage
from skippipe.train.prepare.search import allocation_question, with_allocation_of
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec
from skippipe.workload import Workload

THREE = [("local-0",), ("local-1",), ("local-2",)]
LAYERS = 6
AUTO: dict[str, Any] = {
    "cluster": make_cluster(3, [1, 1, 1]),
    "allocate": AllocateConfig(layers="auto"),
    "model": {**TINY_MODEL, "num_hidden_layers": LAYERS},
    "runtime__calibrate": True,
    "planner": PlannerConfig(work_limit=20000),
    "schedule__skip_ratio": 0.0,
    "train__iterations": 2,
}
SLOW_RANK, SLOW_S = 2, 0.05


def rank_of_three(rank: int, spec: RunSpec, folder: Path, port: int) -> list[EventDict]:
    """In a warm worker: be a rank of a training; one takes its time for every decoder layer."""
    forward = Stage.forward

    def slowly(self: Stage, microbatch: int, hidden: Tensor) -> Tensor:
        time.sleep(SLOW_S * len(self.module.layers) if rank == SLOW_RANK else 0.0)
        return forward(self, microbatch, hidden)

    with patch.object(Stage, "forward", slowly):
        return rank_in_pool(rank, spec, THREE, folder, port)


def test_a_slow_node_gets_few_layers_and_a_resumed_run_keeps_them(folder: Folder, pool: pools.Pool) -> None:
    run = folder("run")

    def train(**changes: Any) -> list[EventDict]:
        port = free_port()
        reported: list[EventDict] = pool.run(
            rank_of_three, [(resolve(make_job(**AUTO | changes)), run, port)] * 3, timeout_s=120
        )[0]
        return reported

    reported = train(checkpoint__every=1)
    (ready,) = of_kind(reported, "plan")
    plan = load_plan(str(run / "plan.json"))
    assert sum(plan.layers) == LAYERS
    assert ready["layers"] == list(plan.layers)
    (slow,) = [stage for stage, nodes in enumerate(plan.stages) if SLOW_RANK in nodes]
    assert plan.layers[slow] == 1
    assert ready["prediction_note"] == "", "times were measured for these stages"
    assert len(of_kind(reported, "iteration")) == 2

    resumed = train(train__iterations=3)
    assert of_kind(resumed, "resumed")[0]["plan_kept"]
    assert load_plan(str(run / "plan.json")).stages == plan.stages
    assert of_kind(resumed, "plan")[0]["layers"] == list(plan.layers)

    given = make_job(**{**AUTO, "allocate": AllocateConfig()}, plan=str(run / "plan.json"))
    losses = [[event["loss"] for event in of_kind(events, "iteration")] for events in (reported, resumed)]
    alone = of_kind(train_in_pool(pool, given, THREE, folder("given")), "iteration")
    assert [event["loss"] for event in alone] == losses[0]


def measured_cluster(content: dict[str, Any]) -> Cluster:
    """Three nodes, of which the last is four times as slow, as `skippipe measure` writes it."""
    speed = (1.0, 1.0, 4.0)
    node = {
        "forward_spread_s": 0.0, "backward_spread_s": 0.0, "loss_spread_s": 0.0, "samples": 9, "timed_layers": [1, 2],
        "held_bytes": 10.0, "layer_held_bytes": 5.0, "layer_state_bytes": 0.0, "fixed_bytes": 0.0, "layer_step_s": 0.0,
    }  # fmt: skip
    workload = Workload(layers=LAYERS, node_layers=(2, 2, 2))
    about = {
        "nodes": [
            {**node, "layer_forward_s": 0.1 * s, "layer_backward_s": 0.2 * s, "memory_bytes": bytes_}
            for s, bytes_ in zip(speed, (1000.0, 50.0, 1000.0), strict=True)
        ],
        "layer_gradient_bytes": 1.0,
        "head_gradient_bytes": 1.0,
        "links": {"latency_spread_s": [], "message_spread_s": [], "messages": []},
    }
    for number, s in enumerate(speed):
        content["nodes"][number] |= {"forward_s": 0.2 * s, "backward_s": 0.4 * s}
    return Cluster.from_json(json.dumps(content | {"workload": json.loads(workload.to_json()), "measured": about}))


def test_what_is_asked_of_an_allocation() -> None:
    spec = resolve(make_job(**AUTO))
    assert spec.search is not None
    assert spec.layout.allocation.layers == (), "provisional"
    measured = measured_cluster(json.loads(spec.layout.cluster.to_json()))
    question = allocation_question(spec, spec.search, measured)
    plan = make_plan(question, "skippipe", spec.planner)
    assert sum(plan.layers) == LAYERS
    assert not plan.absent_nodes
    stated = [4, 2, 4]  # 50 bytes hold two microbatches of two layers
    assert [int(memory) for memory in question.first.cluster.memory] == stated
    ready = with_allocation_of(spec, plan)
    assert ready.layout.stages == plan.stages
    assert ready.layout.allocation.layers == tuple(plan.layers)
    assert ready.phases[0].schedule.microbatches_per_source == list(plan.problem().microbatches)
    assert ready.layout.cluster == spec.layout.cluster


def test_phases_are_divided_on_the_allocation_found() -> None:
    phases = PhasesConfig([PhaseConfig(0.5, stages=2), PhaseConfig()])
    spec = resolve(make_job(**{**AUTO, "phases": phases}))
    assert spec.search is not None
    measured = measured_cluster(json.loads(spec.layout.cluster.to_json()))
    question = allocation_question(spec, spec.search, measured)
    plan = make_plan(question, "skippipe", spec.planner)
    first, last = with_allocation_of(spec, plan).phases
    assert first.allocation.stages == [*plan.stages[:2], []]
    assert last.allocation.stages == plan.stages


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runtime__calibrate": False}, "runtime.calibrate: expected true, as allocate.layers is auto, got False"),
        ({"train__layers": [2, 2, 2]}, "train.layers: expected null, as allocate.layers is auto"),
        ({"schedule__microbatches_per_source": [3]}, "schedule.microbatches_per_source: expected one number"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(make_job(**AUTO | changes))
    assert message in str(error.value)
