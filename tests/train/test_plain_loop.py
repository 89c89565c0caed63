"""A complete training gives the results of a plain loop over transformers' own model, iteration by iteration.

The plain loop is one process without stages, links or optimizer of ours: torch's AdamW, and learning rates that stand
here as numbers. It goes by the routes in the plan that the run leaves.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pool as pools
import pytest
import torch
from effort import cases
from model.small import run_along
from torch import Tensor, nn
from train.alone import EventDict, free_port, of_kind, rank_in_pool, train_alone
from train.conftest import Folder
from train.jobs import make_job

from skippipe import Plan
from skippipe.application import compose
from skippipe.checkpoint import open_checkpoint
from skippipe.commands.groups import options
from skippipe.data.blocks import BlockOrder
from skippipe.data.corpus import open_corpus
from skippipe.model.build import build_stage_module
from skippipe.model.families import family_of
from skippipe.model.settings import model_config
from skippipe.train.config import TrainJob
from skippipe.train.loop.engine import Engine, IterationResult
from skippipe.train.prepare.planning import plan_phase
from skippipe.train.prepare.stages import partition_model
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec

FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]
RATES = [0.005, 0.01, 0.00775, 0.00325, 0.001]
"""Of five iterations: up to 0.01 over two of them, then down to a tenth by a cosine."""
CLIP_NORM = 0.25
LLAMA: dict[str, Any] = {}
SMALLER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 16,
    "num_key_value_heads": 2, "sliding_window": 12, "max_position_embeddings": 64, "query_pre_attn_scalar": 16,
    "router_aux_loss_coef": 0.5,
}  # fmt: skip
"""Settings of presets made small."""
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
}  # fmt: skip


def job_on(prepared: Path, **changes: Any) -> TrainJob:
    """A training in float64 whose gradients are always clipped."""
    training: dict[str, Any] = {
        "train__dtype": "float64", "train__iterations": len(RATES), "train__learning_rate": max(RATES),
        "train__warmup": 0.4, "train__final_learning_rate": 0.1, "train__clip_norm": CLIP_NORM,
        "train__validate_every": None, "data__prepared": str(prepared), "train__layers": [1, 2, 1],
    }  # fmt: skip
    return make_job(**training | changes)


class Done(NamedTuple):
    """What one rank knows of an iteration."""

    seconds: float
    """of the iteration"""
    own_s: float
    """when this rank's last action ended"""


def noted(rank: int, spec: RunSpec, folder: Path, port: int) -> tuple[list[EventDict], list[Done]]:
    """In a warm worker: be a rank of a training, and note the times of its iterations."""
    done: list[Done] = []
    iterate = Engine.iterate

    def noting(self: Engine, *given: Any, **named: Any) -> IterationResult:
        found = iterate(self, *given, **named)
        done.append(Done(found.seconds, found.timings.ends[-1]))
        return found

    with patch.object(Engine, "iterate", noting):
        return rank_in_pool(rank, spec, FOUR, folder, port), done


class Plain:
    """The same training without anything of the runtime."""

    def __init__(self, job: TrainJob, plan: Plan, prepared: Path) -> None:
        self.job, self.plan = job, plan
        config = model_config(job.model)
        whole = build_stage_module(
            config, stage=0, layers=range(4), first=True, seed=job.train.seed, dtype=torch.float64
        )
        model: Any = family_of(config.model_type).model_class()
        self.model = model(config).to(torch.float64)
        self.routed = config.model_type == "mixtral"
        if self.routed:
            self.model.set_experts_implementation("eager")  # the other one has no float64
        self.model.load_state_dict(whole.state_dict(), strict=False)
        self.named: dict[str, Tensor] = dict(self.model.named_parameters())
        self.corpus, self.size = open_corpus(prepared), job.train.microbatch_size
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for name, p in self.named.items() if not kept(name)], "weight_decay": 0.1},
                {"params": [p for name, p in self.named.items() if kept(name)], "weight_decay": 0.0},
            ],
            betas=(0.9, 0.95),
            eps=1e-8,
        )

    def losses(self, stages: Sequence[int], tokens: Tensor) -> Tensor:
        """Of sequences (b, s + 1) that visit these stages in this order: token losses, and losses of routers; sums."""
        layers = [[0], [1, 2], [3]]
        asked = {"output_router_logits": True} if self.routed else {}
        outputs = run_along(self.model, [i for s in stages for i in layers[s]], tokens[:, :-1], **asked)
        loss = nn.functional.cross_entropy(outputs.logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        balance = torch.zeros((), dtype=torch.float64)
        for logits in outputs.router_logits if self.routed else ():
            chosen = torch.zeros_like(logits).scatter(1, logits.topk(2, -1).indices, 1.0)
            balance = balance + 4 * (chosen.mean(0) * logits.softmax(-1).mean(0)).sum()
        return torch.stack([loss, 0.5 * balance / 4 * tokens[:, 1:].numel()])

    def iterate(self, number: int) -> tuple[float, float, float]:
        """One iteration, from 1; mean loss of tokens and of routers, and norm before clipping."""
        blocks = self.corpus.training(self.job.data.sequence).tokens
        used = [m.stages for m in sorted(self.plan.microbatches, key=lambda m: m.id)]
        total = len(used) * self.size * self.job.data.sequence
        summed = torch.zeros(2, dtype=torch.float64)
        for index, stages in enumerate(used):
            at = BlockOrder(len(blocks), self.job.train.seed).at(
                ((number - 1) * len(used) + index) * self.size, self.size
            )
            losses = self.losses(stages, torch.from_numpy(blocks[at].astype("int64")))
            summed += losses.detach()
            torch.autograd.backward(losses.sum() / total)
        for parameter in self.named.values():
            if parameter.grad is None:  # an expert without tokens steps with zeros
                parameter.grad = torch.zeros_like(parameter)
        norm = float(torch.cat([p.grad.flatten() for p in self.named.values() if p.grad is not None]).norm())
        for parameter in self.named.values():
            assert parameter.grad is not None
            parameter.grad.mul_(min(CLIP_NORM / norm, 1.0))
        for group in self.optimizer.param_groups:
            group["lr"] = RATES[number - 1]
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss, router_loss = (summed / total).tolist()
        return loss, router_loss, norm

    def validate(self) -> float:
        """Mean loss of the full model over the validation text."""
        blocks = self.corpus.validation(self.job.data.sequence, self.job.data.validation_blocks).tokens
        tokens = torch.from_numpy(blocks.astype("int64"))
        with torch.no_grad():
            return float(self.losses([0, 1, 2], tokens)[0]) / tokens[:, 1:].numel()


def kept(name: str) -> bool:
    """Whether a parameter does not decay."""
    return any(part in name for part in ("norm", "embed", "ln_", "wte", "wpe", "bias"))


@pytest.mark.parametrize(
    ("model", "skip_ratio"),
    [*cases([(LLAMA, 0.0)], []), (LLAMA, 1 / 3), (MIXTRAL, 1 / 3)],
)
def test_a_training_is_a_plain_loop(
    model: dict[str, Any], skip_ratio: float, prepared: Path, folder: Folder, pool: pools.Pool
) -> None:
    run = folder("run")
    job = job_on(prepared, schedule__skip_ratio=skip_ratio)
    job.model |= model
    results: list[tuple[list[EventDict], list[Done]]] = pool.run(
        noted, [(resolve(job), run, free_port())] * 4, timeout_s=120
    )
    check_against_plain_loop(results[0][0], job, run, prepared, 1e-6 if model else 1e-9)  # routers choose in float32
    # An iteration lasts until the last rank has stepped, and all ranks know it.
    for event, *ranks in zip(of_kind(results[0][0], "iteration"), *(done for _, done in results), strict=True):
        assert {event["iteration_s"], *(done.seconds for done in ranks)} == {max(done.own_s for done in ranks)}


PRESETS = [name for name in options("model") if name.endswith("_tiny")]


@pytest.mark.parametrize("name", cases(PRESETS, PRESETS[::2]))  # their modules are all in the tests of models
def test_a_training_of_every_tiny_preset_is_a_plain_loop(name: str, prepared: Path, folder: Folder) -> None:
    """One process serves all nodes."""
    run, job = folder("run"), job_on(prepared, schedule__skip_ratio=1 / 3)
    preset = compose("train", [f"model={name}"]).model
    job.model = preset | {key: value for key, value in SMALLER.items() if key in preset}
    check_against_plain_loop(train_alone(job, run), job, run, prepared, 1e-6)  # norms and rotary tables are in float32


def check_against_plain_loop(events: list[EventDict], job: TrainJob, run: Path, prepared: Path, rel: float) -> None:
    """Compare what a training reports and leaves with the plain loop, to a relative error."""
    plan = Plan.from_json((run / "plan.json").read_text())
    visits = [len(m.stages) for m in plan.microbatches]
    assert (min(visits) < 3) == (plan.skip_ratio > 0), visits
    plain = Plain(job, plan, prepared)
    assert of_kind(events, "plan")[0]["parameters"] == sum(p.numel() for p in plain.named.values())
    before, after = (event["loss"] for event in of_kind(events, "validation"))
    assert before == pytest.approx(plain.validate(), rel=1e-10)
    iterations = of_kind(events, "iteration")
    assert [event["learning_rate"] for event in iterations] == pytest.approx(RATES, rel=1e-12)
    for event in iterations:
        loss, router_loss, norm = plain.iterate(event["iteration"])
        assert norm > 1.1 * CLIP_NORM
        assert event["loss"] == pytest.approx(loss, rel=rel)
        assert event["norm"] == pytest.approx(norm, rel=10 * rel)
        assert event.get("router_loss") == (pytest.approx(router_loss, rel=rel) if plain.routed else None)
    assert after == pytest.approx(plain.validate(), rel=rel)
    checkpoint = open_checkpoint(run)
    assert checkpoint.state.iteration == len(RATES)
    found = {name: torch.zeros_like(parameter) for name, parameter in plain.named.items()}
    checkpoint.load(found)
    for name, parameter in plain.named.items():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=100 * rel, atol=rel, msg=name)


def refused(pool: pools.Pool, jobs: Sequence[TrainJob], folder: Path) -> list[str]:
    """Have ranks train that do not fit together; what each of them says."""
    port = free_port()
    results = pool.attempt(rank_in_pool, [(resolve(job), FOUR, folder, port) for job in jobs], timeout_s=60)
    assert all(isinstance(result, pools.Failure) and result.kind == "InputError" for result in results), results
    return [result.message for result in results]


def test_every_rank_is_told_of_another_learning_rate(prepared: Path, folder: Folder, pool: pools.Pool) -> None:
    jobs = [job_on(prepared) for _ in FOUR]
    jobs[2] = job_on(prepared, train__learning_rate=0.02)
    for said in refused(pool, jobs, folder("run")):
        assert said.startswith("train.learning_rate: expected ")
        assert said.endswith(" as on node local-0 (rank 0), got 0.02 on node local-2 (rank 2)")


def write_plan(path: Path, prepared: Path, skip_ratio: float) -> Path:
    """Write a plan of the layout of these tests."""
    job = job_on(prepared, schedule__skip_ratio=skip_ratio)
    spec = resolve(job)
    model = partition_model(spec, model_config(job.model))
    path.write_text(plan_phase(spec, spec.phases[0], spec.layout.cluster, model, range(4)).to_json())
    return path


def test_every_rank_is_told_of_another_plan_file(
    prepared: Path, folder: Folder, pool: pools.Pool, tmp_path: Path
) -> None:
    plans = [write_plan(tmp_path / f"{name}.json", prepared, k) for name, k in (("a", 0.0), ("b", 1 / 3))]
    jobs = [job_on(prepared, plan=str(plans[rank == 1])) for rank in range(4)]
    for said in refused(pool, jobs, folder("run")):
        assert said.startswith("plan: expected a file with the hash ")
        assert said.endswith(" on node local-1 (rank 1)")


def with_another_plan(rank: int, spec: RunSpec, other: str | None, folder: Path, port: int) -> list[EventDict]:
    """In a warm worker: be a rank of a training that comes to another plan than the others."""
    if other is None:
        return rank_in_pool(rank, spec, FOUR, folder, port)
    with patch("skippipe.train.prepare.prepare.make_plans", lambda *_, **__: [Plan.from_json(Path(other).read_text())]):
        return rank_in_pool(rank, spec, FOUR, folder, port)


def test_every_rank_is_told_of_another_plan(prepared: Path, folder: Folder, pool: pools.Pool, tmp_path: Path) -> None:
    other = write_plan(tmp_path / "other.json", prepared, 0.0)
    content = json.loads(other.read_text())
    assert content["skip_ratio"] == 0.0
    run, port = folder("run"), free_port()
    spec = resolve(job_on(prepared))
    by_rank = [(spec, str(other) if rank == 3 else None, run, port) for rank in range(4)]
    for result in pool.attempt(with_another_plan, by_rank, timeout_s=60):
        assert isinstance(result, pools.Failure)
        assert result.kind == "InputError"
        assert result.message.startswith("hash of the plan: expected ")
        assert result.message.endswith(" on node local-3 (rank 3)")
