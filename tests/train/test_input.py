"""What a user can get wrong on the command line of `skippipe train`: exit status 2, one message, no file left."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from train.alone import free_port
from train.jobs import TINY

Refused = Callable[..., str]
Run = Callable[..., Any]


@pytest.fixture
def plan_file(run: Run, tmp_path: Path) -> Path:
    """A plan of `local4` that was made for the tiny model."""
    result = run(
        "plan", "cluster=local4", "planner.work_limit=100", "schedule.microbatches_per_source=3", "output=p.json"
    )
    assert result.status == 0, result.err
    content = json.loads((tmp_path / "p.json").read_text())
    content["layers"] = [2, 1, 1]
    content["model"] = {"hidden": 32, "layers": 4, "microbatch_size": 2, "sequence": 32, "wire_dtype": "float32"}
    (tmp_path / "p.json").write_text(json.dumps(content))
    return tmp_path / "p.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.learning_rate=nan"], "train.learning_rate: expected a finite number of at least 0, got nan"),
        (["train.iterations=0"], "train.iterations: expected an integer of at least 1, got 0"),
        (["train.stage_gradient=mean"], "train.stage_gradient: expected one of exact, per_visit, got mean"),
        (["runtime.backend=mpi"], "runtime.backend: expected one of auto, gloo, nccl, got mpi"),
        (["runtime.timeout=3"], "runtime.timeout: unknown key; did you mean runtime.timeout_s?"),
        (["model=gpt9"], "model: expected one of gemma2_tiny, gemma3_tiny, gpt2_tiny, gpt_neox_tiny, "),
        (["data.training=[missing.txt]"], "data.training[0]: no such file: missing.txt"),
        (["data.validation=[a/*.txt]"], "data.validation[0]: no such file: a/*.txt"),
        (["data.tokenizer=missing.json"], "data.tokenizer: no such file: missing.json"),
        (["plan=missing.json"], "missing.json: cannot be read"),
        (["allocate.layers=auto", "runtime.calibrate=false"], "runtime.calibrate: expected true, as allocate"),
        (["allocate.decoder_layers=4"], "allocate.decoder_layers: expected null in training, got 4"),
        (["allocate.sources=[4]"], "allocate.sources[0]: expected different numbers below 4, got 4"),
        (["cluster.file=missing.json"], "missing.json: cannot be read"),
        (["runtime.processes=5"], "runtime.processes: expected at most the number of nodes, 4, got 5"),
        (["runtime.node=local-0"], "runtime.node: expected null where no torchrun has set RANK and WORLD_SIZE"),
        (["checkpoint.key=missing.key"], "checkpoint.key: missing.key cannot be read"),
        (["folder=/proc/none"], "folder: /proc/none cannot be written"),
        (["folder=r\udcff"], "folder: expected a folder whose name is UTF-8, got "),
    ],
)  # fmt: skip
def test_refused_at_once(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused("train", *arguments)


def test_a_folder_that_is_not_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    result = run("train", "folder=run")
    assert result.status == 2
    assert "folder: expected a new folder or that of a run, got run with other files in it" in result.err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


def test_a_port_in_use(refused: Refused) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = door.getsockname()[1]
        message = refused("train", f"runtime.port={port}")
    assert f"runtime.port: expected a free port, got {port}: Address already in use" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.hidden_size=64", "model.hidden_size: expected 32, got 64"),
        ("model.num_hidden_layers=6", "model.num_hidden_layers: expected 4, got 6"),
        ("train.microbatch_size=4", "train.microbatch_size: expected 2, got 4"),
        ("data.sequence=16", "data.sequence: expected 32, got 16"),
        ("train.dtype=float64", "runtime.wire_dtype: expected float32, got float64"),
    ],
)
def test_a_plan_for_another_model(change: str, message: str, plan_file: Path, refused: Refused) -> None:
    said = refused("train", *TINY, f"plan={plan_file}", change)
    assert f"{plan_file}: {message}; the plan is for another model" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.hidden_sise=3", "model.hidden_sise: unknown key"),
        ("+model.hidden_sise=3", "model.hidden_sise: unknown setting of llama"),
        ("model.model_type=bert", "bert"),
        ("model.vocab_size=1000", "model.vocab_size: expected at least the 1024 entries of the tokenizer, got 1000"),
        ("data.sequence=65", "data.sequence: expected at most model.max_position_embeddings (64), got 65"),
        (
            "data.validation_blocks=1",
            "data.validation: expected at least one microbatch of 2 sequences (train.microbatch_size), got",
        ),
        (
            "train.layers=[1,1,1]",
            "train.layers: expected 3 positive numbers that add up to the model's 4 layers, got [1, 1, 1]",
        ),
        ("model.num_hidden_layers=2", "model.num_hidden_layers: expected at least the number of stages, 3, got 2"),
        ("runtime.memory_bytes=1000", "runtime.memory_bytes: expected at least the "),
    ],
)
def test_refused_by_a_dry_run(change: str, message: str, run: Run, tmp_path: Path) -> None:
    result = run("train", "--dry-run", *TINY, change)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_dry_run(run: Run, plan_file: Path, tmp_path: Path) -> None:
    for arguments in ([f"plan={plan_file}"], ["runtime.processes=2"], ["cluster=geo20", "model.num_hidden_layers=6"]):
        result = run("train", "--dry-run", *TINY, *arguments)
        assert result.status == 0, result.err
        assert "proved deadlock-free" in result.out
        assert "MiB" in result.out
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make this process rank 0 of a job of one, as torchrun would."""

    def call(**changes: str) -> None:
        values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} | changes
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return call


def test_one_rank_of_a_job(torchrun: Callable[..., None], run: Run, plan_file: Path, tmp_path: Path) -> None:
    torchrun()
    names = ",".join(f"local-{i}" for i in range(4))
    result = run("train", *TINY, f"plan={plan_file}", f"runtime.node={names}", "train.iterations=2", "folder=run")
    assert result.status == 0, result.err
    assert "iteration    2  loss" in result.out
    assert (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("local-0,local-1,local-2", "runtime.node: nodes and ranks do not match: no rank serves: local-3"),
        ("local-0,local-0", "runtime.node: nodes and ranks do not match: named more than once: local-0"),
    ],
)
def test_names_that_do_not_match(
    node: str, message: str, torchrun: Callable[..., None], plan_file: Path, refused: Refused
) -> None:
    torchrun()
    reported = refused("train", *TINY, f"plan={plan_file}", f"runtime.node={node}")
    assert f"node {node.replace(',', ', ')} (rank 0): {message}" in reported


def test_a_rank_by_accident(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    """As in a shell inside a job of Slurm or MPI."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    reported = refused("train", *TINY)
    assert (
        "runtime.node: expected nodes of the plan (local-0, local-1, local-2, local-3), got null, which is" in reported
    )
    assert "RANK and WORLD_SIZE in the environment make this process one rank of a job" in reported


def test_a_rank_beyond_the_job(torchrun: Callable[..., None], refused: Refused) -> None:
    torchrun(RANK="2", WORLD_SIZE="2")
    reported = refused("train", *TINY, "runtime.node=local-1")
    assert "environment variable RANK: expected a number below WORLD_SIZE (2), got 2" in reported


def test_a_rendezvous_that_nobody_serves(torchrun: Callable[..., None], run: Run, tmp_path: Path) -> None:
    torchrun(RANK="1", WORLD_SIZE="2")
    result = run("train", *TINY, "runtime.node=local-1", "runtime.start_timeout_s=1")
    assert result.status == 1
    assert "node local-1 (rank 1): the rendezvous at 127.0.0.1:" in result.err
    assert "cannot be reached within 1 s" in result.err
    assert list(tmp_path.iterdir()) == []
