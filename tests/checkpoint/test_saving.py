"""Checkpoints saved by several ranks and loaded by one: complete or not at all."""

import dataclasses
import hashlib
import json
import math
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool
from safetensors.torch import save_file
from torch import distributed as dist
from train.jobs import make_job

from skippipe.checkpoint import manifest, open_checkpoint
from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory
from skippipe.checkpoint.exchange import gather_json
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.reading import latest_complete, open_shared
from skippipe.checkpoint.saving import CheckpointContents, CheckpointSaver
from skippipe.checkpoint.state import TrainingState
from skippipe.checkpoint.tensors import tensor_file
from skippipe.errors import InputError
from skippipe.planning import make_plan, planning_job

WORLD = 3
SIZE = 20_000


def a_state(iteration: int) -> TrainingState:
    return TrainingState(
        iteration,
        100 * iteration,
        7 * iteration,
        seed=1,
        text="t",
        model={"model_type": "llama"},
        planning="p",
        layers=[0],
        new_layers="init",
    )


def a_plan() -> str:
    job = make_job()
    question = dataclasses.replace(planning_job(job.cluster, job.allocate, job.schedule), scope=None)
    return make_plan(question, "full", job.planner).to_json()


PLAN = a_plan()


def identity(plan: str) -> dict[str, Any]:
    """A plan without solver statistics, which differ between workers."""
    return {**json.loads(plan), "solver": None}


def tensor_of(name: str, iteration: int) -> torch.Tensor:
    """Values determined by name and iteration."""
    seed = int.from_bytes(hashlib.sha256(f"{name} {iteration}".encode()).digest()[:6], "big")
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def names_of(rank: int) -> list[str]:
    return [f"weights/layer.{3 * i + rank}" for i in range(2)]


def save_in_pool(
    rank: int, folder: Path, iterations: list[int], keep: int, key: bytes, limits: dict[int, int]
) -> list[tuple[int, str | None, int]]:
    """In a warm worker: save after some iterations; `limits` lets no file of an iteration grow beyond so many bytes."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    saver = CheckpointSaver(CheckpointDirectory(folder / CHECKPOINTS), group, key=key if rank == 0 else None, keep=keep)
    results = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for iteration in iterations:
        limit = limits.get(iteration)
        if limit is not None and rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        tensors = {name: tensor_of(name, iteration) for name in names_of(rank)}
        saver.save(tensors, CheckpointContents(a_state(iteration), PLAN, {}, "{}"))
        saver.wait_copied()
        for tensor in tensors.values():
            tensor.zero_()  # training continues
        saver.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        (done,) = saver.take_results()
        assert done.iteration == iteration
        results.append((iteration, None if done.error is None else str(done.error), done.bytes))
    dist.destroy_process_group(group)
    return results


Save = Callable[..., list[Any]]


@pytest.fixture
def save(pool: Pool, tmp_path: Path) -> Save:
    """Save checkpoints in a folder; returns each rank's results."""

    def call(
        iterations: list[int], keep: int = 5, limits: dict[int, int] | None = None, key: bytes | None = None
    ) -> list[Any]:
        secret = key or load_key(None)
        return pool.run(save_in_pool, [(tmp_path, iterations, keep, secret, limits or {})] * WORLD)

    return call


def loaded(path: Path) -> dict[str, torch.Tensor]:
    tensors = {name.removeprefix("weights/"): torch.zeros(SIZE) for rank in range(WORLD) for name in names_of(rank)}
    open_checkpoint(path).load(tensors)
    return tensors


def check_holds(path: Path, iteration: int) -> None:
    assert open_checkpoint(path).state == a_state(iteration)
    for name, tensor in loaded(path).items():
        assert torch.equal(tensor, tensor_of(f"weights/{name}", iteration)), name


def test_loaded_tensors_equal_the_copied_ones(save: Save, tmp_path: Path) -> None:
    results = save([3, 12])
    assert results == [results[0]] * WORLD, "all ranks know the same"
    assert [(iteration, error) for iteration, error, _ in results[0]] == [(3, None), (12, None)]
    check_holds(tmp_path, 12)
    check_holds(tmp_path / CHECKPOINTS / "iteration-000003", 3)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tokenizer_json == "{}"
    assert identity(checkpoint.plan.to_json()) == identity(PLAN)
    sizes = sum(p.stat().st_size for p in checkpoint.path.rglob("*") if p.is_file() and p.name != manifest.MANIFEST)
    assert results[0][1][2] == sizes


def test_only_the_latest_are_kept(save: Save, tmp_path: Path) -> None:
    save([1, 2, 10, 11], keep=2)
    assert {path.name for path in (tmp_path / CHECKPOINTS).iterdir()} == {"iteration-000010", "iteration-000011"}


def test_saving_an_iteration_twice(save: Save, tmp_path: Path) -> None:
    save([4])
    save([4])
    check_holds(tmp_path, 4)
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["iteration-000004"]


@pytest.mark.parametrize("limit", [100, 40_000, 100_000])
def test_failure_to_write_on_one_rank(limit: int, save: Save, tmp_path: Path) -> None:
    results = save([1, 2, 3], limits={2: limit})
    for by_rank in results:
        (_, first, _), (_, error, _), (_, last, _) = by_rank
        assert (first, last) == (None, None)
        assert error.startswith("rank 1: ")
        assert "File too large" in error
    assert {path.name for path in (tmp_path / CHECKPOINTS).iterdir()} == {"iteration-000001", "iteration-000003"}
    check_holds(tmp_path / CHECKPOINTS / "iteration-000001", 1)


def save_with_forged_records(rank: int, folder: Path, records: object) -> str:
    """In a warm worker: save, with forged file records of rank 1."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    saver = CheckpointSaver(CheckpointDirectory(folder / CHECKPOINTS), group, key=load_key(None), keep=1)

    def gather_forged(mine: dict[str, Any], group: dist.ProcessGroup) -> list[Any]:
        """Of what a rank tells the others, its file records alone are a mapping."""
        is_forged = rank == 1 and isinstance(mine["value"], dict)
        return gather_json(mine | {"value": records} if is_forged else mine, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skippipe.checkpoint.saving.gather_json", gather_forged)
        saver.save({name: torch.ones(1) for name in names_of(rank)}, CheckpointContents(a_state(1), PLAN, {}, None))
        saver.wait()
    (done,) = saver.take_results()
    dist.destroy_process_group(group)
    return str(done.error)


OTHER = {"bytes": 2, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"plan.json": OTHER}, "rank 1: expected files of its own, got plan.json"),
        ({tensor_file(0): OTHER}, "rank 1: expected files of its own, got tensors/rank-00000.safetensors"),
        ({"../../x": OTHER}, "rank 1: expected files of its own, got ../../x"),
        ({tensor_file(1): OTHER | {"bytes": -1}}, "rank 1: expected bytes and sha256 of a file, got {'bytes': -1,"),
        ({tensor_file(1): {"bytes": 2, "sha256": "0"}}, "rank 1: expected bytes and sha256 of a file, got"),
        ({tensor_file(1): 5}, "rank 1: expected bytes and sha256 of a file, got 5"),
        ("x" * 2**21, "rank 1: expected at most 1048576 bytes"),
    ],
)
def test_file_records_of_other_ranks_are_validated(records: object, message: str, pool: Pool, tmp_path: Path) -> None:
    for error in pool.run(save_with_forged_records, [(tmp_path, records)] * 2):
        assert error.startswith(message)
    assert not list((tmp_path / CHECKPOINTS).glob("iteration-*"))


ODD = [math.nan, math.inf, -math.inf]


def save_odd_in_pool(rank: int, folder: Path, odd: float, dtype: torch.dtype) -> list[str | None]:
    """In a warm worker: save three times, with a non-finite number on rank 1 the second time."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    saver = CheckpointSaver(CheckpointDirectory(folder / CHECKPOINTS), group, key=load_key(None), keep=5)
    results: list[str | None] = []
    for iteration in (1, 2, 3):
        tensors = {name: torch.ones(3, 4, dtype=dtype) for name in names_of(rank)}
        if (rank, iteration) == (1, 2):
            tensors["weights/layer.4"][1, 2] = odd
        saver.save(tensors, CheckpointContents(a_state(iteration), PLAN, {}, None))
        saver.wait()
        results += [None if done.error is None else str(done.error) for done in saver.take_results()]
    dist.destroy_process_group(group)
    return results


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_non_finite_tensors_are_not_saved(odd: float, dtype: torch.dtype, pool: Pool, tmp_path: Path) -> None:
    message = f"rank 1: weights/layer.4: expected finite numbers, got {odd} at 6 (1 of 12 values)"
    assert pool.run(save_odd_in_pool, [(tmp_path, odd, dtype)] * 2) == [[None, message, None]] * 2
    assert sorted(path.name for path in (tmp_path / CHECKPOINTS).iterdir()) == ["iteration-000001", "iteration-000003"]


def test_checkpoint_with_non_finite_tensors_counts_as_damaged(save: Save, tmp_path: Path) -> None:
    """Even if the signature is valid: it is skipped like an unreadable one, and the one before is found."""
    save([1, 2])
    path = tmp_path / CHECKPOINTS / "iteration-000002"
    file = path / tensor_file(2)
    save_file({name: torch.tensor([1.0, math.nan]) for name in names_of(2)}, file)
    written = manifest.read_manifest(path, load_key(None))
    signed = dataclasses.replace(written, files={**written.files, tensor_file(2): manifest.hash_file(file)})
    (path / manifest.MANIFEST).write_text(signed.signed(load_key(None)))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.state.iteration == 1
    (reason,) = checkpoint.skipped
    assert reason == f"{file}: weights/layer.2: expected finite numbers, got nan at 1 (1 of 2 values)"
    with pytest.raises(InputError, match=r"expected finite numbers, got nan"):
        open_checkpoint(path)


def test_folder_cannot_be_created(save: Save, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).write_text("no folder")
    results = save([1])
    assert results == [results[0]] * WORLD
    assert results[0][0][1] == f"rank 0: {tmp_path / CHECKPOINTS / '.iteration-000001.new'}: Not a directory"
    assert (tmp_path / CHECKPOINTS).read_text() == "no folder"


def files_of(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def edit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, lengthen, edit, empty, Path.unlink])
def test_any_damage_is_detected(damage: Callable[[Path], None], save: Save, tmp_path: Path) -> None:
    save([1, 2])
    newest = tmp_path / CHECKPOINTS / "iteration-000002"
    kept = tmp_path / "kept"
    shutil.copytree(newest, kept)
    assert len(files_of(newest)) == 3 + 1 + WORLD  # state, plan, tokenizer; manifest; tensors
    for path in files_of(newest):
        damage(path)
        if path.name != manifest.MANIFEST or damage is not Path.unlink:  # then it is no checkpoint at all
            with pytest.raises(InputError, match=str(path)):
                open_checkpoint(newest)
        found, damaged = latest_complete(CheckpointDirectory(tmp_path / CHECKPOINTS), load_key(None))
        assert found is not None
        assert found.state.iteration == 1
        assert len(damaged) == 1
        assert str(path) in damaged[0]
        check_holds(tmp_path, 1)
        shutil.rmtree(newest)
        shutil.copytree(kept, newest)
    check_holds(tmp_path, 2)


def test_no_complete_checkpoint(save: Save, tmp_path: Path) -> None:
    save([1])
    edit(tmp_path / CHECKPOINTS / "iteration-000001" / "state.json")
    with pytest.raises(InputError, match=r"no complete checkpoint in .*state\.json: sha256 mismatch"):
        open_checkpoint(tmp_path)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"expected a folder with manifest\.json or checkpoints/, got .* with neither"):
        open_checkpoint(tmp_path)


def test_forged_checkpoints_are_refused(save: Save, tmp_path: Path) -> None:
    """Somebody without the key replaces the weights and updates every hash."""
    save([1])
    path = tmp_path / CHECKPOINTS / "iteration-000001"
    file = path / tensor_file(1)
    save_file({"weights/layer.1": torch.full([SIZE], 7.0)}, file)
    content = json.loads((path / manifest.MANIFEST).read_text())
    content["files"][tensor_file(1)] = dataclasses.asdict(manifest.hash_file(file))
    (path / manifest.MANIFEST).write_text(json.dumps(content))
    with pytest.raises(InputError, match="signature mismatch"):
        open_checkpoint(path)
    signed = manifest.Manifest(1, {n: manifest.FileRecord(**record) for n, record in content["files"].items()})
    (path / manifest.MANIFEST).write_text(signed.signed(b"another secret, as long as need be"))
    with pytest.raises(InputError, match=r"signed with another checkpoint\.key"):
        open_checkpoint(path)
    (path / manifest.MANIFEST).write_text(signed.signed(load_key(None)))  # the proof that all else fits
    tensor = torch.zeros(SIZE)
    open_checkpoint(path).load({"layer.1": tensor})
    assert float(tensor[0]) == 7.0


def test_a_checkpoint_contains_no_pickle(save: Save, tmp_path: Path) -> None:
    save([1])
    for path in files_of(tmp_path / CHECKPOINTS):
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(path.read_bytes())
        assert path.suffix in {".json", ".safetensors"}


def test_missing_or_misshaped_tensor(save: Save, tmp_path: Path) -> None:
    save([1])
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"weights/layer\.9: no such tensor: checkpoint of another model"):
        checkpoint.load({"layer.9": torch.zeros(SIZE)})
    with pytest.raises(InputError, match=r"weights/layer\.0: expected shape \(3, 4\), got \(20000,\)"):
        checkpoint.load({"layer.0": torch.zeros(3, 4)})


def test_tied_tensor_needs_no_entry(save: Save, tmp_path: Path) -> None:
    save([1])
    tied = torch.zeros(SIZE)
    open_checkpoint(tmp_path).load({"head": tied, "layer.0": tied})
    assert torch.equal(tied, tensor_of("weights/layer.0", 1))


def test_leftovers_of_a_killed_process_are_removed(save: Save, tmp_path: Path) -> None:
    save([1])
    directory = CheckpointDirectory(tmp_path / CHECKPOINTS)
    directory.create_staging(2).joinpath("state.json").write_text("{")
    (tmp_path / CHECKPOINTS / ".iteration-000000.old").mkdir()
    (tmp_path / CHECKPOINTS / "of somebody else").mkdir()
    check_holds(tmp_path, 1)
    directory.clean_up()
    assert {path.name for path in (tmp_path / CHECKPOINTS).iterdir()} == {"iteration-000001", "of somebody else"}


def test_checkpoint_differs_from_the_verified_one(save: Save, tmp_path: Path) -> None:
    save([1])
    save([2])
    one, two = (tmp_path / CHECKPOINTS / f"iteration-00000{i}" for i in (1, 2))
    known = open_checkpoint(one).manifest.sha256
    assert open_shared(one, known, load_key(None)).state == a_state(1)
    with pytest.raises(InputError, match="differs from the checkpoint on rank 0"):
        open_shared(two, known, load_key(None))
    with pytest.raises(InputError, match="all nodes must share one folder"):
        open_shared(tmp_path / "nowhere", known, load_key(None))
    with pytest.raises(InputError, match="signature mismatch"):
        open_shared(one, known, b"what another node has for a secret")
    one.rename(tmp_path / CHECKPOINTS / "iteration-000009")
    with pytest.raises(InputError, match="checkpoint of iteration 1 under another name"):
        open_checkpoint(tmp_path / CHECKPOINTS / "iteration-000009")
    check_holds(tmp_path, 2)


def test_a_checkpoint_about_to_be_replaced_is_restored(save: Save, tmp_path: Path) -> None:
    """Killed between the two renames of `publish`."""
    save([1])
    path = tmp_path / CHECKPOINTS / "iteration-000001"
    path.rename(path.with_name(".iteration-000001.replaced"))
    CheckpointDirectory(tmp_path / CHECKPOINTS).clean_up()
    check_holds(tmp_path, 1)
