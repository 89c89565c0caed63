"""Depth over training time: stages that join later, compared with a plain loop; resumed at and around boundaries."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from effort import cases
from pool import Pool
from torch import Tensor, nn
from train.alone import EventDict, free_port, of_kind, only_rank, record_into, train_alone, train_in_pool
from train.conftest import Folder
from train.jobs import make_cluster, make_job
from train.test_resume import NEVER, check_equal, one_rank, stopping_at
from transformers import LlamaForCausalLM

from skippipe.checkpoint import open_checkpoint
from skippipe.checkpoint.tensors import open_tensors
from skippipe.config import PhaseConfig, PhasesConfig
from skippipe.data.blocks import BlockOrder
from skippipe.data.corpus import open_corpus
from skippipe.errors import InputError
from skippipe.evaluate.config import EvaluateJob
from skippipe.evaluate.model import open_model
from skippipe.model.build import build_stage_module
from skippipe.model.families import family_of
from skippipe.model.settings import model_config
from skippipe.moves import copy_sources
from skippipe.plan_file import load_plan
from skippipe.runtime.stage import Stage
from skippipe.train.config import TrainJob
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.observe.display import changed_lines
from skippipe.train.observe.events import PlanChanged
from skippipe.train.prepare.stages import partition_model, weight_bytes
from skippipe.train.rank import train_rank
from skippipe.train.resolve.layout import resolve_layout
from skippipe.train.resolve.resolve import plan_phases, resolve

ITERATIONS = 6
RATE, DECAY, CLIP = 0.01, 0.1, 0.25
GROW = PhasesConfig([PhaseConfig(0.5, 0.0, 0.5), PhaseConfig(None, 0.25)])
"""The first two of four stages for half of the run, then all of them, with a quarter skipped."""
BETWEEN = PhasesConfig([
    PhaseConfig(1 / 3, 0.0, absent_stages=[2, 3]), PhaseConfig(1 / 3, 0.0, absent_stages=[1, 3]), PhaseConfig(None, 0.0)
])  # fmt: skip
"""A stage joins while another one pauses; then all."""
MOVES = PhasesConfig([
    PhaseConfig(1 / 3, 0.0, 2, allocation="anew"), PhaseConfig(1 / 3, 0.25),
    PhaseConfig(None, 0.0, 3, allocation="anew"),
])  # fmt: skip
"""All nodes serve the stages in use, which differ from phase to phase."""
FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]


def grow_job(phases: PhasesConfig = GROW, **changes: Any) -> TrainJob:
    """A training in float64 at a constant rate, one layer a stage."""
    training: dict[str, Any] = {
        "cluster": make_cluster(4, [1, 1, 1, 1]), "phases": phases, "train__dtype": "float64",
        "train__iterations": ITERATIONS, "train__learning_rate": RATE, "train__warmup": 0.0,
        "train__final_learning_rate": 1.0, "train__weight_decay": DECAY, "train__clip_norm": CLIP,
        "train__validate_every": 1, "schedule__microbatches_per_source": 4,
    }  # fmt: skip
    return make_job(**training | changes)


class PlainLoop:
    """The same training without anything of the runtime: transformers' model, torch's AdamW, layers in a list."""

    def __init__(self, job: TrainJob, run: Path, prepared: Path) -> None:
        self.job, config = job, model_config(job.model)
        whole = build_stage_module(config, stage=0, layers=range(4), first=True, seed=0, dtype=torch.float64)
        model: Any = family_of(config.model_type).model_class()
        self.model = model(config).to(torch.float64)
        self.model.load_state_dict(whole.state_dict(), strict=False)
        self.layers = list(self.model.model.layers)
        self.named: dict[str, Tensor] = dict(self.model.named_parameters())
        self.initial = {name: p.detach().clone() for name, p in self.named.items()}
        kept = [name for name in self.named if "norm" in name or "embed" in name]
        groups = [
            {"params": [p for name, p in self.named.items() if name not in kept], "weight_decay": DECAY},
            {"params": [p for name, p in self.named.items() if name in kept], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
        self.corpus = open_corpus(prepared)
        self.plans = {int(file.stem.rpartition("_")[2]): load_plan(str(file)) for file in run.glob("plan_after_*")}
        self.plans[0] = load_plan(str(run / "plan.json"))

    def plan(self, number: int) -> Any:
        return self.plans[max(after for after in self.plans if after < number)]

    def loss(self, stages: Sequence[int], tokens: Tensor) -> Tensor:
        self.model.model.layers = nn.ModuleList(self.layers[stage] for stage in stages)
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")

    def iterate(self, number: int) -> tuple[float, float]:
        """One iteration, from 1: mean loss, and norm before clipping."""
        blocks, size = self.corpus.training(self.job.data.sequence).tokens, self.job.train.microbatch_size
        routes = [m.stages for m in sorted(self.plan(number).microbatches, key=lambda m: m.id)]
        total = len(routes) * size * self.job.data.sequence
        summed = 0.0
        for index, stages in enumerate(routes):
            at = BlockOrder(len(blocks), 0).at(((number - 1) * len(routes) + index) * size, size)
            loss = self.loss(stages, torch.from_numpy(blocks[at].astype("int64")))
            summed += loss.item()
            torch.autograd.backward(loss / total)
        gradients = [p.grad for p in self.named.values() if p.grad is not None]
        norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
        for gradient in gradients:
            gradient.mul_(min(CLIP / norm, 1.0))
        self.optimizer.step()  # parameters without a gradient stay as they are
        self.optimizer.zero_grad(set_to_none=True)
        return summed / total, norm

    def copy(self, sources: dict[int, int]) -> None:
        for layer, source in sources.items():
            self.layers[layer].load_state_dict(self.layers[source].state_dict())

    def validate(self, stages: Sequence[int]) -> float:
        blocks = self.corpus.validation(self.job.data.sequence, self.job.data.validation_blocks).tokens
        tokens = torch.from_numpy(blocks.astype("int64"))
        with torch.no_grad():
            return self.loss(stages, tokens).item() / tokens[:, 1:].numel()


def weights_of(run: Path) -> dict[str, Tensor]:
    """Tensors of a run's newest checkpoint by their full names, optimizer state included."""
    checkpoint = open_checkpoint(run)
    with open_tensors(checkpoint.path, checkpoint.manifest) as files:
        return {name: files.read(name).clone() for name in files}


LOOPS = (
    pytest.param(GROW, "init", {1: [0, 1], 4: [0, 1, 2, 3]}, id="init"),
    pytest.param(GROW, "copy", {1: [0, 1], 4: [0, 1, 2, 3]}, id="copy"),
    pytest.param(BETWEEN, "copy", {1: [0, 1], 3: [0, 2], 5: [0, 1, 2, 3]}, id="pauses"),
    pytest.param(MOVES, "copy", {1: [0, 1], 3: [0, 1, 2, 3], 5: [0, 1, 2]}, id="moves"),
)


@pytest.mark.parametrize(
    ("phases", "new_layers", "stages_at"),
    cases(LOOPS, [loop for loop in LOOPS if loop.id != "copy"]),  # which the others do too
)
def test_a_growing_model_is_a_plain_loop(
    phases: PhasesConfig,
    new_layers: str,
    stages_at: dict[int, list[int]],
    prepared: Path,
    folder: Folder,
    pool: Pool,
) -> None:
    run = folder("run")
    job = grow_job(phases, data__prepared=str(prepared), train__new_layers=new_layers)
    events = train_in_pool(pool, job, FOUR, run)
    plain = PlainLoop(job, run, prepared)
    validations = {event["iteration"]: event for event in of_kind(events, "validation")}
    stages, joined = stages_at[1], set(stages_at[1])
    assert validations[0]["loss"] == pytest.approx(plain.validate(stages), rel=1e-10)
    for event in of_kind(events, "iteration"):
        number = event["iteration"]
        stages = stages_at.get(number, stages)
        new = {*stages} - joined
        if new and new_layers == "copy":
            plain.copy(copy_sources(new, joined))
        joined |= new
        loss, norm = plain.iterate(number)
        assert event["loss"] == pytest.approx(loss, rel=1e-9)
        assert event["norm"] == pytest.approx(norm, rel=1e-8)
        assert validations[number]["loss"] == pytest.approx(plain.validate(stages), rel=1e-9)
        assert validations[number].get("stages") == (None if len(stages) == 4 else stages)
    found = weights_of(run)
    for name, parameter in plain.named.items():
        torch.testing.assert_close(found[f"weights/{name}"], parameter.detach(), rtol=1e-7, atol=1e-9, msg=name)
        state = plain.optimizer.state[parameter]
        assert float(found[f"optimizer/{name}/step"]) == float(state["step"]), name
        torch.testing.assert_close(found[f"optimizer/{name}/exp_avg"], state["exp_avg"], rtol=1e-6, atol=1e-10)
    changes = of_kind(events, "plan_changed")
    assert [event["iteration"] for event in changes] == [number for number in stages_at if number > 1]
    assert {change["copied"] for change in changes if change["new_layers"]} == {new_layers == "copy"}
    assert bool(changes[-1]["moved_stages"]) == (phases is MOVES)


def test_stages_that_have_not_joined_are_untouched(folder: Folder) -> None:
    """Weights are bit-equal to the initial ones, the optimizer has no state of them, and a checkpoint has neither."""
    phases = PhasesConfig([PhaseConfig(0.5, 0.0, 2), PhaseConfig(None, 0.0)])
    job, run = grow_job(phases), folder("run")
    spec = resolve(job)
    reported: list[EventDict] = []
    assert train_rank(spec, only_rank(spec), run, stopping_at(2, reported)) is not None
    found = weights_of(run)
    assert {layer for layer in range(4) if any(f".layers.{layer}." in name for name in found)} == {0, 1}
    state = open_checkpoint(run).state
    assert (state.iteration, state.layers, state.new_layers) == (3, [0, 1], "init")
    again = train_alone(job, run)
    first = of_kind(again, "iteration")[0]
    assert first["iteration"] == 4
    grown = weights_of(run)
    assert float(grown["optimizer/model.layers.0.mlp.up_proj.weight/step"]) == ITERATIONS
    assert float(grown["optimizer/model.layers.3.mlp.up_proj.weight/step"]) == ITERATIONS / 2


@pytest.mark.parametrize("new_layers", cases(["init", "copy"], ["init"]))
def test_it_resumes_exactly_and_alone_it_is_bit_equal_to_many(new_layers: str, folder: Folder, pool: Pool) -> None:
    job = grow_job(train__dtype="float32", train__new_layers=new_layers, train__validate_every=None)
    there, here = folder("many"), folder("alone")
    many, alone = train_in_pool(pool, job, FOUR, there), train_alone(job, here)
    losses = {event["iteration"]: (event["loss"], event["norm"]) for event in of_kind(many, "iteration")}
    assert losses == {event["iteration"]: (event["loss"], event["norm"]) for event in of_kind(alone, "iteration")}
    expected = weights_of(there)
    runs = {"alone": here}
    for stop in cases((1, 2, 3), (2, 3)):  # after iterations 2, 3 and 4; the second phase begins with iteration 4
        run = runs[f"cut at {stop}"] = folder(f"cut at {stop}")
        spec = resolve(job)
        assert train_rank(spec, only_rank(spec), run, stopping_at(stop, [])) is not None
        again = train_in_pool(pool, job, FOUR, run) if stop == 2 else train_alone(job, run)
        assert of_kind(again, "resumed")[0]["plan_kept"]
        for event in of_kind(again, "iteration"):
            assert losses[event["iteration"]] == (event["loss"], event["norm"])
    for name, run in runs.items():
        found = weights_of(run)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in expected.items()), name


def test_moved_stages_resume_exactly(folder: Folder, pool: Pool) -> None:
    """Stopped again and again, also at boundaries, several processes come to the same weights and moments."""
    job = grow_job(MOVES, train__dtype="float32", train__new_layers="copy", train__validate_every=None)

    def train(run: Path, stop_at: int) -> list[EventDict]:
        by_rank: list[list[EventDict]] = pool.run(
            one_rank, [(resolve(job), None, run, free_port(), stop_at)] * 4, timeout_s=120
        )
        return by_rank[0]

    whole, cut = folder("whole"), folder("cut")
    losses = {event["iteration"]: event["loss"] for event in of_kind(train(whole, NEVER), "iteration")}
    found: dict[int, float] = {}
    at = 0
    while at < ITERATIONS - 2:  # it stops one iteration after the one named
        events = train(cut, at + 1)
        found |= {event["iteration"]: event["loss"] for event in of_kind(events, "iteration")}
        at = of_kind(events, "stopped")[0]["iteration"]
    found |= {event["iteration"]: event["loss"] for event in of_kind(train(cut, NEVER), "iteration")}
    assert found == losses
    check_equal(whole, cut)


@pytest.mark.parametrize(
    ("early", "new"),
    [(PhaseConfig(0.5, 0.0, 2), [3]), (PhaseConfig(0.5, 0.0, layers=0.5), [1])],
    ids=["stages", "layers"],
)
def test_replicas_get_the_same_copies(early: PhaseConfig, new: list[int], folder: Folder, pool: Pool) -> None:
    """Two ranks serve the stage that joins, and the ranks of a copied layer are two as well."""
    cluster = make_cluster(5, [2, 1, 2])
    job = make_job(
        cluster=cluster, phases=PhasesConfig([early, PhaseConfig()]), train__new_layers="copy",
        train__layers=[2, 1, 1], train__iterations=4,
    )  # fmt: skip
    many, run = [(f"local-{node}",) for node in range(5)], folder("run")
    events = train_in_pool(pool, job, many, run)
    (changed,) = of_kind(events, "plan_changed")
    assert (changed["new_layers"], changed["stages"], changed["copied"]) == (new, [0, 1, 2], True)
    alone = of_kind(train_alone(job, folder("alone")), "iteration")
    for ours, theirs in zip(alone, of_kind(events, "iteration"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def test_several_microbatches_in_one_pass(folder: Folder) -> None:
    plain, grouped = (
        of_kind(train_alone(grow_job(runtime__group=group), folder(f"group {group}")), "iteration") for group in (1, 4)
    )
    for theirs, ours in zip(plain, grouped, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        assert ours["norm"] == pytest.approx(theirs["norm"], rel=1e-8)


def test_changes_of_phases_are_predicted(folder: Folder, pool: Pool) -> None:
    """From measured links, as the iterations are; the text has both times."""
    job = grow_job(MOVES, train__dtype="float32", train__validate_every=None, runtime__calibrate=True)
    run = folder("run")
    events = train_in_pool(pool, job, FOUR, run)
    changed, (plan,) = of_kind(events, "plan_changed"), of_kind(events, "plan")
    assert [bool(event["moved_stages"]) for event in changed] == [False, True]
    assert [phase["change_s"] > 0 for phase in plan["phases"]] == [False, False, True]
    for event, phase in zip(changed, plan["phases"][1:], strict=True):
        assert event["predicted_change_s"] == phase["change_s"]
        (_, line) = changed_lines(PlanChanged(**{key: value for key, value in event.items() if key != "event"}))
        assert f"blocked for {event['seconds']:.3f} s (predicted {phase['change_s']:.3f} s)" in line
    weights = weight_bytes(partition_model(resolve(job), model_config(job.model)), torch.float32)
    saved = sum(tensor.nbytes for name, tensor in weights_of(run).items() if name.startswith("weights/"))
    assert sum(weights.of_layer) + weights.outside == saved


def test_phases_are_reported_with_their_plans(folder: Folder) -> None:
    run = folder("run")
    events = train_alone(grow_job(train__validate_every=None), run)
    (plan,) = of_kind(events, "plan")
    assert [phase["stages_in_use"] for phase in plan["phases"]] == [[0, 1], [0, 1, 2, 3]]
    assert [phase["left_out"] for phase in plan["phases"]] == [0.5, 0.25]
    assert plan["files"]["plans"] == {"0": "plan.json", "3": "plan_after_3.json"}
    first, second = (load_plan(str(run / name)) for name in ("plan.json", "plan_after_3.json"))
    assert (first.absent_stages, first.absent_nodes, second.absent_stages) == ([2, 3], [2, 3], [])
    assert first.stages[:2] == second.stages[:2]
    assert len(first.microbatches) == len(second.microbatches)
    assert json.loads((run / "plan.json").read_text())["layers"] == [1, 1, 1, 1]


INSIDE = PhasesConfig([PhaseConfig(1 / 3, 0.0, layers=1), PhaseConfig(1 / 3, 0.25), PhaseConfig(None, layers=0.5)])
"""One of two layers of every stage, then all, then one of them again."""


class PlainLoopOfTwo(PlainLoop):
    """The same for two stages of two layers each, of which `used` names those in use."""

    used: Sequence[int] = (0,)

    def loss(self, stages: Sequence[int], tokens: Tensor) -> Tensor:
        return super().loss([2 * stage + layer for stage in stages for layer in self.used], tokens)


@pytest.mark.parametrize("new_layers", cases(["init", "copy"], ["copy"]))
def test_growth_inside_of_stages_is_a_plain_loop(
    new_layers: str, prepared: Path, folder: Folder, pool: Pool, run: Run, tmp_path: Path
) -> None:
    """Also where layers that have joined pause: no step, no decay."""
    path = folder("run")
    job = grow_job(
        INSIDE, cluster=make_cluster(2, [1, 1]), data__prepared=str(prepared), train__new_layers=new_layers,
        schedule__skip_ratio=0.0,
    )  # fmt: skip
    events = train_in_pool(pool, job, FOUR[:2], path)
    plain = PlainLoopOfTwo(job, path, prepared)
    validations = {event["iteration"]: event for event in of_kind(events, "validation")}
    for event in of_kind(events, "iteration"):
        number = event["iteration"]
        if number == 3 and new_layers == "copy":
            plain.copy({1: 0, 3: 2})
        plain.used = (0, 1) if number in {3, 4} else (0,)
        loss, norm = plain.iterate(number)
        assert event["loss"] == pytest.approx(loss, rel=1e-9)
        assert event["norm"] == pytest.approx(norm, rel=1e-8)
        assert validations[number]["loss"] == pytest.approx(plain.validate([0, 1]), rel=1e-9)
        assert validations[number].get("layers") == (None if number in {3, 4} else [0, 2])
    found = weights_of(path)
    for name, parameter in plain.named.items():
        torch.testing.assert_close(found[f"weights/{name}"], parameter.detach(), rtol=1e-7, atol=1e-9, msg=name)
        assert float(found[f"optimizer/{name}/step"]) == float(plain.optimizer.state[parameter]["step"]), name
    first, second = of_kind(events, "plan_changed")
    assert (first["moved_stages"], first["new_layers"], first["bent_rules"]) == ([], [1, 3], [])
    assert (second["new_layers"], second["bent_rules"]) == ([], ["2 of 4 layers"])
    assert [phase["left_out"] for phase in of_kind(events, "plan")[0]["phases"]] == [0.5, 0.25, 0.5]


def test_growth_inside_resumes_and_is_exported_as_it_is(folder: Folder, run: Run, tmp_path: Path) -> None:
    job = grow_job(INSIDE, cluster=make_cluster(2, [1, 1]), train__dtype="float32", train__new_layers="copy")
    spec, whole, cut = resolve(job), folder("whole"), folder("cut")
    train_rank(spec, only_rank(spec), whole, record_into([]))
    assert train_rank(spec, only_rank(spec), cut, stopping_at(1, [])) is not None
    stored = {name.split("layers.")[1][0] for name in weights_of(cut) if "layers." in name}
    assert stored == {"0", "2"}, "layers that have not joined are not stored"
    exported = run("export", f"checkpoint={cut}", "output=model")
    assert exported.out.startswith("iteration 2, the layers in use (0,2 of 4): "), exported.err
    assert LlamaForCausalLM.from_pretrained(tmp_path / "model").config.num_hidden_layers == 2
    assert open_model(EvaluateJob(checkpoint=str(cut))).sizes == (1, 1)
    train_rank(spec, only_rank(spec), cut, record_into([]))
    check_equal(whole, cut)


def test_a_resumed_run_adds_layers_as_it_began(folder: Folder) -> None:
    run = folder("run")
    spec = resolve(grow_job())
    assert train_rank(spec, only_rank(spec), run, stopping_at(2, [])) is not None
    other = resolve(grow_job(train__new_layers="copy"))
    with pytest.raises(InputError, match=r"train\.new_layers: expected init, got copy; layers are still to join"):
        train_rank(other, only_rank(other), run, record_into([]))


def test_a_half_grown_model_is_one_of_its_layers(folder: Folder, run: Run, tmp_path: Path) -> None:
    """It is evaluated and exported as the model of the layers that have joined, numbered from 0."""
    path = folder("run")
    phases = PhasesConfig([PhaseConfig(0.5, 0.0, absent_stages=[1, 3]), PhaseConfig(None, 0.0)])
    job, reported = grow_job(phases, train__dtype="float32"), list[EventDict]()
    spec = resolve(job)
    assert train_rank(spec, only_rank(spec), path, stopping_at(2, reported)) is not None
    exported = run("export", f"checkpoint={path}", "output=model")
    assert exported.out.startswith("iteration 3, the layers in use (0,2 of 4): "), exported.err
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.num_hidden_layers == 2
    saved = weights_of(path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, saved[f"weights/{name.replace('layers.1.', 'layers.2.')}"]), name
    assert of_kind(reported, "validation")[-1]["stages"] == [0, 2]
    evaluated = open_model(EvaluateJob(checkpoint=str(path)))
    assert evaluated.sizes == (1, 1)
    assert evaluated.stage_of_node == {"local-0": 0, "local-2": 1}
    module = evaluated.load(torch.float32, torch.device("cpu"))
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([], "phases.list: expected at least one phase, got an empty list"),
        ([PhaseConfig(), PhaseConfig()], r"phases.list\[0\].share: expected a number below 1: .*, got null"),
        ([PhaseConfig(0.5), PhaseConfig(0.5), PhaseConfig()], r"phases.list\[1\].share: .*below 0.5: .*, got 0.5"),
        ([PhaseConfig(0.5), PhaseConfig(0.4)], r"phases.list\[1\].share: expected null or 0.5: .*, got 0.4"),
        ([PhaseConfig(0.1), PhaseConfig()], r"phases.list\[0\].share: expected .*one of the 4 iterations .*, got 0.1"),
        ([PhaseConfig(stages=4)], r"phases.list\[0\].stages: .*whole number up to the 3 stages, got 4"),
        ([PhaseConfig(stages=1.5)], r"phases.list\[0\].stages: .*, got 1.5"),
        ([PhaseConfig(stages=2, absent_stages=[1])], r"phases.list\[0\].stages: expected null, .*, got 2"),
        ([PhaseConfig(absent_stages=[3])], r"phases.list\[0\].absent_stages\[0\]: expected .*\(1, 2\), got 3"),
        ([PhaseConfig(absent_stages=[2, 2])], r"phases.list\[0\].absent_stages\[1\]: expected different .*, got 2"),
        ([PhaseConfig(stages=1)], r"phases.list\[0\].skip_ratio: expected .*, got 0.333"),
        ([PhaseConfig(0.5), PhaseConfig(skip_ratio=0.9)], r"phases.list\[1\].skip_ratio: expected .*, got 0.9"),
    ],
)
def test_phases_that_cannot_be(phases: list[PhaseConfig], message: str) -> None:
    job = make_job(phases=PhasesConfig(phases))
    with pytest.raises(InputError, match=message):
        plan_phases(job, resolve_layout(job))


def test_a_given_plan_allows_for_one_phase(folder: Folder) -> None:
    run = folder("run")
    train_alone(make_job(train__iterations=1), run)
    job = make_job(plan=str(run / "plan.json"), phases=GROW)
    with pytest.raises(InputError, match=r"phases\.list: expected published with plan="):
        resolve(job)


def test_a_stage_without_visits_takes_no_step() -> None:
    """No decay, no moments, no step count; and the norm is that of the stages visited."""
    config = model_config(make_job().model)
    modules = [build_stage_module(config, stage=s, layers=range(s, s + 1), first=s == 0, seed=0) for s in range(2)]
    stages = {number: Stage(module) for number, module in enumerate(modules)}
    optimizer = StageOptimizer(stages, resolve(grow_job()).optimizer, tokens=8, iterations=1)
    before = [[p.detach().clone() for p in module.parameters()] for module in modules]
    for number, stage in stages.items():
        stage.begin(8, visited=number == 0)
    tokens = torch.arange(8).view(1, 8)
    hidden = stages[0].forward(0, stages[0].embed(0, tokens))
    stages[0].embed_backward(0, stages[0].backward(0, stages[0].loss(0, hidden, tokens)))
    assert stages[1].gradients() == []
    norm = float(torch.cat([gradient.flatten() for gradient in stages[0].gradients()]).norm())
    optimizer.step(norm)
    moved, same = (
        [torch.equal(*pair) for pair in zip(b, m.parameters(), strict=True)]
        for b, m in zip(before, modules, strict=True)
    )
    assert not any(moved)
    assert all(same)
    kept = optimizer.tensors(dict(modules[1].named_parameters()))
    assert kept
    assert not any(tensor.any() for tensor in kept.values())
