"""The parts of training that need no process: rate, clipping, plans and models, rank assignment, events, display."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from train.jobs import make_cluster, make_job

from skippipe.config import LinkProfile
from skippipe.console.output import Console
from skippipe.errors import InputError
from skippipe.model.memory import StageMemory
from skippipe.model.settings import model_config
from skippipe.plan_file import Plan
from skippipe.ranks import iteration_s_on
from skippipe.train.connect.rank_spec import assign_nodes, node_names, torchrun_rank
from skippipe.train.launch.dry_run import RankMemory, check_memory, most_held, rank_memory
from skippipe.train.loop.optimizer import clip, learning_rate, make_optimizer, parameter_groups, take_step
from skippipe.train.loop.task_times import explain_difference, with_times
from skippipe.train.observe.display import Display, sparkline
from skippipe.train.observe.events import (
    Event,
    EventReader,
    IterationDone,
    PlanReady,
    RunSummary,
    ValidationDone,
    WorkerEnded,
    WorkersStarting,
    WorkerStarted,
    to_json,
)
from skippipe.train.prepare.planning import full_pipelines, on_ranks, plan_phase
from skippipe.train.prepare.stages import partition_model
from skippipe.train.resolve.plan_model import PlanModel, check_model, partition
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import OptimizerSpec


def optimizer_spec(**changes: Any) -> OptimizerSpec:
    return dataclasses.replace(resolve(make_job()).optimizer, **changes)


def test_learning_rate_rises_and_falls() -> None:
    config = optimizer_spec(learning_rate=0.01, warmup=0.1, final_learning_rate=0.1)
    rates = [learning_rate(config, tokens, 1000) for tokens in range(0, 1001, 10)]
    assert rates[0] == 0.0
    assert rates[5] == pytest.approx(0.005)
    assert max(rates) == rates[10] == pytest.approx(0.01)
    assert rates[55] == pytest.approx(0.01 * (0.1 + 0.9 * 0.5), rel=1e-6)
    assert rates[-1] == pytest.approx(0.001)
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.mark.parametrize(
    ("warmup", "tokens", "share"), [(0.0, 0, 1.0), (1.0, 500, 0.5), (1.0, 1000, 0.1), (0.0, 1, 1.0)]
)
def test_learning_rate_at_the_edges(warmup: float, tokens: int, share: float) -> None:
    config = optimizer_spec(learning_rate=1.0, warmup=warmup, final_learning_rate=0.1)
    assert learning_rate(config, tokens, 1000) == pytest.approx(share, abs=1e-4)


def test_warm_up_stable_decay() -> None:
    config = optimizer_spec(learning_rate=0.01, warmup=0.1, decay="linear", decay_fraction=0.2, final_learning_rate=0.1)
    rates = [learning_rate(config, tokens, 1000) for tokens in range(0, 1001, 10)]
    assert rates[5] == pytest.approx(0.005)
    assert rates[10:81] == pytest.approx([0.01] * 71)
    assert rates[90] == pytest.approx(0.0055)
    assert rates[-1] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("warmup", "fraction", "tokens", "share"),
    [(0.0, 0.0, 1000, 1.0), (0.0, 1.0, 500, 0.55), (0.5, 1.0, 750, 0.55), (1.0, 0.5, 1000, 1.0)],
)
def test_stable_and_decay_at_the_edges(warmup: float, fraction: float, tokens: int, share: float) -> None:
    config = optimizer_spec(
        learning_rate=1.0, warmup=warmup, decay="linear", decay_fraction=fraction, final_learning_rate=0.1
    )
    assert learning_rate(config, tokens, 1000) == pytest.approx(share)


def test_clipping_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    for limit in (0.5, 100.0, None):
        mine, theirs = (
            [nn.Parameter(torch.zeros(3, 4)) for _ in range(2)],
            [nn.Parameter(torch.zeros(3, 4)) for _ in "ab"],
        )
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn(3, 4, generator=generator)
            b.grad = a.grad.clone()
        norm = float(torch.nn.utils.clip_grad_norm_(theirs, math.inf if limit is None else limit))
        clip([p.grad for p in mine if p.grad is not None], norm, limit)
        for a, b in zip(mine, theirs, strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert torch.allclose(a.grad, b.grad, rtol=1e-5)


def test_only_matrices_decay() -> None:
    part = nn.ModuleDict({"embedding": nn.Embedding(4, 2), "norm": nn.LayerNorm(2), "layer": nn.Linear(2, 4)})
    part["head"] = nn.Linear(2, 4, bias=False)
    part["head"].weight = part["embedding"].weight
    decay, keep = parameter_groups([part])
    assert [tuple(p.shape) for p in decay] == [(4, 2)]
    assert decay[0] is part["layer"].weight
    assert len(keep) == 4
    config = optimizer_spec(weight_decay=0.5, learning_rate=0.1)
    optimizer = make_optimizer(config, [part])
    before = {name: p.detach().clone() for name, p in part.named_parameters()}
    for p in part.parameters():
        p.grad = torch.zeros_like(p)
    take_step(optimizer, 0.1)
    changed = {name for name, p in part.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"layer.weight"}
    assert all(p.grad is None for p in part.parameters())


MODEL = PlanModel("a" * 64, 32, 4, 2, 32, "float32")


def plan_of(**changes: Any) -> Plan:
    spec = resolve(make_job(**changes))
    model = dataclasses.replace(partition_model(spec, model_config(spec.model.settings)), plan_model=MODEL)
    assert model.layers == [2, 1, 1]
    return plan_phase(spec, spec.phases[0], spec.layout.cluster, model, range(4))


@pytest.mark.parametrize(
    ("part", "value", "key"),
    [
        ("hidden", 64, "model.hidden_size"), ("layers", 8, "model.num_hidden_layers"),
        ("microbatch_size", 4, "train.microbatch_size"), ("sequence", 64, "data.sequence"),
        ("wire_dtype", "bfloat16", "runtime.wire_dtype"), ("config_sha256", "b" * 64, "model"),
    ],
)  # fmt: skip
def test_a_plan_for_another_model_is_refused(part: str, value: Any, key: str) -> None:
    plan = plan_of()
    check_model(plan, vars_of(MODEL), "plan.json")
    other = vars_of(MODEL) | {part: value}
    with pytest.raises(
        InputError, match=rf"^plan.json: {key}: expected .*, got {value}; the plan is for another model$"
    ):
        check_model(plan, other, "plan.json")


def vars_of(model: PlanModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in PlanModel.__dataclass_fields__}


def test_a_plan_that_says_nothing_of_a_model_fits_any() -> None:
    content = json.loads(plan_of().to_json()) | {"model": None}
    check_model(Plan.from_json(json.dumps(content)), vars_of(MODEL), "plan.json")


def test_layers_of_stages() -> None:
    assert partition([], None, 3, 8, "plan") == [3, 3, 2]
    assert partition([1, 3], None, 2, 4, "plan") == [1, 3]
    assert partition([], [1, 3], 2, 4, "plan") == [1, 3]
    for given, asked, stages, layers, message in (
        (
            [],
            [1, 2],
            2,
            4,
            r"train.layers: expected 2 positive numbers that add up to the model's 4 layers, got \[1, 2\]",
        ),
        ([], [0, 4], 2, 4, r"train.layers: expected 2 positive numbers .*\[0, 4\]"),
        ([], [4], 2, 4, r"train.layers: expected 2 positive numbers .*\[4\]"),
        ([2, 2], [1, 3], 2, 4, r"train.layers: expected \[2, 2\] as in p.json, got \[1, 3\]"),
        ([2, 2], None, 2, 5, r"p.json: model.num_hidden_layers: expected the 4 layers of the plan's stages, got 5"),
        ([], None, 3, 2, r"model.num_hidden_layers: expected at least the number of stages, 3, got 2"),
    ):
        with pytest.raises(InputError, match=message):
            partition(given, asked, stages, layers, "p.json")


def test_message_bytes() -> None:
    assert MODEL.message_bytes == 2 * 32 * 32 * 4
    spec = resolve(make_job(train__dtype="bfloat16"))
    assert partition_model(spec, model_config(spec.model.settings)).plan_model.message_bytes == 2 * 32 * 32 * 2


def test_the_full_pipeline_beside_a_plan() -> None:
    plan = plan_of()
    spec = resolve(make_job())
    model = partition_model(spec, model_config(spec.model.settings))
    apart, together = (full_pipelines(spec, model, plan.cluster, rank_of) for rank_of in ([0, 1, 2, 3], [0, 0, 1, 1]))
    for full, planned_s in (
        (apart, plan.predicted.iteration_s),
        (together, plan.on_processors([0, 0, 1, 1]).predicted.iteration_s),
    ):
        assert full["full"] is not None
        assert full["full-routed"] is not None
        assert min(full["full"], full["full-routed"]) > planned_s
    assert together["full"] > apart["full"] >= apart["full-routed"]  # type: ignore[operator]


def test_one_process_follows_the_plan_of_the_cluster() -> None:
    """Whatever the plan, it runs all tasks one after the other; they share processors only for its prediction."""
    spec = resolve(make_job())
    model = partition_model(spec, model_config(spec.model.settings))
    alone = plan_phase(spec, spec.phases[0], spec.layout.cluster, model, [0, 0, 0, 0])
    apart = plan_phase(spec, spec.phases[0], spec.layout.cluster, model, [0, 1, 2, 3])
    assert alone.without_report() == apart.without_report()
    tasks = alone.task_arrays()
    assert iteration_s_on(alone, [0, 0, 0, 0]) >= (tasks["end_s"] - tasks["start_s"]).sum() - 1e-9
    assert iteration_s_on(alone, [0, 1, 2, 3]) == alone.predicted.iteration_s
    together = plan_phase(spec, spec.phases[0], spec.layout.cluster, model, [0, 0, 1, 1])
    assert together.assumptions.processors == [[0, 1], [2, 3]]


def test_messages_that_take_turns_are_predicted_to() -> None:
    cluster = make_cluster()
    cluster.inside = cluster.between = LinkProfile(0.001, 1e5)
    predicted = []
    for contention in ("none", "link", "uplink"):
        links = {"runtime__links": "emulated", "runtime__contention": contention}
        spec = resolve(make_job(cluster=cluster, **links))
        model = partition_model(spec, model_config(spec.model.settings))
        plan = plan_phase(spec, spec.phases[0], spec.layout.cluster, model, [0, 1, 2, 3])
        assert plan.assumptions.contention == contention
        predicted.append(iteration_s_on(plan, [0, 1, 2, 3]))
        assert on_ranks(spec, plan.with_contention("none"), [0, 1, 2, 3]).predicted.iteration_s == predicted[-1]
    assert predicted[0] <= predicted[1] <= predicted[2]
    assert predicted[0] < predicted[2]


def test_slower_tasks_explain_a_slower_iteration() -> None:
    plan = plan_of()
    doubled = {
        node: {"F": 2 * f, "B": 2 * b, "L": 2 * c}
        for node, (f, b, c) in enumerate(
            zip(plan.cluster.forward_s, plan.cluster.backward_s, plan.cluster.loss_s, strict=True)
        )
    }
    slower = with_times(plan, doubled)
    assert slower.cluster.forward_s[0] == 2 * plan.cluster.forward_s[0]
    lines = explain_difference(plan, doubled, 2 * plan.predicted.iteration_s, [0, 1, 2, 3], 10_000)
    assert "+" in lines[0]
    assert "10000 threads share" in lines[2]
    assert len(explain_difference(plan, {}, 1.0, [0, 1, 2, 3], 1)) == 2


def test_most_held() -> None:
    plan = plan_of()
    held = most_held(plan)
    assert set(held) == {0, 1, 2, 3}
    assert all(1 <= count <= 4 for count in held.values())


def test_losses_and_backwards_take_turns() -> None:
    plan = plan_of()
    stages, names = range(len(plan.stages)), plan.cluster.names

    def activations(loss: int, *backward: int) -> int:
        estimates = [
            StageMemory(1, 0, 0, 0, 0, b, loss if s == 0 else 0) for s, b in zip(stages, backward, strict=True)
        ]
        return rank_memory(plan, stages, names, estimates, 0).activations

    backwards = [0] * len(stages)
    assert activations(5, *backwards) == 5
    backwards[-1] = 3
    assert activations(5, *backwards) == 5
    assert activations(2, *backwards) == 3


def test_memory_that_is_not_there() -> None:
    ranks = [RankMemory((f"n{i}",), (0,), 1, 100 * i, 10, 1, in_transit=11) for i in range(3)]
    check_memory(ranks, None)
    check_memory(ranks, 211)
    with pytest.raises(
        InputError,
        match=r"expected at least the 211 bytes that node n2 \(rank 2\) needs, got 210",
    ):
        check_memory(ranks, 210)


def test_places() -> None:
    assert assign_nodes(["a", "b", "c"], None) == [("a",), ("b",), ("c",)]
    assert assign_nodes(["a", "b", "c"], 2) == [("a", "c"), ("b",)]
    with pytest.raises(InputError, match=r"runtime.processes: expected at most the number of nodes, 3, got 4"):
        assign_nodes(["a", "b", "c"], 4)
    assert node_names("a, b") == ("a", "b")
    assert len(node_names(None)) == 1
    with pytest.raises(InputError, match=r"runtime.node: expected NAME or NAME,NAME, got a,,b"):
        node_names("a,,b")
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    rank_spec = torchrun_rank("a,b", environment)
    assert (rank_spec.rank, rank_spec.world, rank_spec.names, rank_spec.host, rank_spec.port) == (
        1,
        2,
        ("a", "b"),
        "host",
        29500,
    )
    with pytest.raises(InputError, match=r"environment variable RANK: expected a number, got one"):
        torchrun_rank(None, environment | {"RANK": "one"})
    with pytest.raises(InputError, match="got no MASTER_PORT; RANK and WORLD_SIZE in the environment"):
        torchrun_rank(None, {k: v for k, v in environment.items() if k != "MASTER_PORT"})


def test_events_come_in_chunks() -> None:
    events = [WorkersStarting(processes=2), ValidationDone(iteration=0, loss=math.inf, tokens=512)]
    text = "".join(to_json(event) + "\n" for event in events).encode()
    reader = EventReader()
    assert [event for byte in text for event in reader.feed(bytes([byte]))] == events
    assert EventReader().feed(text) == events


def story() -> list[Event]:
    return [
        WorkersStarting(processes=1),
        WorkerStarted(rank=0, process=7, names=["n0"]),
        PlanReady(
            model="llama", parameters=1000, stages=3, layers=[2, 1, 1], nodes=4, processes=4, strategy="skippipe",
            skip_ratio=1 / 3, microbatches=6, microbatch_size=2, sequence=32, training_tokens=5000, iterations=2,
            predicted_s=0.5, lower_bound_s=0.4, prediction_note="", full={"full": 1.0, "full-routed": None},
            recv_buffers=2, device="cpu",
        ),
        ValidationDone(iteration=0, loss=7.0, tokens=512),
        *(
            IterationDone(
                iteration=i, loss=7.0 - i, tokens=100, tokens_per_s=1e4, iteration_s=0.6, predicted_s=0.5, norm=1.0,
                learning_rate=0.01,
            )
            for i in (1, 2)
        ),
        ValidationDone(iteration=2, loss=5.0, tokens=512),
        RunSummary(
            iterations=2, loss_before=7.0, loss_after=5.0, predicted_s=0.5, measured_s=0.6, reasons=["because"],
            device="cpu",
        ),
        WorkerEnded(rank=0, status=0, names=["n0"]),
    ]  # fmt: skip


@pytest.mark.parametrize("terminal", [False, True])
def test_display_tells_the_story(terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=terminal)
    with Display(console, "run") as display:
        for event in story():
            display(event)
    shown = capsys.readouterr().out
    for part in (
        "starting 1 processes; their logs and results go to run", "node n0: rank 0, process 7",
        "predicted iteration time 0.500 s (full pipelines on this allocation: full 1.000 s, full-routed -)",
        "validation loss 7.0000 after 0 iterations", "validation loss 7.0000 before, 5.0000 after 2 iterations",
        "predicted 0.500 s, measured 0.600 s (median; off by 20.0%)", "because",
    ):  # fmt: skip
        assert part in shown
    assert display.final_loss == 5.0
    if terminal:
        assert "tokens/s" in shown
        assert "loss █▁" in shown
    else:
        assert "iteration    2  loss 5.0000    10,000 tokens/s  measured 0.600 s" in shown


def test_sparkline() -> None:
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert sparkline([0.0, 1.0], 10) == "▁█"
    assert len(sparkline([float(i) for i in range(1000)], 60)) == 60
