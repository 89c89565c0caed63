"""Predictions: times that belong to another model, microbatch or cut are not shown as if they were the run's."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from pool import Pool
from train.alone import of_kind, train_alone, train_in_pool
from train.conftest import Folder
from train.jobs import TINY, make_job

from skippipe import Plan
from skippipe.config import AllocateConfig, ClusterConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError
from skippipe.plan_file import load_plan, save_plan
from skippipe.planning import make_plan, planning_job
from skippipe.train.prepare.prediction import Prediction, judge_prediction
from skippipe.train.prepare.stages import PartitionedModel
from skippipe.train.resolve.plan_model import PlanModel
from skippipe.train.resolve.resolve import resolve

MODEL = PlanModel("ab", 32, 4, 2, 32, "float32")
STATED: dict[str, Any] = {"hidden": 32, "layers": 4, "microbatch_size": 2, "sequence": 32, "wire_dtype": "float32"}
CUT: dict[str, Any] = {"node_layers": [2, 2, 1, 1], "sources": [0, 1]}
FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]


@pytest.fixture(scope="module")
def plain() -> Plan:
    """A plan of the tiny job: nodes 0 and 1 are sources; its cluster says nothing of its times."""
    job = make_job()
    question = planning_job(job.cluster, AllocateConfig(objective="surrogate"), job.schedule)
    plan = make_plan(question, "skippipe", job.planner)
    assert sorted(plan.stages[0]) == [0, 1]
    return plan


def stating(plan: Plan, model: Any = None, *, message_bytes: float = 8192, **workload: Any) -> Plan:
    """The same plan, its times stated for something."""
    content = json.loads(plan.to_json())
    content["cluster"] |= {"activation_bytes": message_bytes, **({"workload": workload} if workload else {})}
    return Plan.from_json(json.dumps(content | {"model": model}))


def judged(
    plan: Plan, job: Any = None, *, device: str | None = "cpu", layers: tuple[int, ...] = (2, 1, 1)
) -> Prediction:
    spec = resolve(job or make_job())
    if job is None:  # the plan is given
        spec = dataclasses.replace(spec, layout=dataclasses.replace(spec.layout, plan=plan))
    return judge_prediction(plan, PartitionedModel(None, MODEL, list(layers)), spec, device)


def test_what_fits_is_a_prediction(plain: Plan) -> None:
    assert judged(stating(plain, **STATED, **CUT, device="cpu")) == Prediction(holds=True, note="")
    assert judged(stating(plain, **STATED, device="NVIDIA H100"), device=None) == Prediction(holds=True, note="")
    assert judged(stating(plain, dataclasses.asdict(MODEL))) == Prediction(holds=True, note="")


@pytest.mark.parametrize(
    ("workload", "note"),
    [
        ({"hidden": 4096}, "times of the cluster hold for hidden 4096, here it is 32 (model.hidden_size)"),
        ({"layers": 400}, "hold for layers 400, here it is 4 (model.num_hidden_layers)"),
        ({"microbatch_size": 8}, "hold for microbatch_size 8, here it is 2 (train.microbatch_size)"),
        ({"sequence": 128}, "hold for sequence 128, here it is 32 (data.sequence)"),
        ({"wire_dtype": "bfloat16"}, "hold for wire_dtype bfloat16, here it is float32 (runtime.wire_dtype)"),
        ({"config_sha256": "cd"}, "hold for config_sha256 cd, here it is ab (model)"),
        ({"message_bytes": 524288}, "hold for messages of 524,288 bytes (activation_bytes), here they have 8,192"),
        ({"device": "NVIDIA H100"}, "hold for NVIDIA H100, here it is cpu (runtime.device)"),
        ({"node_layers": [4, 4, 1, 1]}, "another partition: stage 0 has 2 decoder layers, the node times hold for 4"),
    ],
)
def test_what_does_not_fit_is_none(workload: dict[str, Any], note: str, plain: Plan) -> None:
    prediction = judged(stating(plain, **STATED | workload))
    assert not prediction.holds
    assert note in prediction.note


def test_what_is_not_known_is_said(plain: Plan) -> None:
    """A plan that this run makes carries this run's model, which says nothing about the cluster's times."""
    unsaid = Prediction(holds=True, note="neither plan nor cluster says which model and microbatch its times hold for")
    assert judged(stating(plain)) == unsaid
    assert judged(stating(plain, microbatch_size=2)) == unsaid
    assert judged(stating(plain, dataclasses.asdict(MODEL)), make_job()) == unsaid
    reported = judged(stating(plain, **STATED, sources=[0, 2]))
    assert reported.holds
    assert "times of local-1 are without the embedding" in reported.note


def test_microbatches_together_are_no_plan(plain: Plan) -> None:
    prediction = judged(stating(plain, **STATED), make_job(runtime__group=4))
    assert not prediction.holds
    assert "runtime.group=4" in prediction.note


def test_links_at_another_speed_are_not_those_of_the_plan(plain: Plan) -> None:
    scaled: dict[str, Any] = {"runtime__links": "emulated", "runtime__time_scale": 0.1}
    prediction = judged(stating(plain, **STATED), make_job(**scaled))
    assert not prediction.holds
    assert "runtime.time_scale=0.1" in prediction.note
    assert judged(stating(plain, **STATED), make_job(**scaled, runtime__calibrate=True)).holds, "links are measured"
    assert judged(stating(plain, **STATED), make_job(runtime__links="emulated")).holds


def test_a_run_shows_no_prediction_of_others(plain: Plan, folder: Folder, tmp_path: Path) -> None:
    """It trains, since the order holds; no event has the times of another microbatch."""
    path = tmp_path / "plan.json"
    save_plan(stating(plain, **STATED | {"microbatch_size": 8}), path)
    reported = train_alone(make_job(plan=str(path), train__iterations=2), folder("run"))
    (plan,) = of_kind(reported, "plan")
    assert plan["predicted_s"] is None
    assert plan["lower_bound_s"] is None
    assert plan["full"] == {}
    assert "microbatch_size 8, here it is 2" in plan["prediction_note"]
    iterations = of_kind(reported, "iteration")
    assert len(iterations) == 2
    assert all("predicted_s" not in event for event in iterations)
    (summary,) = of_kind(reported, "summary")
    assert summary["predicted_s"] is None
    assert summary["measured_s"] > 0


def test_measured_times_say_what_they_are_of(folder: Folder, pool: Pool) -> None:
    """Every node has the time of a loss, sources or not; a plan from the file with other sources pays for it."""
    path = folder("run")
    reported = train_in_pool(pool, make_job(runtime__calibrate=True, train__iterations=1), FOUR, path)
    (event,) = of_kind(reported, "plan")
    assert event["prediction_note"] == ""
    assert event["predicted_s"] > 0
    content = json.loads((path / "cluster.json").read_text())
    made = load_plan(str(path / "plan.json"))
    assert min(node["loss_s"] for node in content["nodes"]) > 0
    workload = content["workload"]
    assert STATED.items() <= workload.items()
    assert workload["device"] == "cpu"
    assert sorted(workload["sources"]) == sorted(made.stages[0])
    layers = {node: made.layers[stage] for stage, nodes in enumerate(made.stages) for node in nodes}
    assert workload["node_layers"] == [layers[node] for node in range(4)]
    others = [node for nodes in made.stages[1:] for node in nodes]
    schedule = ScheduleConfig(microbatches_per_source=3)
    machines = ClusterConfig(file=str(path / "cluster.json"))
    question = planning_job(machines, AllocateConfig(sources=others, objective="surrogate"), schedule)
    plan = make_plan(question, "skippipe", PlannerConfig(work_limit=200))
    losses = [task for task in plan.tasks if task.kind == "L"]
    assert {task.node for task in losses} == set(others)
    assert all(task.end_s > task.start_s for task in losses)
    assert plan.model is not None
    assert STATED.items() <= json.loads(plan.model).items()
    save_plan(plan, path / "other.json")
    with pytest.raises(InputError, match=r"train.microbatch_size: expected 2, got 4; the plan is for another model"):
        train_alone(make_job(plan=str(path / "other.json"), train__microbatch_size=4), folder("refused"))


def test_dry_run_tells_what_it_cannot_predict(run: Run) -> None:
    made = run(
        "plan", "cluster=local4", "schedule.microbatches_per_source=3", "planner.work_limit=100", "output=p.json"
    )
    assert made.status == 0, made.err
    fitting = ("data.sequence=128", "train.microbatch_size=8", "data.validation_blocks=16")
    large = ("model.hidden_size=256", "model.num_hidden_layers=6", "data.validation_blocks=16")
    holds = run("train", "--dry-run", "plan=p.json", *fitting)
    assert holds.status == 0, holds.err
    predicted = load_plan("p.json").predicted.iteration_s
    assert f"predicted iteration time {predicted:.3f} s (full pipelines on this allocation: full " in holds.out
    other = run("train", "--dry-run", "plan=p.json", *large)
    assert other.status == 0, other.err
    assert "predicted iteration time: unknown (times of the cluster hold for hidden 128, here it is 256" in other.out
    assert f"{predicted:.3f} s" not in other.out
    measured = run("train", "--dry-run", *TINY)
    assert measured.status == 0, measured.err
    assert "here it is 32 (model.hidden_size); training times the stages first (runtime.calibrate))" in measured.out
