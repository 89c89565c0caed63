"""The parts of training that need no process: rate, clipping, plans and models, places, events, what is shown."""

import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from train.jobs import make_job

from skippipe.console.output import Console
from skippipe.errors import InputError
from skippipe.plan import Plan
from skippipe.train.config import TrainConfig
from skippipe.train.display import Display, sparkline
from skippipe.train.dry_run import RankMemory, check_memory, most_held
from skippipe.train.events import Event, LineReader
from skippipe.train.layout import layout_of
from skippipe.train.optimizer import clip, learning_rate, make_optimizer, parameter_groups, take_step
from skippipe.train.place import deal, node_names, torchrun_place
from skippipe.train.plans import ModelNote, check_model, full_pipelines, layers_of, model_note, plan_for, with_times
from skippipe.train.times import reasons


def test_learning_rate_rises_and_falls() -> None:
    config = TrainConfig(learning_rate=0.01, warmup=0.1, final_learning_rate=0.1)
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
    config = TrainConfig(learning_rate=1.0, warmup=warmup, final_learning_rate=0.1)
    assert learning_rate(config, tokens, 1000) == pytest.approx(share, abs=1e-4)


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
    config = TrainConfig(weight_decay=0.5, learning_rate=0.1)
    optimizer = make_optimizer(config, [part])
    before = {name: p.detach().clone() for name, p in part.named_parameters()}
    for p in part.parameters():
        p.grad = torch.zeros_like(p)
    take_step(optimizer, 0.1)
    changed = {name for name, p in part.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"layer.weight"}
    assert all(p.grad is None for p in part.parameters())


NOTE = ModelNote("a" * 64, 32, 4, 2, 32, "float32")


def plan_of(**changes: Any) -> Plan:
    job = make_job(**changes)
    layout = layout_of(job)
    return plan_for(job, layout.cluster, layout.allocation, [2, 1, 1], NOTE)


@pytest.mark.parametrize(
    ("part", "value", "key"),
    [
        ("hidden", 64, "model.hidden_size"), ("layers", 8, "model.num_hidden_layers"),
        ("microbatch_size", 4, "train.microbatch_size"), ("sequence", 64, "data.sequence"),
        ("wire_dtype", "bfloat16", "train.dtype"), ("config_sha256", "b" * 64, "(model)"),
    ],
)  # fmt: skip
def test_a_plan_for_another_model_is_refused(part: str, value: Any, key: str) -> None:
    plan = plan_of()
    check_model(plan, vars_of(NOTE), "plan.json")
    other = vars_of(NOTE) | {part: value}
    with pytest.raises(
        InputError, match=rf"plan.json: the plan is for another model: its {part} is .*{value}"
    ) as caught:
        check_model(plan, other, "plan.json")
    assert key in str(caught.value)


def vars_of(note: ModelNote) -> dict[str, Any]:
    return {name: getattr(note, name) for name in ModelNote.__dataclass_fields__}


def test_a_plan_that_says_nothing_of_a_model_fits_any() -> None:
    content = json.loads(plan_of().to_json()) | {"model": None}
    check_model(Plan.from_json(json.dumps(content)), vars_of(NOTE), "plan.json")


def test_layers_of_stages() -> None:
    assert layers_of([], None, 3, 8, "plan") == [3, 3, 2]
    assert layers_of([1, 3], None, 2, 4, "plan") == [1, 3]
    assert layers_of([], [1, 3], 2, 4, "plan") == [1, 3]
    for given, asked, stages, layers, message in (
        ([], [1, 2], 2, 4, r"train.layers is \[1, 2\], 2 numbers of at least 1 that add up to the model's 4"),
        ([], [0, 4], 2, 4, r"train.layers is \[0, 4\], 2 numbers"),
        ([], [4], 2, 4, r"train.layers is \[4\], 2 numbers"),
        ([2, 2], [1, 3], 2, 4, r"train.layers is \[1, 3\], p.json has \[2, 2\]"),
        ([2, 2], None, 2, 5, r"p.json: the plan is for another model: its stages have 4 layers, the model has 5"),
        ([], None, 3, 2, r"model.num_hidden_layers is 2, at least the number of stages, 3"),
    ):
        with pytest.raises(InputError, match=message):
            layers_of(given, asked, stages, layers, "p.json")


def test_message_bytes() -> None:
    assert NOTE.message_bytes == 2 * 32 * 32 * 4
    assert model_note(make_job(train__dtype="bfloat16"), "", 32, 4).message_bytes == 2 * 32 * 32 * 2


def test_the_full_pipeline_beside_a_plan() -> None:
    plan = plan_of()
    full = full_pipelines(plan, make_job().planner)
    assert full["full"] is not None
    assert full["full-routed"] is not None
    assert full["full"] >= full["full-routed"] > plan.predicted.iteration_s


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
    lines = reasons(plan, doubled, 2 * plan.predicted.iteration_s, [0, 0, 1, 1], 10_000)
    assert "+" in lines[0]
    assert "2 processes serve 4 nodes" in lines[2]
    assert "10000 threads share" in lines[3]
    assert len(reasons(plan, {}, 1.0, [0, 1, 2, 3], 1)) == 2


def test_most_held() -> None:
    plan = plan_of()
    held = most_held(plan)
    assert set(held) == {0, 1, 2, 3}
    assert all(1 <= count <= 4 for count in held.values())


def test_memory_that_is_not_there() -> None:
    ranks = [RankMemory((f"n{i}",), (0,), 1, 100 * i, 10, 1) for i in range(3)]
    check_memory(ranks, None)
    check_memory(ranks, 211)
    with pytest.raises(InputError, match=r"node n2 \(rank 2\) needs 211 bytes, runtime.memory_bytes is 210"):
        check_memory(ranks, 210)


def test_places() -> None:
    assert deal(["a", "b", "c"], None) == [("a",), ("b",), ("c",)]
    assert deal(["a", "b", "c"], 2) == [("a", "c"), ("b",)]
    with pytest.raises(InputError, match=r"runtime.processes is 4, at most the number of nodes, 3"):
        deal(["a", "b", "c"], 4)
    assert node_names("a, b") == ("a", "b")
    assert len(node_names(None)) == 1
    with pytest.raises(InputError, match=r"runtime.node is 'a,,b', NAME or NAME,NAME is expected"):
        node_names("a,,b")
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    place = torchrun_place("a,b", environment)
    assert (place.rank, place.world, place.names, place.host, place.port) == (1, 2, ("a", "b"), "host", 29500)
    with pytest.raises(InputError, match=r"RANK is 'one' in the environment, a number is expected"):
        torchrun_place(None, environment | {"RANK": "one"})
    with pytest.raises(InputError, match="got no MASTER_PORT; RANK and WORLD_SIZE in the environment"):
        torchrun_place(None, {k: v for k, v in environment.items() if k != "MASTER_PORT"})


def test_events_come_in_pieces() -> None:
    text = b'{"event": "a"}\n{"event": "b", "x": 1}\n'
    reader = LineReader()
    assert [event for byte in text for event in reader.feed(bytes([byte]))] == [{"event": "a"}, {"event": "b", "x": 1}]
    assert len(LineReader().feed(text)) == 2


def story() -> list[Event]:
    return [
        {"event": "starting", "processes": 1},
        {"event": "started", "rank": 0, "process": 7, "names": ("n0",)},
        {
            "event": "plan", "model": "llama", "parameters": 1000, "stages": 3, "layers": [2, 1, 1], "nodes": 4,
            "processes": 4, "strategy": "skippipe", "skip_ratio": 1 / 3, "microbatches": 6, "microbatch_size": 2,
            "sequence": 32, "training_tokens": 5000, "iterations": 2, "predicted_s": 0.5,
            "prediction_note": "", "full": {"full": 1.0, "full-routed": None},
        },
        {"event": "validation", "iteration": 0, "loss": 7.0, "tokens": 512},
        *(
            {
                "event": "iteration", "iteration": i, "loss": 7.0 - i, "tokens": 100, "tokens_per_s": 1e4,
                "iteration_s": 0.6, "predicted_s": 0.5, "norm": 1.0, "learning_rate": 0.01,
            }
            for i in (1, 2)
        ),
        {"event": "validation", "iteration": 2, "loss": 5.0, "tokens": 512},
        {
            "event": "summary", "iterations": 2, "loss_before": 7.0, "loss_after": 5.0, "predicted_s": 0.5,
            "measured_s": 0.6, "reasons": ["because"],
        },
        {"event": "ended", "rank": 0, "status": 0, "names": ("n0",)},
    ]  # fmt: skip


@pytest.mark.parametrize("terminal", [False, True])
def test_display_tells_the_story(terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=terminal)
    with Display(console, "run") as display:
        for event in story():
            display(event)
    shown = capsys.readouterr().out
    for part in (
        "1 processes start; what they write goes to run", "node n0: rank 0, process 7",
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
