"""`runtime=local`: one process for all nodes learns what many processes learn; and skip ratios that change."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from effort import cases
from pool import Pool
from torch import Tensor
from train.alone import of_kind, only_rank, train_alone, train_in_pool
from train.conftest import Folder
from train.jobs import make_cluster, make_job
from train.test_resume import stopping_at

from skippipe.checkpoint import open_checkpoint
from skippipe.config import PhaseConfig, PhasesConfig
from skippipe.errors import InputError
from skippipe.model.build import build_stage_module
from skippipe.model.settings import model_config
from skippipe.plan_file import load_plan
from skippipe.train.config import TrainJob
from skippipe.train.connect.rank_spec import check_single_process
from skippipe.train.rank import train_rank
from skippipe.train.resolve.layout import resolve_layout
from skippipe.train.resolve.resolve import resolve

ONE_EACH = {"cluster": make_cluster(3, [1, 1, 1]), "schedule__microbatches_per_source": 6, "schedule__skip_ratio": 0.3}
TAIL = PhasesConfig([PhaseConfig(0.5), PhaseConfig(skip_ratio=0.0)])
THREE = [("local-0",), ("local-1",), ("local-2",)]


def weights(path: Path, job: TrainJob) -> dict[str, Tensor]:
    """Weights of a run's newest checkpoint."""
    config = model_config(job.model)
    whole = build_stage_module(config, stage=0, layers=range(config.num_hidden_layers), first=True, seed=99)
    named = dict(whole.named_parameters())
    open_checkpoint(path).load(dict(named))
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def test_one_by_one_it_is_bit_equal_to_many_processes(folder: Folder, pool: Pool) -> None:
    """float32, one replica of each stage, tied embeddings, clipping, a skip ratio that changes on the way."""
    changes: dict[str, Any] = {"phases": TAIL, "train__validate_every": 3}
    job = make_job(**ONE_EACH, **changes, train__iterations=6)
    there, here = folder("many"), folder("alone")
    many, alone = train_in_pool(pool, job, THREE, there), train_alone(job, here)
    for kind, keys in (("iteration", ("loss", "norm", "learning_rate")), ("validation", ("loss",))):
        pairs = list(zip(of_kind(many, kind), of_kind(alone, kind), strict=True))
        assert pairs
        for theirs, ours in pairs:
            assert [theirs[key] for key in keys] == [ours[key] for key in keys]
    ours, theirs = weights(here, job), weights(there, job)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_grouped_it_learns_the_same(folder: Folder) -> None:
    base: dict[str, Any] = {**ONE_EACH, "train__dtype": "float64", "train__iterations": 5}
    plain = train_alone(make_job(**base), folder("plain"))
    grouped = train_alone(make_job(**base, runtime__group=4), folder("grouped"))
    for kind in ("iteration", "validation"):
        for theirs, ours in zip(of_kind(plain, kind), of_kind(grouped, kind), strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
    assert "predicted_s" not in of_kind(grouped, "iteration")[0]
    assert of_kind(grouped, "summary")[0]["predicted_s"] is None


def test_autocast_stays_near(folder: Folder) -> None:
    base: dict[str, Any] = {**ONE_EACH, "train__iterations": 5, "train__validate_training": True}
    plain = train_alone(make_job(**base), folder("plain"))
    path = folder("cast")
    cast = train_alone(make_job(**base, runtime__group=8, runtime__autocast="bfloat16"), path)
    theirs, ours = of_kind(plain, "validation")[-1], of_kind(cast, "validation")[-1]
    for key in ("loss", "training_loss"):
        assert ours[key] == pytest.approx(theirs[key], abs=0.02)
        assert ours[key] != theirs[key]
    kept = weights(path, make_job(**base))
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in kept.values()), "masters are float32"


@pytest.mark.parametrize("profile", [3, 9])
def test_a_profile_says_where_time_goes(folder: Folder, profile: int) -> None:
    """Also where a validation lies between, which is not counted, or the run ends before it does."""
    path = folder("run")
    settings: dict[str, Any] = {"runtime__group": 8, "runtime__profile": profile, "train__validate_every": 9}
    reported = train_alone(make_job(**ONE_EACH, train__iterations=12, data__validation_blocks=200, **settings), path)
    (summary,) = of_kind(reported, "summary")
    shares = summary["breakdown"]["shares"]
    assert summary["breakdown"]["iterations"] == min(profile, 4)
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.05)
    assert shares["products"] > 0
    assert (path / "trace.json").stat().st_size > 10_000
    assert "mfu" not in summary, "nobody knows what a CPU could do"


def test_skip_ratios_change_and_a_run_goes_on_in_the_middle(folder: Folder) -> None:
    """Interrupted in either phase, it resumes with its plans, to the same weights."""
    phases = PhasesConfig([PhaseConfig(0.4), PhaseConfig(0.4, 0.0), PhaseConfig(skip_ratio=0.5)])
    job = make_job(train__iterations=10, phases=phases, train__validate_every=None)
    beside = folder("whole")
    whole = train_alone(job, beside)
    changed = of_kind(whole, "plan_changed")
    assert [(event["iteration"], event["skip_ratio"]) for event in changed] == [(5, 0.0), (9, 0.5)]
    for after, skip_ratio in ((0, 1 / 3), (4, 0.0), (8, 0.5)):
        name = f"plan_after_{after}.json" if after else "plan.json"
        assert load_plan(str(beside / name)).skip_ratio == pytest.approx(skip_ratio)
    for stop in cases((2, 4, 6, 8), (2, 8)):
        path = folder(f"cut at {stop}")
        reported: list[Any] = []
        spec = resolve(job)
        assert train_rank(spec, only_rank(spec), path, stopping_at(stop, reported)) is not None
        again = train_alone(job, path)
        assert of_kind(again, "resumed")[0]["plan_kept"]
        losses = {e["iteration"]: e["loss"] for e in of_kind(whole, "iteration")}
        assert all(losses[e["iteration"]] == e["loss"] for e in of_kind(again, "iteration"))
        ours, theirs = weights(path, job), weights(beside, job)
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_what_one_process_alone_can_do() -> None:
    spec = resolve(make_job(runtime__group=2))
    check_single_process(spec, 1)
    with pytest.raises(InputError, match=r"runtime.group: expected .*runtime=local"):
        check_single_process(spec, 2)


@pytest.mark.parametrize(
    ("device", "message"), [("gpu", "auto, cpu, cuda"), ("meta", "auto, cpu, cuda"), ("cuda:99", "one of the . GPUs")]
)
def test_devices_that_are_not_there(device: str, message: str, folder: Folder) -> None:
    with pytest.raises(InputError, match=f"runtime.device: expected {message}.*, got {device}"):
        train_alone(make_job(runtime__device=device), folder("run"))


def test_router_losses_are_taken_one_by_one(folder: Folder) -> None:
    job = make_job(runtime__group=2)
    job.model |= {
        "model_type": "mixtral",
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "output_router_logits": True,
    }
    with pytest.raises(InputError, match=r"runtime.group: expected 1 with model.output_router_logits, got 2"):
        train_alone(job, folder("run"))


def test_a_node_that_is_left_out_changes_nothing(folder: Folder, pool: Pool) -> None:
    """It has no process, and the others learn what they learn by the plan without it."""
    job = make_job(**ONE_EACH)
    plain, other = folder("plain"), folder("other")
    without = train_in_pool(pool, job, THREE, plain)
    plan = json.loads((plain / "plan.json").read_text())
    plan["cluster"]["nodes"].append(plan["cluster"]["nodes"][0] | {"name": "local-3"})
    plan["cluster"]["region_of"].append(0)
    plan["absent_nodes"] = [3]
    path = other.parent / "four.plan.json"
    path.write_text(json.dumps(plan))
    planned = dataclasses.replace(job, plan=str(path))
    assert resolve_layout(planned).used == ["local-0", "local-1", "local-2"]
    found = train_in_pool(pool, planned, THREE, other)
    losses = [[event["loss"] for event in of_kind(events, "iteration")] for events in (without, found)]
    assert losses[0] == losses[1] != []
