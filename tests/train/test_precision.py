"""Number types, recomputation and chunks: the same for one process and many, and near what full precision learns."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pool as pools
import pytest
import torch
from pool import Pool
from train.alone import of_kind, train_alone, train_in_pool
from train.conftest import Folder
from train.jobs import make_cluster, make_job
from train.test_local import weights

from skippipe.checkpoint import open_checkpoint
from skippipe.errors import InputError
from skippipe.train.loop import loop
from skippipe.train.loop.engine import DivergedError
from skippipe.train.loop.loss_scale import GROWTH_ITERATIONS, LARGEST, LossScale
from skippipe.train.observe import utilization
from skippipe.train.resolve.resolve import resolve

ONE_EACH: dict[str, Any] = {
    "cluster": make_cluster(3, [1, 1, 1]),
    "schedule__microbatches_per_source": 6,
    "schedule__skip_ratio": 0.3,
}
THREE = [("local-0",), ("local-1",), ("local-2",)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of the plain training in float32."""
    return losses(train_alone(make_job(**ONE_EACH), tmp_path_factory.mktemp("plain")))


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for kind in ("iteration", "validation") for event in of_kind(events, kind)]


def test_many_processes_compute_as_one_does(folder: Folder, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 by autocast, every second layer recomputed, the loss in chunks; rank 0 is profiled."""
    settings = {
        "autocast": "bfloat16", "activation_checkpointing": 2, "loss_chunk": 20, "profile": 1, "deterministic": True,
    }  # fmt: skip
    job = make_job(**ONE_EACH, **{f"runtime__{key}": value for key, value in settings.items()}, train__iterations=5)
    monkeypatch.setattr(utilization, "WARM_UP", pools.WARM_UP)
    there, here = folder("many"), folder("alone")
    many, alone = train_in_pool(pool, job, THREE, there), train_alone(job, here)
    assert losses(many) == losses(alone)
    ours, theirs = weights(here, job), weights(there, job)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    for events, path in ((many, there), (alone, here)):
        assert of_kind(events, "summary")[0]["breakdown"]["iterations"] == 1
        assert (path / "trace.json").stat().st_size > 1000


@pytest.mark.parametrize("every", [1, 3])
def test_recomputed_layers_change_nothing(every: int, plain: list[float], folder: Folder) -> None:
    recomputed = train_alone(make_job(**ONE_EACH, runtime__activation_checkpointing=every), folder("recomputed"))
    assert plain == losses(recomputed)


def test_chunks_change_rounding_alone(folder: Folder) -> None:
    base = {**ONE_EACH, "train__dtype": "float64"}
    plain = train_alone(make_job(**base), folder("plain"))
    chunked = train_alone(make_job(**base, runtime__loss_chunk=7), folder("chunked"))
    assert losses(chunked) == pytest.approx(losses(plain), rel=1e-10)


@pytest.mark.parametrize("wire", ["bfloat16", "float8_e4m3fn", "int8"])
def test_narrow_messages_stay_near(wire: str, plain: list[float], folder: Folder, pool: Pool) -> None:
    job = make_job(**ONE_EACH, runtime__wire_dtype=wire)
    narrow = train_in_pool(pool, job, THREE, folder("narrow"))
    assert losses(narrow) == pytest.approx(plain, abs=0.02)
    assert losses(narrow) != plain


def test_float16_messages_need_a_scaled_loss() -> None:
    with pytest.raises(InputError, match=r"runtime.wire_dtype: expected another dtype with runtime.autocast=None"):
        resolve(make_job(runtime__wire_dtype="float16"))
    resolve(make_job(runtime__wire_dtype="float16", runtime__autocast="float16"))


def test_float16_many_processes_compute_as_one_does(folder: Folder, pool: Pool) -> None:
    job = make_job(**ONE_EACH, runtime__autocast="float16", train__iterations=5)
    many, alone = train_in_pool(pool, job, THREE, folder("many")), train_alone(job, folder("alone"))
    assert losses(many) == losses(alone)
    assert {event["loss_scale"] for event in of_kind(many, "iteration")} == {2.0**16}
    plain = train_alone(make_job(**ONE_EACH, train__iterations=5), folder("plain"))
    assert losses(many) == pytest.approx(losses(plain), abs=0.02)


def test_an_iteration_that_overflows_takes_no_step(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the run goes on as one does that is resumed from a checkpoint in between."""
    monkeypatch.setattr(loop, "LossScale", partial(LossScale, 2.0**32))
    base = {**ONE_EACH, "runtime__autocast": "float16", "train__iterations": 16, "checkpoint__every": 3}
    path = folder("run")
    events = train_alone(make_job(**base, checkpoint__keep=20), path)
    iterations = of_kind(events, "iteration")
    overflowed = [event["norm"] is None for event in iterations]
    assert overflowed[0]
    assert not overflowed[-1]
    for event, after in itertools.pairwise(iterations):
        assert after["loss_scale"] == event["loss_scale"] / (2 if event["norm"] is None else 1)
        assert after["learning_rate"] != event["learning_rate"], "the schedule goes by the tokens read"
    first = overflowed.index(False)
    assert first > 3, "so that the checkpoint after 3 iterations has the initial weights"
    checkpoint = open_checkpoint(path / "checkpoints" / _name(path, 3))
    assert checkpoint.state.loss_scale == iterations[3]["loss_scale"]
    resumed = train_alone(make_job(**base, checkpoint__resume=str(checkpoint.path)), folder("resumed"))
    theirs = [event for event in iterations if event["iteration"] > 3]
    assert [event["loss"] for event in of_kind(resumed, "iteration")] == [event["loss"] for event in theirs]
    assert [event["loss_scale"] for event in of_kind(resumed, "iteration")] == [e["loss_scale"] for e in theirs]


def _name(path: Path, iteration: int) -> str:
    return next(entry.name for entry in (path / "checkpoints").iterdir() if int(entry.name.split("-")[-1]) == iteration)


def test_a_gradient_that_overflows_unscaled_is_an_error(folder: Folder) -> None:
    job = make_job(**ONE_EACH, runtime__autocast="float16", train__learning_rate=1e30, train__clip_norm=None)
    with pytest.raises(DivergedError):
        train_alone(job, folder("run"))


def test_the_scale_halves_at_an_overflow_and_doubles_after_long_without() -> None:
    scale = LossScale(1024.0)
    assert scale.after(overflow=True) == LossScale(512.0)
    for _ in range(GROWTH_ITERATIONS - 1):
        scale = scale.after(overflow=False)
    assert scale.factor == 1024.0
    assert scale.after(overflow=True) == LossScale(512.0)
    assert scale.after(overflow=False) == LossScale(2048.0)
    assert LossScale(LARGEST, GROWTH_ITERATIONS - 1).after(overflow=False).factor == LARGEST
