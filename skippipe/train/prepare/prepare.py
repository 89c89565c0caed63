"""From a connected rank to its training loop: partition, text, stages, plans, engines."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from skippipe._scheduler import Cluster, Plan
from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.saving import CheckpointSaver
from skippipe.devices import device_name
from skippipe.errors import unexpected
from skippipe.model.settings import plain_settings
from skippipe.plan_file import plan_sha256
from skippipe.ranks import holding_ranks
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.connect.clocks import clock_offset_s
from skippipe.train.connect.links import Links
from skippipe.train.connect.rendezvous import Rendezvous, background_group, connecting_s
from skippipe.train.loop.closed_loop import ClosedLoop
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.copies import CopyKeeper, StageCopy
from skippipe.train.loop.engine import Engine
from skippipe.train.loop.loop import Factory, TrainingLoop
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.loop.run_state import RunMetadata
from skippipe.train.loop.token_batches import TokenBatches, open_batches
from skippipe.train.observe.run_log import TRACE, Reporting, RunLog
from skippipe.train.prepare.planning import (
    full_pipelines,
    kept_plans,
    make_plans,
    plan_ready,
    planning_s,
    request_sha256,
)
from skippipe.train.prepare.prediction import Prediction, judge_prediction, measured_workload
from skippipe.train.prepare.resume import READING_S, ResumePoint
from skippipe.train.prepare.stages import (
    PartitionedModel,
    build_probe,
    build_stages,
    iteration_flops,
    partition_model,
    warm_up,
    weight_bytes,
)
from skippipe.train.resolve.spec import PlanPhase, RunSpec

LAYOUT, LAYOUT_STATED = "layout", "nodes, stages and layers"
TEXTS, _PROPERTIES = "texts", "properties of the text"
"""Keys and names of what ranks compare as a run begins."""


def prepare_rank(  # noqa: PLR0913, PLR0917 - what a rank knows
    spec: RunSpec,
    config: Any,
    message_spec: MessageSpec,
    rendezvous: Rendezvous,
    resume: ResumePoint,
    rank_of: Sequence[int],
    links: Links,
    text: Path | None,
    reporting: Reporting,
) -> TrainingLoop:
    """Prepare one rank of a run. All ranks call this.

    Args:
        spec: the run.
        config: of the model.
        message_spec: shape and type of messages, and the device on which the stages compute.
        rendezvous: all ranks.
        resume: where the run begins.
        rank_of: the rank that serves each node.
        links: to the other ranks.
        text: folder of the prepared text, on ranks with a source.
        reporting: takes the events; has a log on rank 0.

    Raises:
        InputError: model, plan, text and checkpoint do not fit each other, or ranks differ.
        SchedulerError: a rank did not answer, or there is no plan.

    """
    model, log = partition_model(spec, config), reporting.log
    _check_layout(spec, model, rendezvous)
    batches = _open_batches(spec, config, text) if is_source(spec, rendezvous) else None
    metadata = _share_metadata(rendezvous, batches, plain_settings(config))
    resume.check(metadata.model, spec.seed, metadata.text_sha256, spec.new_layers)
    requests = [request_sha256(spec, phase, model) for phase in spec.phases]
    kept = [None] if spec.layout.plan is not None else kept_plans(resume, requests)
    allocations = allocations_of(spec, kept)
    context = _make_context(spec, model, message_spec, rendezvous, rank_of, links, metadata, resume, allocations)
    engines = _prepare_engines(context, model, resume, requests, kept, metadata, log)
    saver = make_saver(spec, rendezvous, resume.directory)
    if saver is not None and rendezvous.rank == 0:
        resume.directory.clean_up()
        resume.directory.mark_damaged(resume.progress.iteration)
    optimizer = _load_optimizer(context, engines[0].tokens, resume)
    return TrainingLoop(
        context,
        engines,
        optimizer=optimizer,
        start=resume.progress,
        batches=batches,
        weights=weight_bytes(model, spec.precision.torch_dtype),
        metadata=metadata,
        saver=saver,
        copies=make_copy_keeper(context, {}),
        trace=None if log is None else log.file(TRACE),
        report=reporting,
        factory=make_factory(context, model),
        closed_loop=make_closed_loop(context, reporting),
    )


def _open_batches(spec: RunSpec, config: Any, text: Path | None) -> TokenBatches:
    assert text is not None, "a source has a text"
    return open_batches(spec, config.vocab_size, config.max_position_embeddings, text)


def _make_context(  # noqa: PLR0913, PLR0917 - what a rank works with
    spec: RunSpec,
    model: PartitionedModel,
    message_spec: MessageSpec,
    rendezvous: Rendezvous,
    rank_of: Sequence[int],
    links: Links,
    metadata: RunMetadata,
    resume: ResumePoint,
    allocations: Sequence[Sequence[Sequence[int]]],
) -> RankContext:
    """Build the stages of this rank."""
    held = holding_ranks(allocations, rank_of)
    served = sorted(stage for stage, ranks in held.items() if rendezvous.rank in ranks)
    stages = build_stages(spec, model, served, message_spec.device, joined=resume.progress.layers)
    for stage in stages.values():
        warm_up(stage, message_spec, model.config.vocab_size)
    return RankContext(
        allocations=allocations,
        spec=spec,
        rendezvous=rendezvous,
        rank_of=rank_of,
        layers=model.stage_layers,
        stages=stages,
        links=links,
        buffers=MessageBuffers(message_spec),
        validation_microbatches=metadata.validation_microbatches,
        vocabulary=model.config.vocab_size,
        clock_offset_s=clock_offset_s(rendezvous, links.control),
    )


def allocations_of(spec: RunSpec, kept: Sequence[Plan | None]) -> list[list[list[int]]]:
    """Nodes of each stage in every phase; a plan that is `kept` may have another allocation than was asked for."""
    return [
        spec.allocation_of(phase).stages if plan is None else plan.stages
        for phase, plan in zip(spec.phases, kept, strict=True)
    ]


def is_source(spec: RunSpec, rendezvous: Rendezvous) -> bool:
    """Whether this rank serves a node of stage 0, and so reads text."""
    names = spec.layout.cluster.names
    return any(names[node] in rendezvous.names_by_rank[rendezvous.rank] for node in spec.layout.stages[0])


def _check_layout(spec: RunSpec, model: PartitionedModel, rendezvous: Rendezvous) -> None:
    layout = spec.layout
    stated = [
        layout.cluster.names, [dataclasses.asdict(allocation) for allocation in spec.allocations], layout.unused,
        model.layers,
    ]  # fmt: skip
    rendezvous.check_equal(LAYOUT, {LAYOUT_STATED: json.dumps(stated)})


def _share_metadata(rendezvous: Rendezvous, batches: TokenBatches | None, model: dict[str, Any]) -> RunMetadata:
    """Check that all sources read the same text, and share its metadata with all ranks."""
    values: dict[str, str] = {}
    if batches is not None:
        values = stated_text(batches)
    stated = rendezvous.check_equal(TEXTS, values)
    tokenizer = share_tokenizer(rendezvous, batches)
    text_sha256, tokens, microbatches = json.loads(stated[_PROPERTIES])
    return RunMetadata(text_sha256, tokens, microbatches, tokenizer, model)


def stated_text(batches: TokenBatches) -> dict[str, str]:
    """What has to be equal on all ranks that read the text."""
    facts = [batches.training_sha256, batches.training.tokens.size, batches.validation_microbatches]
    return {"hash of the text (data.*)": batches.sha256, _PROPERTIES: json.dumps(facts)}


def share_tokenizer(rendezvous: Rendezvous, batches: TokenBatches | None) -> str | None:
    """Give rank 0, which writes checkpoints, the tokenizer of a rank that reads; None on other ranks."""
    source = rendezvous.all_gather("sources", str(batches is not None)).index("True")
    if batches is not None and rendezvous.rank == source:
        rendezvous.publish("tokenizer", batches.tokenizer_json)
    return rendezvous.receive("tokenizer", source) if rendezvous.rank == 0 else None


def _load_optimizer(context: RankContext, tokens: int, resume: ResumePoint) -> StageOptimizer:
    """Make the optimizer for iterations of so many tokens, and load weights and state from the checkpoint, if any."""
    progress = resume.progress
    optimizer = StageOptimizer(
        context.stages,
        context.spec.optimizer,
        tokens=tokens,
        iterations=context.spec.iterations - progress.iteration,
        tokens_done=progress.tokens,
    )
    resume.load(context.stages, optimizer)
    context.rendezvous.all_gather("loaded", "", READING_S)  # a rank that is silent from here on has failed
    return optimizer


def _prepare_engines(  # noqa: PLR0913, PLR0917 - what engines depend on
    context: RankContext,
    model: PartitionedModel,
    resume: ResumePoint,
    requests: Sequence[str],
    kept: Sequence[Plan | None],
    metadata: RunMetadata,
    log: RunLog | None,
) -> list[Engine]:
    """Plan all phases, and report what is about to be trained."""
    spec, rendezvous, device = context.spec, context.rendezvous, device_name(context.device)
    plans = make_plans(
        context,
        model,
        kept,
        workloads=[
            measured_workload(model, allocation, len(spec.layout.cluster), device) for allocation in spec.allocations
        ],
        build_head=lambda: build_probe(model.config, 0, spec.precision, spec.device, context.device, head=True),
    )
    rendezvous.check_equal("plan", {"hash of the plan": json.dumps([plan_sha256(plan) for plan in plans])})
    predictions = [judge_prediction(plan, model, spec, device) for plan in plans]
    _check_replan(spec, model, predictions)
    engines = [
        engine_of(context, model, phase, plan, request, predicts=prediction.holds)
        for phase, plan, prediction, request in zip(spec.phases, plans, predictions, requests, strict=True)
    ]
    parameters = _count_parameters(context)
    for_all_layers = [p.cluster for phase, p in zip(spec.phases, plans, strict=True) if phase.layers is None]
    known = predictions[0].holds and for_all_layers
    full = _full_pipelines(context, model, for_all_layers[0]) if known else {}
    if log is not None:
        event = plan_ready(
            spec, model, plans, predictions, full, rank_of=context.rank_of, parameters=parameters,
            processes=rendezvous.world, training_tokens=metadata.training_tokens,
            recv_buffers=engines[0].recv_buffers, device=device, transport=context.links.transport,
        )  # fmt: skip
        files = log.keep_files(spec.settings_yaml, {engine.phase.after: engine.plan for engine in engines})
        log(dataclasses.replace(event, files=files))
        if resume.checkpoint is not None:
            log(resume.event(plan_kept=any(kept)))
    return engines


def make_factory(context: RankContext, model: PartitionedModel) -> Factory:
    """What plans that are adopted during the run need."""

    def stage(number: int, joined: Collection[int]) -> Stage:
        built = build_stages(context.spec, model, [number], context.device, joined=joined)[number]
        warm_up(built, context.message_spec, context.vocabulary)
        return built

    return Factory(lambda phase, plan, request: engine_of(context, model, phase, plan, request), stage)


def make_closed_loop(context: RankContext, reporting: Reporting) -> ClosedLoop | None:
    """What compares predicted and measured times, on the rank that keeps the run's files."""
    log = reporting.log
    return None if log is None else ClosedLoop(context.spec.replan, log, log)


def _check_replan(spec: RunSpec, model: PartitionedModel, predictions: Sequence[Prediction]) -> None:
    """Raise `InputError` where other plans are asked for, but times of plans say nothing about this run."""
    later = model.layers[1:]
    if spec.replan.mode == "allocation" and len(set(later)) > 1:
        hint = f"a node that changes stages needs the same time there, but they have {later} decoder layers"
        raise unexpected("train.replan", "allocation", "off or routes", hint=hint)
    unknown = next((prediction.note for prediction in predictions if not prediction.holds), None)
    if spec.replan.mode != "off" and unknown is not None:
        raise unexpected("train.replan", spec.replan.mode, "off", hint=unknown)


def engine_of(  # noqa: PLR0913 - what an engine depends on
    context: RankContext, model: PartitionedModel, phase: PlanPhase, plan: Plan, request: str, *, predicts: bool = True
) -> Engine:
    """The engine of a phase's plan; the text is the hash of what the plan was asked for."""
    flops = iteration_flops(phase, plan, model)
    return Engine(context, phase, plan, predicts=predicts, request_sha256=request, flops=flops)


def _count_parameters(context: RankContext) -> int:
    """Parameters of the full model: each stage counted once."""
    own = sum(parameter.numel() for stage in context.owned_stages().values() for parameter in stage.parameters)
    return sum(map(int, context.rendezvous.all_gather("parameters", str(own))))


def _full_pipelines(context: RankContext, model: PartitionedModel, cluster: Cluster) -> dict[str, float | None]:
    """What full pipelines would take, computed by rank 0."""
    spec = context.spec
    text = context.rendezvous.broadcast(
        "full", lambda: json.dumps(full_pipelines(spec, model, cluster, context.rank_of)), 2 * planning_s(spec.planner)
    )
    found: dict[str, float | None] = json.loads(text)
    return found


def make_saver(spec: RunSpec, rendezvous: Rendezvous, directory: CheckpointDirectory) -> CheckpointSaver | None:
    """What saves the checkpoints of a run, if it is to have any. All ranks call this."""
    if not spec.checkpoints.enabled:
        return None
    key = load_key(spec.checkpoints.key) if rendezvous.rank == 0 else None
    group = background_group(rendezvous, "saving", connecting_s(spec.communication))
    return CheckpointSaver(directory, group, key=key, keep=spec.checkpoints.keep)


def make_copy_keeper(context: RankContext, kept: Mapping[int, StageCopy]) -> CopyKeeper | None:
    """What keeps copies of other ranks' stages, if there are to be any. All ranks call this.

    `kept` are those that this rank already has.
    """
    spec, rendezvous = context.spec.redundancy, context.rendezvous
    if not spec.copies or rendezvous.world == 1:
        return None
    group = background_group(rendezvous, "copying", connecting_s(context.spec.communication))
    return CopyKeeper(rendezvous, group, context.links.over(group), spec, kept)
