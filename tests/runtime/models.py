"""Tiny models trained by programs in workers, and by a plain loop in one process."""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from numpy.typing import NDArray
from reference.instances import Json, legal_routes, random_cluster, random_orders
from reference.plans import plan_of
from reference.simulator import run_order
from torch import Tensor, nn
from torch import distributed as dist

from skippipe import Plan
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.families import family_of
from skippipe.model.settings import model_config
from skippipe.runtime.actions import Program, Task
from skippipe.runtime.deadlock import min_recv_buffers
from skippipe.runtime.executor import Executor, overlapping_sums
from skippipe.runtime.links import Link
from skippipe.runtime.links.emulated import EmulatedLink, Uplink
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.links.gpu import GpuLink
from skippipe.runtime.links.peer import PeerEdges
from skippipe.runtime.links.staged import StagedLink
from skippipe.runtime.lower import lower
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.runtime.stage_graphs import StageGraphs
from skippipe.train.loop.engine import connect
from skippipe.train.prepare.stages import warm_up

Arrays = dict[str, NDArray[Any]]

BATCH, SEQUENCE, HIDDEN, VOCABULARY = 2, 8, 16, 64
LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}
MAX_NORM = 0.5
EMULATED = "emulated "


Backwards = Mapping[str | int, Sequence[tuple[int, str]]]


@dataclass(frozen=True)
class Training:
    """What to train, and how."""

    settings: Mapping[str, Any]
    """of the model"""
    layers: tuple[int, ...]
    """decoder layers of each stage"""
    plan: str
    """a skippipe.plan/1 object"""
    ranks: tuple[int, ...]
    """rank of each node"""
    dtype: str = "float32"
    iterations: int = 1
    seed: int = 3
    links: str = "gloo"
    """gloo, or gloo with sums in parts, on CPUs; nccl, peer or staged, each rank on a GPU, or one of these emulated"""
    graphs: bool = False
    """whether stages launch CUDA graphs"""
    wire: str | None = None
    """type of messages; None: `dtype`"""

    def stage_of_node(self) -> list[int]:
        """The stage of every node, by number."""
        stages = Plan.from_json(self.plan).stages
        return [next(s for s, nodes in enumerate(stages) if n in nodes) for n in range(sum(map(len, stages)))]

    def device(self, rank: int) -> torch.device:
        """On which a rank computes."""
        return torch.device("cpu" if self.links in {"gloo", "parts"} else f"cuda:{rank}")

    @property
    def programs(self) -> tuple[Program, ...]:
        return lower(Plan.from_json(self.plan), self.ranks)


@dataclass(frozen=True)
class Trained:
    """Result of a training: in a worker for the rank's stages, in the plain loop for the full model."""

    gradients: list[Arrays]
    """of each iteration, by name, before clipping"""
    norms: list[float]
    weights: Arrays
    losses: list[dict[int, float]]
    """sums of token losses by microbatch, for each iteration"""


def make_plan(rng: Random, sizes: Sequence[int], skip_ratio: float, count: int, **rules: Any) -> str:
    """A random plan with these nodes per stage and microbatches per source, with swaps if possible."""
    nodes = list(range(sum(sizes)))
    rng.shuffle(nodes)
    stages = [[nodes.pop() for _ in range(size)] for size in sizes]
    constraints = {
        "cc1": True, "cc2": True, "cc3": True, "tc1": "held", "tc2": True,
        "max_swaps": 2, "waves": 1, "max_stage_jump": None, **rules,
    }  # fmt: skip
    instance: Json = {
        "cluster": random_cluster(rng, sum(sizes), len(sizes)),
        "stages": stages,
        "absent_stages": [],
        "constraints": constraints,
        "skip_ratio": skip_ratio,
        "counts": [count] * sizes[0],
    }
    while True:
        microbatches = legal_routes(rng, instance)
        if microbatches is None:
            continue
        outcome = run_order(instance, microbatches, random_orders(rng, instance, microbatches))
        plan = json.dumps(plan_of(instance, outcome)) if not outcome.stuck else ""
        if plan and (len(sizes) < 4 or swaps(plan)):
            return plan


def swaps(plan: str) -> int:
    """Hops of the plan's routes back to an earlier stage."""
    stages = [b["stages"] for b in json.loads(plan)["microbatches"]]
    return sum(a > b for route in stages for a, b in itertools.pairwise(route))


def token_batch(seed: int, iteration: int, microbatch: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of a microbatch; some labels are masked."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + iteration * 1009 + microbatch)
    text = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
    labels = text[:, 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    return text[:, :-1].clone(), labels


def valid_tokens(training: Training, iteration: int) -> int:
    return sum(
        int((token_batch(training.seed, iteration, b["id"])[1] != -100).sum())
        for b in json.loads(training.plan)["microbatches"]
    )


def config_of(training: Training) -> Any:
    return model_config({**training.settings, "num_hidden_layers": sum(training.layers)})


def arrays(named: Mapping[str, Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().clone().numpy() for name, tensor in named.items()}


def initial_weights(training: Training) -> Arrays:
    """Weights before the first step."""
    return arrays(Plain(training).named)


def optimizer(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def clip(parameters: Sequence[nn.Parameter], norm: float) -> None:
    if norm > MAX_NORM:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(MAX_NORM / norm)


def train(rank: int, training: Training) -> Trained:
    """Train this rank's stages by its program."""
    plan, config = Plan.from_json(training.plan), config_of(training)
    dtype = getattr(torch, training.dtype)
    layers = stage_layers(training.layers, config)
    own = [s for s, nodes in enumerate(plan.stages) if rank in {training.ranks[n] for n in nodes}]
    device = training.device(rank)
    build = partial(build_stage_module, config, seed=training.seed, dtype=dtype, device=device)
    stages = {s: Stage(build(stage=s, layers=layers[s], first=s == 0)) for s in own}
    parameters = [p for stage in stages.values() for p in stage.parameters]
    steps = optimizer(parameters)
    programs = training.programs
    buffers = min_recv_buffers(programs, 1, 1)
    assert buffers is not None
    wire = None if training.wire is None else getattr(torch, training.wire)
    message_spec = MessageSpec(BATCH, SEQUENCE, HIDDEN, dtype, device, wire)
    link = open_link(rank, training.links, device)
    connect(link, programs)
    for stage in stages.values():
        warm_up(stage, message_spec, VOCABULARY)
    actions, graphs = programs[rank].actions, None
    if training.graphs:
        watched = overlapping_sums(actions, link)
        graphs = StageGraphs(actions, stages, message_spec, watched, host_share=0.0)
    executor = Executor(
        programs[rank], graphs.stages if graphs else stages, link, control=GlooLink(),
        buffers=MessageBuffers(message_spec), recv_buffers=buffers, sends_in_flight=1,
    )  # fmt: skip
    named = {name: p for stage in stages.values() for name, p in stage.module.named_parameters()}
    result = Trained([], [], {}, [])

    def step(norm: float) -> None:
        result.norms.append(norm)
        result.gradients.append(arrays({name: p.grad for name, p in named.items() if p.grad is not None}))
        clip(parameters, norm)
        steps.step()

    visited = {stage for microbatch in plan.microbatches for stage in microbatch.stages}
    for iteration in range(training.iterations):
        for number, stage in stages.items():
            stage.begin(valid_tokens(training, iteration), visited=number in visited)
        with graphs.iteration() if graphs else nullcontext():
            executor.run(lambda b, i=iteration: on_device(token_batch(training.seed, i, b), device), step, 30.0)
        result.losses.append({b: x for stage in stages.values() for b, x in stage.take_losses().items()})
    result.weights.update(arrays(named))
    return result


def open_link(rank: int, links: str, device: torch.device) -> Link:
    """A link of the kind that a training asks for."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if links.startswith(EMULATED):
        uplink = Uplink((0.001,) * dist.get_world_size(), (0.0,) * dist.get_world_size())
        return EmulatedLink(open_link(rank, links.removeprefix(EMULATED), device), uplink, host_link=GlooLink())
    if links in {"nccl", "peer"}:
        peers = PeerEdges(rank, device, 1000, exchange)  # messages travel in several parts
        return GpuLink(rank, device, peers if links == "peer" else None)
    if links == "staged":
        return StagedLink(GlooLink())
    return LinkOfParts() if links == "parts" else GlooLink()


def exchange(text: str) -> list[str]:
    """Give a text to all ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, text)
    return found


class LinkOfParts(GlooLink):
    """Sums of a stage in the parts in which a GPU would begin them, though they all run at the end."""

    overlaps_sums = True


def on_device(batch: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    return batch[0].to(device), batch[1].to(device)


class Plain:
    """The full transformers model, run layer by layer along the routes."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.device = training.device(0)
        self.config = config_of(training)
        self.dtype = getattr(torch, training.dtype)
        total = sum(training.layers)
        full_model = build_stage_module(
            self.config, stage=0, layers=range(total), first=True, seed=training.seed, dtype=self.dtype
        )
        family = family_of(self.config.model_type)
        model: Any = family.model_class()
        self.model = model(self.config).to(self.device, self.dtype)
        self.model.load_state_dict(full_model.state_dict(), strict=False)
        self.named = dict(self.model.named_parameters())
        self.body = getattr(self.model, family.body)
        self.embedding = getattr(self.body, family.embedding)
        self.head = getattr(self.model, family.head)
        self.names = {"embedding": f"{family.body}.{family.embedding}.weight", "head": f"{family.head}.weight"}
        self.tied = self.head.weight is self.embedding.weight
        if self.tied:  # two leaves, so that what each adds is known on its own
            self.head.weight = nn.Parameter(self.head.weight.detach().clone())
        self.leaves = dict(self.model.named_parameters())
        self.layers = list(self.body.layers)
        self.stage_layers = stage_layers(training.layers, self.config)
        self.routes = {b["id"]: b["stages"] for b in json.loads(training.plan)["microbatches"]}

    def stage_of(self, name: str) -> int:
        """The stage that holds a parameter; embedding, final norm and head are on stage 0."""
        parts = name.split(".")
        number = int(parts[parts.index("layers") + 1]) if "layers" in parts else None
        return next((s for s, layers in enumerate(self.stage_layers) if number in layers), 0)

    def loss(self, iteration: int, microbatch: int) -> Tensor:
        """Sum of token losses over the layers of the microbatch's route."""
        tokens, labels = on_device(token_batch(self.training.seed, iteration, microbatch), self.device)
        order = [self.layers[i] for s in self.routes[microbatch] for i in self.stage_layers[s]]
        self.body.layers = nn.ModuleList(order)
        self.model.config.num_hidden_layers = len(order)
        logits = self.model(input_ids=tokens, use_cache=False).logits.flatten(0, 1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return nn.functional.cross_entropy(logits.to(wide), labels.flatten(), ignore_index=-100, reduction="sum")

    def iterate(self, iteration: int, backwards: Backwards) -> dict[int, float]:
        """Set the gradients of an iteration: microbatch by microbatch, added up for each parameter in its order."""
        if self.tied:
            with torch.no_grad():
                self.head.weight.copy_(self.embedding.weight)
        tokens = valid_tokens(self.training, iteration)
        losses, parts = {}, {}
        for b in self.routes:
            loss = self.loss(iteration, b)
            losses[b] = loss.item()
            found = torch.autograd.grad(loss / tokens, list(self.leaves.values()), allow_unused=True)
            parts[b] = dict(zip(self.leaves, found, strict=True))
        for name, parameter in self.named.items():
            parameter.grad = None
            for b, leaf in self.additions(name, backwards):
                part = parts[b][leaf]
                if part is not None:
                    parameter.grad = part.clone() if parameter.grad is None else parameter.grad + part
            if parameter.grad is None and any(self.stage_of(name) in route for route in self.routes.values()):
                parameter.grad = torch.zeros_like(parameter)  # an expert without tokens
        return losses

    def additions(self, name: str, backwards: Backwards) -> Iterator[tuple[int, str]]:
        """Which microbatches add to the gradient of a parameter, and as which leaf, in order."""
        if "layers" in name:
            yield from ((b, name) for b, _ in backwards.get(self.stage_of(name), []))
            return
        own = "embedding" if name == self.names["embedding"] else "head"
        for b, part in backwards["ends"]:
            if part == own:
                yield b, name
            elif self.tied and own == "embedding":
                yield b, self.names["head"]

    def norm(self) -> float:
        """Norm of the gradient, added up stage by stage."""
        squares: dict[int, float] = defaultdict(float)
        for name, parameter in self.named.items():
            if parameter.grad is None:
                continue
            norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
            squares[self.stage_of(name)] += norm.square().item()
        return math.sqrt(sum(squares[s] for s in sorted(squares)))


def backward_orders(training: Training) -> dict[str | int, list[tuple[int, str]]]:
    """Microbatches in the order of their backward passes, with the part of the model: by stage, and in `ends`."""
    tasks = [action for program in training.programs for action in program.actions if isinstance(action, Task)]
    away = {task.microbatch for task in tasks if task.kind == "e"}
    found: dict[str | int, list[tuple[int, str]]] = {"ends": []}
    for task in tasks:
        b = task.microbatch
        if task.kind == "B":
            found.setdefault(task.stage, []).append((b, "layers"))
        if task.kind == "e" or (task.kind == "B" and task.hop == 0 and b not in away):
            found["ends"].append((b, "embedding"))
        if task.kind == "L":
            found["ends"].append((b, "head"))
    return found


def train_plain(training: Training) -> Trained:
    """The same training in one process, without stages, links or plan: one microbatch after the other."""
    torch.set_num_threads(1)  # as in the workers: sums over threads take another order
    plain = Plain(training)
    backwards = backward_orders(training)
    parameters = list(plain.named.values())
    steps = optimizer(parameters)
    result = Trained([], [], {}, [])
    for iteration in range(training.iterations):
        result.losses.append(plain.iterate(iteration, backwards))
        result.gradients.append(arrays({name: p.grad for name, p in plain.named.items() if p.grad is not None}))
        result.norms.append(plain.norm())
        clip(parameters, result.norms[-1])
        steps.step()
    result.weights.update(arrays(plain.named))
    return result
