"""`skippipe train --dry-run`: plan, model, text and memory, checked in one process for any number of ranks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from skippipe._scheduler import Plan
from skippipe.console.output import Console, plain_table
from skippipe.data.prepare import corpus_folder
from skippipe.errors import unexpected
from skippipe.model.memory import StageMemory, stage_memory
from skippipe.model.settings import model_config
from skippipe.model.weights import check_weights
from skippipe.phases import phase_changes
from skippipe.ranks import assign_ranks, node_title
from skippipe.redundancy import copy_transfers
from skippipe.runtime.deadlock import peak_recv_buffers
from skippipe.runtime.lower import lower, lower_evaluation
from skippipe.train.connect.rank_spec import assign_nodes, check_single_process
from skippipe.train.loop.engine import safe_buffers
from skippipe.train.loop.recording import may_be_recorded
from skippipe.train.loop.token_batches import open_batches
from skippipe.train.observe.display import plan_lines
from skippipe.train.prepare.planning import full_pipelines, on_ranks, plan_phase, plan_ready
from skippipe.train.prepare.prediction import Prediction, judge_prediction
from skippipe.train.prepare.stages import PartitionedModel, partition_model
from skippipe.train.resolve.spec import RedundancySpec, RunSpec

MEBIBYTE = 2**20


@dataclass(frozen=True)
class RankMemory:
    """Most bytes that one rank takes, without torch itself."""

    names: tuple[str, ...]
    stages: tuple[int, ...]
    parameters: int
    weights: int
    """weights, gradients and optimizer state"""
    activations: int
    """of the microbatches that the plan lets its nodes hold at one time, and of a loss or a layer's backward"""
    messages: int
    """receive buffers and sends in flight"""
    in_transit: int
    """weights and moments of the largest stage that changes ranks here; between iterations, so without the two above"""
    copies: int = 0
    """of stages of other ranks, in the host's memory: complete ones and those that arrive; and own ones on their way"""

    def total(self, device: str) -> int:
        """All together on what computes."""
        weights = self.weights + (self.copies if device == "cpu" else 0)
        return weights + max(self.activations + self.messages, self.in_transit)


def dry_run(spec: RunSpec, console: Console) -> None:
    """Check everything that can be checked before a run, and print what it will take.

    Raises:
        InputError: something does not fit; the message names it.
        SchedulerError: there is no plan, or it would deadlock.

    """
    config: Any = model_config(spec.model.settings)
    if spec.model.folder is not None:
        check_weights(spec.model.folder)
    model = partition_model(spec, config)
    with corpus_folder(spec.data.text) as folder:
        batches = open_batches(spec, config.vocab_size, config.max_position_embeddings, folder)
    layout = spec.layout
    names_by_rank = assign_nodes(layout.used, spec.launch.processes)
    check_single_process(spec, len(names_by_rank))
    rank_of = assign_ranks(layout.cluster.names, names_by_rank, layout.unused)
    given = None if layout.plan is None else on_ranks(spec, layout.plan, rank_of)
    plans = [given or plan_phase(spec, phase, layout.cluster, model, rank_of) for phase in spec.phases]
    estimates = _stage_memories(spec, model)
    held = [spec.held_stages([layout.cluster.names.index(name) for name in names]) for names in names_by_rank]
    sends, recv_buffers = spec.communication.sends_in_flight, spec.communication.recv_buffers
    grouped, message_bytes = spec.device.group > 1, model.plan_model.message_bytes
    in_transit = _in_transit(spec, model, rank_of, held, estimates)
    copies = copy_memory(spec.redundancy, held, estimates)
    by_phase: list[list[RankMemory]] = []
    for plan in plans:
        programs = lower(plan, rank_of)
        validation = lower_evaluation(plan, rank_of, batches.validation_microbatches)
        buffers = safe_buffers([programs, validation], spec.communication)
        recv_buffers = max(recv_buffers, buffers)
        messages = [(receives + sends) * message_bytes for receives in peak_recv_buffers(programs, buffers)]
        by_phase.append(
            [
                replace(rank_memory(plan, stages, names, estimates, own, moving, grouped=grouped), copies=kept)
                for stages, names, own, moving, kept in zip(
                    held, names_by_rank, messages, in_transit, copies, strict=True
                )
            ]
        )
    device = spec.device.device
    ranks = [max(memories, key=lambda memory: memory.total(device)) for memories in zip(*by_phase, strict=True)]
    predictions = [_predict(spec, model, plan) for plan in plans]
    event = plan_ready(
        spec, model, plans, predictions,
        full_pipelines(spec, model, layout.cluster, rank_of) if predictions[0].holds else {}, rank_of=rank_of,
        parameters=sum(estimate.parameters for estimate in estimates), processes=len(names_by_rank),
        training_tokens=batches.training.tokens.size, recv_buffers=recv_buffers, device=spec.device.device,
    )  # fmt: skip
    for line in plan_lines(event):
        console.write_line(line)
    if spec.search is not None:
        console.write_line("that is an even partition; training searches nodes and layers of stages (allocate.layers)")
    _show(console, ranks, device)
    if spec.replan.mode == "allocation":
        console.write_line("that is without train.replan: a process that changes stages holds both for a moment")
    if not grouped:
        console.write_line(f"proved deadlock-free with recv_buffers={recv_buffers}, sends_in_flight={sends}")
    check_memory(ranks, spec.memory_bytes, device)


def _stage_memories(spec: RunSpec, model: PartitionedModel) -> list[StageMemory]:
    return [
        stage_memory(
            model.config,
            stage=number,
            layers=layers,
            first=number == 0,
            microbatch_size=spec.data.microbatch_size,
            sequence=spec.data.sequence,
            dtype=spec.precision.torch_dtype,
            activation_checkpointing=spec.device.activation_checkpointing,
            loss_chunk=spec.device.loss_chunk,
            compiled=spec.device.compile,
            graphs=may_be_recorded(spec.device, spec.precision, model.shapes.family),
        )
        for number, layers in enumerate(model.stage_layers)
    ]


def _predict(spec: RunSpec, model: PartitionedModel, plan: Plan) -> Prediction:
    device = "cpu" if spec.device.device == "cpu" else None  # the run may be on another machine
    prediction = judge_prediction(plan, model, spec, device)
    if spec.layout.plan is None and spec.calibrate:
        later = "; training times the stages first (runtime.calibrate)"
        return replace(prediction, note=prediction.note + later if prediction.note else "")
    return prediction


def rank_memory(  # noqa: PLR0913, PLR0917 - what memory depends on
    plan: Plan,
    stages: Sequence[int],
    names: Sequence[str],
    estimates: Sequence[StageMemory],
    messages: int,
    in_transit: int = 0,
    *,
    grouped: bool = False,
) -> RankMemory:
    """Add up what a rank takes that serves the nodes `names`: weights once per stage, activations for every node.

    A rank holds the `stages` that it serves in any phase, whether or not the plan uses them.

    With `grouped` passes, all microbatches of an iteration are held at one time, and their losses are taken together.
    """
    stage_of = {node: stage for stage, served in enumerate(plan.stages) for node in served}
    held = Counter(task.node for task in plan.tasks if task.kind == "F") if grouped else most_held(plan)
    losses = len(plan.microbatches) if grouped else 1
    nodes = [plan.cluster.names.index(name) for name in names]
    return RankMemory(
        names=tuple(names),
        stages=tuple(stages),
        parameters=sum(estimates[s].parameters for s in stages),
        weights=sum(e.weight_bytes + e.gradient_bytes + e.optimizer_bytes for e in (estimates[s] for s in stages)),
        activations=sum(held[node] * estimates[stage_of[node]].activation_bytes for node in nodes if node in stage_of)
        + max(losses * sum(estimates[s].loss_bytes for s in stages), *(estimates[s].backward_bytes for s in stages)),
        messages=messages,
        in_transit=in_transit,
    )


def _in_transit(
    spec: RunSpec,
    model: PartitionedModel,
    rank_of: Sequence[int],
    held: Sequence[Sequence[int]],
    estimates: Sequence[StageMemory],
) -> list[int]:
    """Most bytes of one stage that each rank sends or receives where phases change."""
    most = [0] * len(held)
    for change in phase_changes(spec.phases, rank_of, model.stage_layers, copy=False):
        for stage, sender, _, receiver in change.moves:
            size = estimates[stage].weight_bytes + estimates[stage].optimizer_bytes
            most[sender], most[receiver] = max(most[sender], size), max(most[receiver], size)
    return most


def copy_memory(spec: RedundancySpec, held: Sequence[Sequence[int]], estimates: Sequence[StageMemory]) -> list[int]:
    """Most bytes that each rank of one machine takes for copies of stages, by what ranks hold in any phase.

    Each copy is there twice while it is renewed, and once more on the rank that sends it.
    """
    current = {
        stage: frozenset(rank for rank, own in enumerate(held) if stage in own) for stage in range(len(estimates))
    }
    most = [0] * len(held)
    sent: set[tuple[int, int]] = set()
    for stage, sender, _, receiver in copy_transfers(current, [0] * len(held), spec.copies):
        size = estimates[stage].weight_bytes + estimates[stage].optimizer_bytes
        most[receiver] += 2 * size
        most[sender] += size if (stage, sender) not in sent else 0
        sent.add((stage, sender))
    return most


def most_held(plan: Plan) -> Counter[int]:
    """Most microbatches that each node holds at one time, from the start of F to the end of B."""
    now: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for task in plan.tasks:  # those of one node stand in the order in which it runs them
        if task.kind == "F":
            now[task.node] += 1
            most[task.node] = max(most[task.node], now[task.node])
        elif task.kind == "B":
            now[task.node] -= 1
    return most


def check_memory(ranks: Sequence[RankMemory], limit: float | None, device: str = "cpu") -> None:
    """Raise `InputError` naming the node if a rank takes more than `limit` bytes."""
    for number, rank in enumerate(ranks):
        if limit is not None and rank.total(device) > limit:
            needed = f"at least the {rank.total(device):,} bytes that {node_title(rank.names, number)} needs"
            hint = "fewer layers, smaller microbatches or less cluster memory would need less"
            raise unexpected("runtime.memory_bytes", f"{limit:,.0f}", needed, hint=hint)


def _show(console: Console, ranks: Sequence[RankMemory], device: str) -> None:
    with_copies = any(rank.copies for rank in ranks)
    sizes_of = ["weights", "activations", "messages", "in transit", *(["copies"] if with_copies else []), "total"]
    headings = ("rank", "nodes", "stages", "parameters", *sizes_of)
    rows = []
    for number, rank in enumerate(ranks):
        kept = [rank.copies] if with_copies else []
        sizes = (
            f"{size / MEBIBYTE:,.1f} MiB"
            for size in (rank.weights, rank.activations, rank.messages, rank.in_transit, *kept, rank.total(device))
        )
        stages = ",".join(map(str, rank.stages))
        rows.append([str(number), ",".join(rank.names), stages, f"{rank.parameters:,}", *sizes])
    console.print(plain_table(headings, rows, left=(1,), gap=3))
    console.write_line("weights include gradients and AdamW; torch itself takes a few hundred MiB more")
    if with_copies and device != "cpu":
        console.write_line("copies of other stages (train.redundancy) are in the host's memory, not in the total")
