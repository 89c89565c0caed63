"""`skippipe measure`: what its ranks measure together, what it writes, and what planner and training make of it."""

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pool as pools
import pytest
import torch
from conftest import Run
from train.alone import free_port, record_into, train_in_pool
from train.conftest import Folder
from train.jobs import TINY, TINY_MODEL, make_cluster, make_job

from skippipe.cluster import Cluster, load_cluster
from skippipe.config import AllocateConfig, LinkProfile, PlannerConfig, ScheduleConfig, SitesConfig
from skippipe.devices import Precision
from skippipe.measure.links import (
    FULL_MESSAGES,
    FULL_S,
    LOCAL_BANDWIDTH,
    PART,
    DirectionTimes,
    full_messages,
    link_times,
)
from skippipe.measure.memory import held_bytes
from skippipe.measure.node import layer_share, layers_to_time
from skippipe.measure.timing import Timing, summarize
from skippipe.model.memory import stage_memory
from skippipe.model.settings import model_config
from skippipe.plan_file import save_plan
from skippipe.planning import make_plan, planning_job
from skippipe.runtime.message import MessageSpec
from skippipe.train.config import RuntimeConfig
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.measuring.config import MeasuredData, MeasuredTraining, MeasureJob
from skippipe.train.measuring.launch import resolve
from skippipe.train.measuring.rank import measure_rank
from skippipe.train.prepare.stages import build_probe
from skippipe.train.resolve.spec import DeviceSpec
from skippipe.workload import workload_of

THREE = [("local-0",), ("local-1",), ("local-2",)]
TINY_MEASURED = [setting for setting in TINY if not setting.startswith(("data.validation", "schedule", "planner"))]


def make_measure_job(cluster: SitesConfig, **runtime: Any) -> MeasureJob:
    return MeasureJob(
        cluster=cluster,
        model=dict(TINY_MODEL),
        data=MeasuredData(sequence=32),
        train=MeasuredTraining(microbatch_size=2),
        runtime=RuntimeConfig(timeout_s=20.0, start_timeout_s=20.0, **runtime),
    )


def measure_in_pool(rank: int, job: MeasureJob, names: list[tuple[str, ...]], port: int, back: Path) -> list[Any]:
    """In a warm worker: leave its group, measure, and return to one of the same size; give what is reported."""
    reported: list[Any] = []
    pools.leave()
    measure_rank(
        resolve(job),
        RankSpec(rank, len(names), names[rank], "127.0.0.1", port, launcher=Launcher.LOCAL),
        record_into(reported),
    )
    pools.join(rank, len(names), str(back))
    return reported


@pytest.fixture(scope="module")
def measure(pool: pools.Pool, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Cluster, list[Any]]]:
    """Measure with one warm worker for each entry of `names`; give cluster and events."""

    def call(job: MeasureJob, names: list[tuple[str, ...]]) -> tuple[Cluster, list[Any]]:
        port, back = free_port(), tmp_path_factory.mktemp("back") / "back"
        reported, *others = pool.run(measure_in_pool, [(job, names, port, back) for _ in names], timeout_s=120)
        assert not any(others), "only rank 0 reports"
        return Cluster.from_json(reported[-1]["cluster"]), reported

    return call


def test_what_is_measured_is_planned_for_and_trained_by(
    measure: Callable[..., tuple[Cluster, list[Any]]], pool: pools.Pool, folder: Folder, tmp_path: Path
) -> None:
    cluster, reported = measure(make_measure_job(make_cluster(3, [1, 1, 1])), THREE)
    steps = [event["done"] for event in reported[:-1]]
    assert steps == sorted(steps)
    assert steps[-1] == reported[0]["total"]
    assert cluster.names == ["local-0", "local-1", "local-2"]
    workload = workload_of(cluster)
    assert (workload.layers, workload.node_layers, workload.device) == (4, (2, 2, 2), "cpu"), "two stages by default"
    assert min([*cluster.forward_s, *cluster.backward_s, *cluster.loss_s, *cluster.step_s, cluster.norm_s]) > 0
    assert cluster.activation_bytes == 2 * 32 * 32 * 4
    measured = json.loads(cluster.measured or "")
    apart = ~torch.eye(3, dtype=torch.bool)
    messages = torch.tensor(measured["links"]["messages"])[apart]
    assert ((messages >= 1) & (messages <= FULL_MESSAGES)).all(), "how many depends on how busy the machine is"
    assert all(node["samples"] >= 5 and node["timed_layers"] == [1, 2] for node in measured["nodes"])

    (tmp_path / "cluster.json").write_text(cluster.to_json())
    machines = dataclasses.replace(make_cluster(), file=str(tmp_path / "cluster.json"))
    schedule = ScheduleConfig(stages=2, microbatches_per_source=3)
    plan = make_plan(planning_job(machines, AllocateConfig(), schedule), "skippipe", PlannerConfig(work_limit=200))
    assert plan.cluster.measured is None, "its figures hold for this plan"
    save_plan(plan, tmp_path / "plan.json")
    job = make_job(plan=str(tmp_path / "plan.json"), train__iterations=1, checkpoint__enabled=False)
    (ready,) = [event for event in train_in_pool(pool, job, THREE, folder("run")) if event["event"] == "plan"]
    assert ready["prediction_note"] == ""
    assert ready["predicted_s"] == plan.predicted.iteration_s


@pytest.mark.parametrize(
    ("message_s", "always", "wanted"),
    [(1e-6, False, FULL_MESSAGES), (FULL_S / 5.5, False, 5), (FULL_S, True, 1), (1.01 * FULL_S, True, 1),
     (1.01 * FULL_S, False, 0), (1e6, False, 0)],
)  # fmt: skip
def test_so_many_messages_are_sampled_as_their_time_allows(message_s: float, wanted: int, *, always: bool) -> None:
    assert full_messages(message_s, always=always) == wanted


def test_emulated_links_are_measured_as_they_are(measure: Callable[..., tuple[Cluster, list[Any]]]) -> None:
    """Those that are too slow to be sampled in both directions are sampled in one."""
    slow = dataclasses.replace(
        make_cluster(3, [1, 1, 1]), between=LinkProfile(0.01, 1e4), inside=LinkProfile(0.01, 1e4)
    )
    cluster, _ = measure(make_measure_job(slow, links="emulated"), THREE)
    messages = json.loads(cluster.measured or "")["links"]["messages"]
    for i, j in itertools.permutations(range(3), 2):
        assert cluster.transfer_matrix(0.0)[i, j] >= 0.01, "nothing arrives earlier"
        assert messages[i][j] == int((i + j) % 2 == (0 if i < j else 1))
        # 8,192 bytes at 10,000 bytes a second; a busy machine only makes it longer, but for the latency taken off.
        assert cluster.transfer_matrix()[i, j] > 0.4 * messages[i][j]
    assert "extrapolated" in (cluster.source or "")


def test_nodes_of_one_process_share_its_memory(measure: Callable[..., tuple[Cluster, list[Any]]]) -> None:
    job = make_measure_job(make_cluster(3, [1, 1, 1]), memory_bytes=5e6)
    cluster, _ = measure(job, [("local-0", "local-2"), ("local-1",)])
    about = json.loads(cluster.measured or "")["nodes"]
    assert [node["memory_bytes"] for node in about] == [2.5e6, 5e6, 2.5e6]
    assert cluster.memory[0] == cluster.memory[2] < cluster.memory[1]
    assert cluster.transfer_matrix()[0, 2] < 1e-6, "nothing is sent between them"


def test_from_the_command_line(run: Run, tmp_path: Path) -> None:
    result = run(
        "measure", *TINY_MEASURED, "cluster.nodes_per_site=2", "cluster.stage_sizes=[1,1]", "output=cluster.json"
    )
    assert result.status == 0, result.err
    cluster = load_cluster(str(tmp_path / "cluster.json"))
    assert cluster.names == ["local-0", "local-1"]
    for name, memory in zip(cluster.names, cluster.memory, strict=True):
        assert f"{name}" in result.out
        assert f"{memory} microbatches" in result.out
    assert "written to cluster.json" in result.out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["runtime.memory_bytes=1000"],
            "expected room for a microbatch of a stage of 2 decoder layers, got 1,000 bytes",
        ),
        (["runtime.time_scale=2"], "runtime.time_scale: expected 1.0 with runtime.links=real, got 2"),
        (["runtime.node=a"], "runtime.node: expected null where no torchrun has set RANK and WORLD_SIZE, got a"),
    ],
)
def test_refused(settings: list[str], message: str, refused: Callable[..., str]) -> None:
    two = ["cluster.nodes_per_site=2", "cluster.stage_sizes=[1,1]"]
    assert message in refused("measure", *TINY_MEASURED, *two, *settings)


def test_too_few_layers(pool: pools.Pool, tmp_path: Path) -> None:
    """Known to the ranks alone, which have resolved the model; that the command says what they say, is shown above."""
    job = dataclasses.replace(make_measure_job(make_cluster(2, [1, 1])), model=TINY_MODEL | {"num_hidden_layers": 1})
    arguments = (job, [("local-0",), ("local-1",)], free_port(), tmp_path / "back")
    for failure in pool.attempt(measure_in_pool, [arguments] * 2):
        assert isinstance(failure, pools.Failure)
        assert failure.kind == "InputError"
        assert failure.message == "model.num_hidden_layers: expected at least the number of stages, 2, got 1"


def test_times_of_a_layer() -> None:
    assert layers_to_time(1.0, 4) == (1, 2)
    assert layers_to_time(3.4, 24) == (1, 3)
    assert layers_to_time(12.0, 24) == (1, 4)
    assert layers_to_time(1.0, 1) == (1, 1)
    assert layer_share(9.0, 3.0, (1, 4)) == 2.0, "3 + 2 (l - 1)"
    assert layer_share(9.0, 0.0, (1, 4)) == 2.25, "a stage without layers takes no less than nothing"
    assert layer_share(9.0, 9.5, (1, 4)) == 1.125, "noise"
    assert layer_share(9.0, 9.0, (1, 1)) == 9.0


def test_outliers_do_not_matter() -> None:
    assert summarize([1.0, 2.0, 3.0, 4.0, 100.0]) == Timing(3.0, 2.0, 5)
    assert summarize([5.0]) == Timing(5.0, 0.0, 1)


def test_links_from_timed_messages() -> None:
    short = Timing(0.001, 0.0001, 9)
    sampled = DirectionTimes(short, 0.1, Timing(1.0, 0.2, 3))
    extrapolated = DirectionTimes(short, 0.25, None)
    instant = DirectionTimes(short, 0.0, Timing(0.0, 0.0, 3))
    times = link_times([{1: extrapolated}, {0: sampled}], 4000)
    assert times.latency_s.tolist() == [[0.0, 0.001], [0.001, 0.0]]
    assert times.bandwidth.tolist() == [[LOCAL_BANDWIDTH, 4000.0], [4000 / (PART * 0.25), LOCAL_BANDWIDTH]]
    assert times.messages.tolist() == [[0, 3], [0, 0]]
    assert times.message_spread_s.tolist() == [[0.0, 0.2], [0.0, 0.0]]
    assert times.error == pytest.approx(0.2), "0.8 s are extrapolated where 1 s was measured"
    assert link_times([{1: sampled}, {0: sampled}], 4000).error == 0.0, "nothing is extrapolated"
    assert link_times([{1: instant}, {0: instant}], 4000).bandwidth[0, 1] == pytest.approx(LOCAL_BANDWIDTH)


@pytest.mark.parametrize("checkpointing", [0, 1])
def test_memory_of_a_microbatch_is_as_estimated(checkpointing: int) -> None:
    """The estimate comes from shapes alone, without running the layers."""
    config, message_spec = model_config(TINY_MODEL), MessageSpec(2, 32, 32)
    spec = DeviceSpec(activation_checkpointing=checkpointing)
    stage = build_probe(config, 3, Precision(), spec, torch.device("cpu"), head=False)
    estimated = stage_memory(
        config,
        stage=1,
        layers=range(3),
        first=False,
        microbatch_size=2,
        sequence=32,
        activation_checkpointing=checkpointing,
    )
    assert held_bytes(stage, message_spec, 1024) == pytest.approx(estimated.activation_bytes, rel=0.05)
