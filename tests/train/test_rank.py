"""Whole trainings of a tiny model, in this process and in warm workers."""

import json
import math

import pytest
import torch
from effort import cases
from pool import Pool
from train.alone import of_kind, train_alone, train_in_pool
from train.conftest import Folder
from train.jobs import make_cluster, make_job

from skippipe.data.corpus import open_corpus
from skippipe.data.prepare import corpus_folder
from skippipe.model.build import build_stage_module
from skippipe.model.settings import model_config
from skippipe.plan_file import load_plan

FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]


@pytest.mark.parametrize("skip_ratio", cases([0.0, 0.25, 1 / 3], [0.0, 1 / 3]))
def test_loss_falls_on_real_text(skip_ratio: float, folder: Folder) -> None:
    job = make_job(
        schedule__skip_ratio=skip_ratio, schedule__microbatches_per_source=4, train__iterations=25,
        train__microbatch_size=4, cluster__activation_bytes=4 * 32 * 32 * 4, train__learning_rate=1e-2,
        train__validate_every=10,
    )  # fmt: skip
    reported = train_alone(job, folder("run"))
    validations = [event["loss"] for event in of_kind(reported, "validation")]
    assert [event["iteration"] for event in of_kind(reported, "validation")] == [0, 10, 20, 25]
    assert abs(validations[0] - math.log(1024)) < 0.1
    assert validations[-1] < validations[0] - 0.7
    (plan,) = of_kind(reported, "plan")
    assert plan["skip_ratio"] == skip_ratio
    assert plan["full"]["full"] >= plan["predicted_s"] * 0.999
    (summary,) = of_kind(reported, "summary")
    assert summary["loss_after"] == validations[-1]
    assert summary["measured_s"] > 0


def test_validation_is_the_plain_models_loss(folder: Folder, pool: Pool) -> None:
    job = make_job(train__iterations=1, train__learning_rate=0.0, schedule__skip_ratio=1 / 3)
    reported = train_in_pool(pool, job, FOUR, folder("run"))
    config = model_config(job.model)
    whole = build_stage_module(config, stage=0, layers=range(4), first=True, seed=job.train.seed).eval()
    with corpus_folder(job.data) as text:
        tokens = open_corpus(text).validation(job.data.sequence, job.data.validation_blocks).tokens.astype("int64")
    blocks = torch.from_numpy(tokens)
    with torch.no_grad():
        hidden = whole(whole.embed(blocks[:, :-1]))[0]
        loss = float(whole.loss(hidden, blocks[:, 1:])) / blocks[:, 1:].numel()
    for event in of_kind(reported, "validation"):
        assert event["loss"] == pytest.approx(loss, abs=1e-5)
        assert event["tokens"] == 16 * 32


def test_any_cut_and_any_number_of_processes_learn_the_same(folder: Folder, pool: Pool) -> None:
    """Without skips and swaps, the loss curve depends neither on the stages nor on who serves them."""
    full = {"schedule__skip_ratio": 0.0, "schedule__max_swaps": 0, "train__iterations": 4, "train__dtype": "float64"}
    alone = train_alone(make_job(**full), folder("alone"))
    two = [("local-0", "local-3"), ("local-2", "local-1")]
    runs = [
        train_in_pool(pool, make_job(**full, runtime__calibrate=True), FOUR, folder("four")),
        train_in_pool(pool, make_job(**full, train__layers=[1, 2, 1]), two, folder("two")),
    ]
    for reported in runs:
        for mine, theirs in zip(of_kind(reported, "iteration"), of_kind(alone, "iteration"), strict=True):
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
            assert mine["norm"] == pytest.approx(theirs["norm"], rel=1e-9)


def test_what_a_run_leaves(folder: Folder, pool: Pool) -> None:
    path = folder("run")
    job = make_job(runtime__calibrate=True, train__validate_every=2)
    reported = train_in_pool(pool, job, FOUR, path)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert lines == reported
    assert [event["iteration"] for event in of_kind(reported, "iteration")] == [1, 2, 3, 4]
    plan = load_plan(str(path / "plan.json"))
    assert plan.layers == [2, 1, 1]
    assert plan.model is not None
    assert json.loads(plan.model)["hidden"] == 32
    assert plan.cluster.source is not None
    assert "measured" in plan.cluster.source
    assert min(plan.cluster.forward_s) > 0
    assert plan.cluster.activation_bytes == 2 * 32 * 32 * 4
    assert json.loads((path / "cluster.json").read_text())["nodes"][0]["name"] == "local-0"
    assert list((path / "tensorboard").iterdir())
    again = train_alone(make_job(plan=str(path / "plan.json"), train__iterations=1), folder("again"))
    alone = plan.on_processors([0] * 4).predicted.iteration_s
    (said,) = of_kind(again, "plan")
    assert said["predicted_s"] == alone
    # One rank runs the tasks of all nodes one after the other.
    tasks = plan.task_arrays()
    assert alone >= (tasks["end_s"] - tasks["start_s"]).sum() - 1e-9


def test_router_losses_and_visits(folder: Folder) -> None:
    """Experts and `per_visit` go through the same loop."""
    job = make_job(train__stage_gradient="per_visit", train__iterations=2)
    job.model |= {
        "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1, "output_router_logits": True,
        "router_aux_loss_coef": 0.1,
    }  # fmt: skip
    reported = train_alone(job, folder("run"))
    exact = make_job(train__iterations=2)
    exact.model = dict(job.model)
    assert (
        of_kind(reported, "iteration")[0]["norm"] > of_kind(train_alone(exact, folder("exact")), "iteration")[0]["norm"]
    )


def test_divergence_is_an_error(folder: Folder) -> None:
    job = make_job(train__learning_rate=1e30, train__clip_norm=None, train__iterations=6)
    with pytest.raises(ArithmeticError, match=r"training has diverged: the norm of the gradient is (nan|inf) in iter"):
        train_alone(job, folder("run"))


def test_a_plan_that_its_stages_cannot_hold(folder: Folder) -> None:
    job = make_job(cluster=make_cluster(6, [2, 1, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"model.num_hidden_layers: expected at least the number of stages, 5, got 4"):
        train_alone(job, folder("run"))
