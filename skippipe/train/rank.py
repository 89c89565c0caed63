"""The life of one rank: meet the others, agree on a plan, build its stages, train, validate; rank 0 tells of it.

The same whoever started it, the supervisor of a local run or torchrun on many machines.
"""

import contextlib
import dataclasses
import hashlib
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import skippipe
from skippipe._scheduler import Cluster, Plan
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.saving import Saver
from skippipe.config import PlannerConfig
from skippipe.data.prepare import corpus_folder
from skippipe.devices import device_name, find_device, use_device
from skippipe.errors import InputError
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.folder import find_folder, weights_sha256
from skippipe.model.settings import config_sha256, model_config, plain_settings
from skippipe.plan import load_plan
from skippipe.planning import time_limit
from skippipe.ranks import assign_ranks
from skippipe.runtime.executor import Boundary
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.stage import Stage
from skippipe.train.calibrate import calibrated, rehearsed
from skippipe.train.config import RuntimeConfig, TrainJob
from skippipe.train.efficiency import iteration_flops
from skippipe.train.events import Event, Report
from skippipe.train.layout import Layout, layout_of, node_names_of
from skippipe.train.loop import Engine, Station, number_type
from skippipe.train.place import Place
from skippipe.train.plans import (
    ModelNote,
    Phase,
    full_pipelines,
    judge_prediction,
    model_note,
    phases_of,
    plan_event,
    plan_for,
    planning_sha256,
    stage_sizes,
    with_times,
    workload_note,
)
from skippipe.train.proof import prove_key
from skippipe.train.record import TRACE, Recorder
from skippipe.train.run import Facts, Part, Run
from skippipe.train.start import Start, find_start
from skippipe.train.team import Team, meet
from skippipe.train.texts import Texts, load_texts
from skippipe.train.tokenizer import data_settings
from skippipe.workload import Workload

SAVING_TIMEOUT_S = 3600.0
"""What a rank waits for the others while they write a checkpoint together."""
UNLIMITED_S = 24 * 3600.0
"""What is waited for a planner that only work limits."""


def train_rank(
    job: TrainJob, place: Place, folder: Path, report: Report, text: Path | None = None
) -> signal.Signals | None:
    """Be one rank of a training from the beginning to the end.

    Args:
        job: the settings, the same on all ranks but for `runtime.node` and the paths of files.
        place: which rank, which nodes, and where the others are met.
        folder: of the run; rank 0 writes there.
        report: is given the events of rank 0; on other ranks nothing.
        text: a folder in which the text lies prepared; None: it is prepared here, where it is needed.

    Returns:
        None where the run has come to its end; else the signal that asked it to stop.

    Raises:
        InputError: settings, files or names that cannot be used, or that differ between ranks.
        SchedulerError: a rank did not come, a message did not arrive, training diverged.

    """
    torch.set_num_threads(job.runtime.threads)
    config = model_config(job.model)
    check_groups(job.runtime, config)
    device = find_device(job.runtime.device, "runtime.device")
    use_device(device)
    with meet(place, job.runtime, node_names_of(job)) as team, contextlib.ExitStack() as stack:
        prove_key(team, job.checkpoint.key)
        team.agree("settings", _settings(job, config))
        start = find_start(job.checkpoint, folder, team)
        layout = layout_of(job)
        if text is None and _is_source(layout, team):
            text = stack.enter_context(corpus_folder(data_settings(job)))
        recorder = None
        if team.rank == 0:
            recorder = stack.enter_context(contextlib.closing(Recorder(folder, report, start.iteration)))
        return _train(job, config, device, team, layout, start, text, recorder)


def _settings(job: TrainJob, config: Any) -> dict[str, str]:
    """What all ranks have to be told alike, key by key, in a form that can be compared."""
    runtime = ("recv_buffers", "sends_in_flight", "calibrate")
    parts: dict[str, Mapping[str, Any]] = {
        "train": dataclasses.asdict(job.train),
        "data": {name: getattr(job.data, name) for name in ("sequence", "validation_blocks")},
        "runtime": {name: getattr(job.runtime, name) for name in runtime},
        "checkpoint": {name: value for name, value in dataclasses.asdict(job.checkpoint).items() if name != "key"},
        "model": plain_settings(config),
    }
    if job.plan is None:
        parts |= {name: dataclasses.asdict(getattr(job, name)) for name in ("schedule", "planner", "allocate")}
    return {
        "version of skippipe": skippipe.__version__,
        "plan": "null" if job.plan is None else f"a file with the hash {_sha256(load_plan(job.plan))[:12]}",
        "weights of model.folder": weights_sha256(find_folder(job.model["folder"]))
        if "folder" in job.model
        else "null",
    } | {
        f"{part}.{name}": json.dumps(value, sort_keys=True) for part, of in parts.items() for name, value in of.items()
    }


def _sha256(plan: Plan) -> str:
    """Hash of a plan but for how it was found."""
    content = json.loads(plan.to_json()) | {"solver": None}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _train(  # noqa: PLR0913, PLR0917 - what a rank has found
    job: TrainJob,
    config: Any,
    device: torch.device,
    team: Team,
    layout: Layout,
    start: Start,
    text: Path | None,
    recorder: Recorder | None,
) -> signal.Signals | None:
    """Prepare, then train; `recorder` on rank 0."""
    rank_of = assign_ranks(layout.cluster.names, team.names_by_rank, layout.unused)
    note = model_note(job, config_sha256(config), config.hidden_size, config.num_hidden_layers)
    layers = stage_sizes(job, layout, note)
    allocation = layout.allocation
    cut = [layout.cluster.names, allocation.stages, list(allocation.absent_stages), layout.unused, list(layers)]
    team.agree("cut", {"nodes, stages and layers": json.dumps(cut)})
    phases = phases_of(job)
    plannings = [planning_sha256(phase.job, layout, layers, note) for phase in phases]
    kept = _kept(start, plannings)
    texts = _load_texts(job, config, text) if _is_source(layout, team) else None
    facts = _agree_on_texts(team, texts)
    settings = plain_settings(config)
    start.check(settings, job.train.seed, facts.training)
    stages = _build(job, config, layers, _served(layout, rank_of, team.rank), device, fresh=start.checkpoint is None)
    station = Station(
        team=team,
        rank_of=rank_of,
        stages=stages,
        link=GlooLink(team.group),
        boundary=Boundary(note.microbatch_size, note.sequence, note.hidden, number_type(job), device),
        runtime=job.runtime,
        validation_microbatches=facts.validation_microbatches,
        vocabulary=config.vocab_size,
    )
    timed = workload_note(note, layout, layers, device_name(device))
    plans = make_plans(
        phases, kept, layout=layout, layers=layers, note=note, station=station, workload=timed,
        build_head=lambda: build_head(job, config, device),
    )  # fmt: skip
    team.agree("plan", {"hash of the plan": json.dumps([_sha256(plan) for plan in plans])})
    tokens = note.microbatch_size * note.sequence
    predictions = [judge_prediction(plan, note, layers, job, device_name(device)) for plan in plans]
    parts = [
        Part(
            phase.after,
            planning,
            Engine(station, plan, predicts=prediction.holds),
            iteration_flops(plan, config, layers, tokens, note.sequence),
        )
        for phase, planning, plan, prediction in zip(phases, plannings, plans, predictions, strict=True)
    ]
    plan = plans[0]
    parameters = _count_parameters(station, layout)

    def full_pipeline_times() -> str:
        return json.dumps(full_pipelines(plan, job.planner) if predictions[0].holds else {})

    full = json.loads(team.share("full", full_pipeline_times, 2 * _planning_s(job.planner)))
    if recorder is not None:
        files = recorder.keep(job, {phase.after: plan for phase, plan in zip(phases, plans, strict=True)})
        about = {
            "model": config.model_type,
            "parameters": parameters,
            "layers": layers,
            "processes": team.world,
            "training_tokens": facts.training_tokens,
            "iterations": job.train.iterations,
            "recv_buffers": parts[0].engine.recv_buffers,
            "device": device_name(device),
        }
        recorder(plan_event(plan, note, predictions[0], full) | about | files)
        if start.checkpoint is not None:
            recorder(start.event(plan_kept=any(kept) and layout.plan is None))
    run = Run(
        job,
        station,
        parts,
        device=device,
        trace=None if recorder is None else recorder.file(TRACE),
        start=start,
        texts=texts,
        facts=Facts(facts.training, settings, facts.tokenizer),
        saver=_make_saver(job, team, start),
        tell=recorder or _to_nobody,
    )
    return run.go()


def _is_source(layout: Layout, team: Team) -> bool:
    """Whether this rank serves a node of stage 0, and so reads text."""
    names = layout.cluster.names
    return any(names[node] in team.names_by_rank[team.rank] for node in layout.stages[0])


def _make_saver(job: TrainJob, team: Team, start: Start) -> Saver | None:
    config = job.checkpoint
    if not config.enabled:
        return None
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=SAVING_TIMEOUT_S))
    assert isinstance(group, dist.ProcessGroup), "all ranks are in it"
    key = load_key(config.key) if team.rank == 0 else None
    if team.rank == 0:
        start.shelf.tidy()
        start.shelf.set_aside(start.iteration)
    return Saver(start.shelf, group, key=key, keep=config.keep)


def _served(layout: Layout, rank_of: Sequence[int], rank: int) -> list[int]:
    """Stages that a rank serves."""
    return [s for s, nodes in enumerate(layout.stages) if any(rank_of[node] == rank for node in nodes)]


def _build(  # noqa: PLR0913 - what stages are made of
    job: TrainJob, config: Any, layers: Sequence[int], served: Sequence[int], device: torch.device, *, fresh: bool
) -> dict[int, Stage]:
    """Build the stages of this rank; with the weights of `model.folder` if there is one and the run is a fresh one."""
    ranges, dtype = stage_layers(layers, config), number_type(job)
    weights = find_folder(job.model["folder"]) if fresh and "folder" in job.model else None
    stages: dict[int, Stage] = {}
    for s in served:
        part = build_stage_module(
            config, stage=s, layers=ranges[s], first=s == 0, seed=job.train.seed, dtype=dtype, device=device,
            weights=weights,
        )  # fmt: skip
        if job.runtime.autocast is not None:
            part.enable_autocast(getattr(torch, job.runtime.autocast))
        if job.runtime.compile:
            part.enable_compile()
        stages[s] = Stage(part)
    return stages


def build_head(job: TrainJob, config: Any, device: torch.device) -> Stage:
    """Build embedding, norm and head alone, for a rank that does not serve the first stage to time them."""
    dtype = number_type(job)
    return Stage(build_stage_module(config, stage=0, layers=range(0), first=True, seed=0, dtype=dtype, device=device))


class TextFacts(NamedTuple):
    """What all ranks know of the text."""

    training: str
    """hash of what is trained on"""
    training_tokens: int
    validation_microbatches: int
    """microbatches of a validation"""
    tokenizer: str
    """tokenizer.json"""


def _load_texts(job: TrainJob, config: Any, text: Path | None) -> Texts:
    assert text is not None, "a source has a text"
    return load_texts(job, config.vocab_size, config.max_position_embeddings, text)


def _agree_on_texts(team: Team, texts: Texts | None) -> TextFacts:
    """Have all sources read the same, and tell everybody what it is."""
    facts: dict[str, str] = {}
    if texts is not None:
        numbers = [texts.training.tokens.size, texts.validation_microbatches]
        facts = {
            "hash of the text (data.*)": texts.sha256,
            "facts of the text": json.dumps([texts.training_sha256, *numbers]),
        }
    stated = team.agree("texts", facts)
    sources = [rank for rank, theirs in enumerate(team.exchange("sources", str(texts is not None))) if theirs == "True"]
    if texts is not None and team.rank == sources[0]:
        team.tell("tokenizer", texts.tokenizer_json)
    tokenizer = team.hear("tokenizer", sources[0]) if team.rank == 0 else ""
    training, tokens, microbatches = json.loads(stated["facts of the text"])
    return TextFacts(training, tokens, microbatches, tokenizer)


def _count_parameters(station: Station, layout: Layout) -> int:
    """Parameters of the whole model: each stage counted by the lowest rank that serves it."""
    own = 0
    for number, stage in station.stages.items():
        if station.team.rank == station.owner(number, layout.stages):
            own += sum(parameter.numel() for parameter in stage.parameters)
    return sum(map(int, station.team.exchange("parameters", str(own))))


def _planning_s(planner: PlannerConfig) -> float:
    """How long planning may take, in seconds."""
    limit = time_limit(planner)
    return UNLIMITED_S if limit is None else limit


def make_plans(  # noqa: PLR0913 - what plans are made of
    phases: Sequence[Phase],
    kept: Sequence[Plan | None],
    *,
    layout: Layout,
    layers: Sequence[int],
    note: ModelNote,
    station: Station,
    workload: Workload,
    build_head: Callable[[], Stage],
) -> list[Plan]:
    """Plan every phase on rank 0, for the cluster as it is described or, with `runtime.calibrate`, as it is measured.

    It is measured twice: stage by stage, and then in an iteration of a first plan, since stages that share processors
    or memory are slower together than their times alone would make one think. A phase whose plan is `kept` has it.
    """
    if layout.plan is not None:
        return [layout.plan]

    def planned(key: str, job: TrainJob, cluster: Cluster) -> Plan:
        text = station.team.share(
            key, lambda: plan_for(job, cluster, layout.allocation, layers, note).to_json(), _planning_s(job.planner)
        )
        return Plan.from_json(text)

    cluster = next((plan.cluster for plan in kept if plan is not None), None)
    if cluster is None and station.runtime.calibrate:
        first = planned("first plan", phases[0].job, calibrated(station, layout, workload, build_head))
        cluster = with_times(first, rehearsed(station, Engine(station, first))).cluster
    return [
        plan or planned(f"plan {number}", phase.job, cluster or layout.cluster)
        for number, (phase, plan) in enumerate(zip(phases, kept, strict=True))
    ]


def _kept(start: Start, plannings: Sequence[str]) -> list[Plan | None]:
    """For every phase the plan of the checkpoint that the run goes on from, where it was asked for the same."""
    if start.checkpoint is None:
        return [None for _ in plannings]
    asked, plan = start.checkpoint.state.planning, start.checkpoint.plan
    return [plan if planning == asked else None for planning in plannings]


def check_groups(runtime: RuntimeConfig, config: Any) -> None:
    """Raise `InputError` where microbatches cannot go through a stage together as they do one by one."""
    if runtime.group > 1 and getattr(config, "output_router_logits", False):
        raise InputError(
            f"runtime.group is {runtime.group}, 1 is expected with model.output_router_logits: the loss of a router is "
            "taken over a microbatch"
        )


def _to_nobody(event: Event) -> None:
    """Take the events of ranks that nobody listens to."""
    del event
