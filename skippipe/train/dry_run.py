"""`skippipe train --dry-run`: plan, model, text and memory, checked in one process for any number of ranks."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from skippipe._scheduler import Plan
from skippipe.data.prepare import corpus_folder
from skippipe.errors import InputError
from skippipe.model.build import stage_layers
from skippipe.model.folder import find_folder
from skippipe.model.memory import StageMemory, stage_memory
from skippipe.model.settings import config_sha256, model_config
from skippipe.model.weights import check_weights
from skippipe.ranks import assign_ranks, node_title
from skippipe.report.terminal import plain_table
from skippipe.runtime.check import live_receives
from skippipe.runtime.lower import lower, lower_evaluation
from skippipe.train.config import TrainJob
from skippipe.train.display import plan_lines
from skippipe.train.layout import layout_of
from skippipe.train.loop import number_type, safe_buffers
from skippipe.train.place import check_alone, deal
from skippipe.train.plans import (
    check_phases,
    full_pipelines,
    judge_prediction,
    model_note,
    plan_event,
    plan_for,
    stage_sizes,
)
from skippipe.train.texts import load_texts
from skippipe.train.tokenizer import data_settings

MEBIBYTE = 2**20


@dataclasses.dataclass(frozen=True)
class RankMemory:
    """Bytes that one rank takes at most, but for what torch itself takes."""

    names: tuple[str, ...]
    stages: tuple[int, ...]
    parameters: int
    weights: int
    """weights, gradients and what the optimizer keeps"""
    activations: int
    """what the microbatches hold that the plan lets its nodes hold at one time, and the loss of one"""
    messages: int
    """receive buffers and sends under way"""

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.activations + self.messages


def dry_run(job: TrainJob, console: Console) -> None:
    """Check everything that can be checked before a training, and print what it will take.

    Raises:
        InputError: something does not fit; the message names it.
        SchedulerError: there is no plan, or it would hang.

    """
    config: Any = model_config(job.model)
    layout = layout_of(job)
    if "folder" in job.model:
        check_weights(find_folder(job.model["folder"]))
    note = model_note(job, config_sha256(config), config.hidden_size, config.num_hidden_layers)
    layers = stage_sizes(job, layout, note)
    with corpus_folder(data_settings(job)) as folder:
        texts = load_texts(job, config.vocab_size, config.max_position_embeddings, folder)
    check_phases(job, layout.cluster, layout.allocation)
    plan = layout.plan or plan_for(job, layout.cluster, layout.allocation, layers, note)
    served = deal(layout.used, job.runtime.processes)
    check_alone(job.runtime, len(served))
    rank_of = assign_ranks(layout.cluster.names, served, layout.unused)
    programs = lower(plan, rank_of)
    evaluation = lower_evaluation(plan, rank_of, texts.validation_microbatches)
    grouped = job.runtime.group > 1
    recv_buffers, sends = safe_buffers([programs, evaluation], job.runtime), job.runtime.sends_in_flight
    estimates = [
        stage_memory(
            config, stage=s, layers=numbers, first=s == 0, batch=note.microbatch_size, sequence=note.sequence,
            dtype=number_type(job),
        )
        for s, numbers in enumerate(stage_layers(layers, config))
    ]  # fmt: skip
    receives = live_receives(programs, recv_buffers)
    ranks = [
        rank_memory(plan, names, estimates, (receives[rank] + sends) * note.message_bytes, grouped=grouped)
        for rank, names in enumerate(served)
    ]
    about = {
        "model": config.model_type,
        "parameters": sum(estimate.parameters for estimate in estimates),
        "layers": layers,
        "processes": len(served),
        "training_tokens": texts.training.tokens.size,
    }
    device = "cpu" if job.runtime.device == "cpu" else None  # where it will train may be another machine
    prediction = judge_prediction(plan, note, layers, job, device)
    if layout.plan is None and job.runtime.calibrate:
        later = "; training times the stages first (runtime.calibrate)"
        prediction = dataclasses.replace(prediction, note=prediction.note + later if prediction.note else "")
    full = full_pipelines(plan, job.planner) if prediction.holds else {}
    for line in plan_lines(plan_event(plan, note, prediction, full) | about):
        console.print(line, markup=False, soft_wrap=True)
    _show(console, ranks)
    if not grouped:
        console.print(f"proved not to hang with recv_buffers={recv_buffers}, sends_in_flight={sends}", markup=False)
    check_memory(ranks, job.runtime.memory_bytes)


def rank_memory(
    plan: Plan, names: Sequence[str], estimates: Sequence[StageMemory], messages: int, *, grouped: bool = False
) -> RankMemory:
    """Add up what a rank takes that serves the nodes `names`: weights of a stage once, activations for every node.

    Of `grouped` passes, all microbatches of an iteration are held at one time, and losses are taken of many together.
    """
    stage_of = {node: stage for stage, nodes in enumerate(plan.stages) for node in nodes}
    held = Counter(task.node for task in plan.tasks if task.kind == "F") if grouped else most_held(plan)
    losses = len(plan.microbatches) if grouped else 1
    nodes = [plan.cluster.names.index(name) for name in names]
    stages = sorted({stage_of[node] for node in nodes})
    return RankMemory(
        names=tuple(names),
        stages=tuple(stages),
        parameters=sum(estimates[s].parameters for s in stages),
        weights=sum(e.weight_bytes + e.gradient_bytes + e.optimizer_bytes for e in (estimates[s] for s in stages)),
        activations=sum(held[node] * estimates[stage_of[node]].activation_bytes for node in nodes)
        + losses * sum(estimates[s].loss_bytes for s in stages),
        messages=messages,
    )


def most_held(plan: Plan) -> Counter[int]:
    """Count the most microbatches that each node holds at one time, from the start of F to the end of B."""
    now: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for task in plan.tasks:  # those of one node stand in the order in which it runs them
        if task.kind == "F":
            now[task.node] += 1
            most[task.node] = max(most[task.node], now[task.node])
        elif task.kind == "B":
            now[task.node] -= 1
    return most


def check_memory(ranks: Sequence[RankMemory], limit: float | None) -> None:
    """Raise `InputError` naming the node where a rank takes more than there is."""
    for number, rank in enumerate(ranks):
        if limit is not None and rank.total > limit:
            raise InputError(
                f"{node_title(rank.names, number)} needs {rank.total:,} bytes, runtime.memory_bytes is {limit:,.0f}; "
                "fewer layers, smaller microbatches or less cluster memory would take less"
            )


def _show(console: Console, ranks: Sequence[RankMemory]) -> None:
    table = plain_table()
    for heading in ("rank", "nodes", "stages", "parameters", "weights", "activations", "messages", "all"):
        table.add_column(heading, justify="left" if heading == "nodes" else "right")
    for number, rank in enumerate(ranks):
        sizes = (f"{size / MEBIBYTE:,.1f} MiB" for size in (rank.weights, rank.activations, rank.messages, rank.total))
        stages = ",".join(map(str, rank.stages))
        table.add_row(str(number), ",".join(rank.names), stages, f"{rank.parameters:,}", *sizes)
    console.print(table)
    console.print("weights with gradients and AdamW; torch itself takes some hundred MiB beside")
