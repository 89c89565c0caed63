"""The life of one rank: meet the others, agree on a plan, build its stages, train, validate; rank 0 tells of it.

The same whoever started it, the supervisor of a local run or torchrun on many machines.
"""

import contextlib
import dataclasses
import hashlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import skippipe
from skippipe._scheduler import Cluster, Plan
from skippipe.config import PlannerConfig
from skippipe.data.blocks import Order
from skippipe.model.build import build_part, config_sha256, model_config, stage_layers
from skippipe.plan import load_plan
from skippipe.planning import time_limit
from skippipe.ranks import assign_ranks
from skippipe.runtime.executor import Batches, Boundary
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.stage import Stage, StageGradient
from skippipe.train.calibrate import calibrated, rehearsed
from skippipe.train.config import TrainConfig, TrainJob
from skippipe.train.events import Event, Report
from skippipe.train.layout import Layout, layout_of
from skippipe.train.loop import Engine, Optimization, Station, check_finite
from skippipe.train.place import Place
from skippipe.train.plans import (
    ModelNote,
    check_model,
    full_pipelines,
    layers_of,
    model_note,
    plan_event,
    plan_for,
    with_times,
)
from skippipe.train.record import Recorder
from skippipe.train.team import Team, meet
from skippipe.train.texts import Texts, load_texts
from skippipe.train.times import TaskTimes, merged, reasons

UNLIMITED_S = 24 * 3600.0
"""What is waited for a planner that only work limits."""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def train_rank(job: TrainJob, place: Place, folder: Path, report: Report, ready: Path | None = None) -> None:
    """Be one rank of a training from the beginning to the end.

    Args:
        job: the settings, the same on all ranks but for `runtime.node` and the paths of files.
        place: which rank, which nodes, and where the others are met.
        folder: of the run; rank 0 writes there.
        report: is given the events of rank 0; on other ranks nothing.
        ready: a folder in which the text lies in blocks already; None: it is read here.

    Raises:
        InputError: settings, files or names that cannot be used, or that differ between ranks.
        SchedulerError: a rank did not come, a message did not arrive, training diverged.

    """
    torch.set_num_threads(job.runtime.threads)
    config = model_config(job.model)
    with meet(place, job.runtime) as team, contextlib.ExitStack() as stack:
        team.agree("settings", _settings(job, config))
        recorder = None
        if team.rank == 0:
            recorder = stack.enter_context(contextlib.closing(Recorder(folder, report)))
        _train(job, config, team, recorder, ready)


def _settings(job: TrainJob, config: Any) -> dict[str, str]:
    """What all ranks have to be told alike, in a form that can be compared."""
    data = {"sequence": job.data.sequence, "validation_blocks": job.data.validation_blocks}
    runtime = {name: getattr(job.runtime, name) for name in ("recv_buffers", "sends_in_flight", "calibrate")}
    return {
        "version of skippipe": skippipe.__version__,
        "model": config_sha256(config),
        "train.* settings": json.dumps(dataclasses.asdict(job.train), sort_keys=True),
        "data.* settings": json.dumps(data, sort_keys=True),
        "runtime.* settings": json.dumps(runtime, sort_keys=True),
        "plan file": "none" if job.plan is None else _sha256(load_plan(job.plan)),
    }


def _sha256(plan: Plan) -> str:
    """Hash of a plan but for how it was found."""
    content = json.loads(plan.to_json()) | {"solver": None}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _train(job: TrainJob, config: Any, team: Team, recorder: Recorder | None, ready: Path | None) -> None:
    """Prepare, then train; `recorder` on rank 0."""
    layout = layout_of(job)
    rank_of = assign_ranks(layout.cluster.names, team.names_by_rank)
    note = model_note(job, config_sha256(config), config.hidden_size, config.num_hidden_layers)
    if layout.plan is not None:
        check_model(layout.plan, dataclasses.asdict(note), layout.origin)
    layers = layers_of(layout.stated_layers, job.train.layers, len(layout.stages), note.layers, layout.origin)
    stages = _build(job, config, layers, _served(layout, rank_of, team.rank))
    texts = load_texts(job, config.vocab_size, config.max_position_embeddings, ready) if 0 in stages else None
    validation_microbatches, training_tokens = _agree_on_texts(team, texts)
    station = Station(
        team=team,
        rank_of=rank_of,
        stages=stages,
        link=GlooLink(team.group),
        boundary=Boundary(note.microbatch_size, note.sequence, note.hidden, DTYPES[job.train.dtype]),
        runtime=job.runtime,
        validation_microbatches=validation_microbatches,
        vocabulary=config.vocab_size,
    )
    plan = layout.plan or make_plan(job, layout, layers, note, station)
    team.agree("plan", {"plan": _sha256(plan)})
    engine = Engine(station, plan)
    parameters = _count_parameters(station, layout)
    full = team.share("full", lambda: json.dumps(full_pipelines(plan, job.planner)), 2 * _planning_s(job.planner))
    if recorder is not None:
        recorder.keep_plan(plan)
        about = {
            "model": config.model_type,
            "parameters": parameters,
            "layers": layers,
            "processes": team.world,
            "training_tokens": training_tokens,
            "iterations": job.train.iterations,
            "limits": dataclasses.asdict(engine.limits),
            "full": json.loads(full),
        }
        recorder(plan_event(plan, note) | about)
    _iterate(job, engine, texts, team, recorder)


def _served(layout: Layout, rank_of: Sequence[int], rank: int) -> list[int]:
    """Stages that a rank serves."""
    return [s for s, nodes in enumerate(layout.stages) if any(rank_of[node] == rank for node in nodes)]


def _build(job: TrainJob, config: Any, layers: Sequence[int], served: Sequence[int]) -> dict[int, Stage]:
    ranges, dtype = stage_layers(layers, config), DTYPES[job.train.dtype]
    return {
        s: Stage(build_part(config, stage=s, layers=ranges[s], first=s == 0, seed=job.train.seed, dtype=dtype))
        for s in served
    }


def _agree_on_texts(team: Team, texts: Texts | None) -> tuple[int, int]:
    """Have all sources read the same; tell everybody how many microbatches a validation has, and tokens the text."""
    facts: dict[str, str] = {}
    if texts is not None:
        sizes = [texts.validation_microbatches, texts.training.tokens.size]
        facts = {"text": texts.sha256(), "sizes of the text": json.dumps(sizes)}
    stated = team.agree("texts", facts)
    microbatches, tokens = json.loads(stated["sizes of the text"])
    return microbatches, tokens


def _count_parameters(station: Station, layout: Layout) -> int:
    """Parameters of the whole model: each stage counted by the lowest rank that serves it."""
    own = 0
    for number, stage in station.stages.items():
        if station.team.rank == min(station.rank_of[node] for node in layout.stages[number]):
            own += sum(parameter.numel() for parameter in stage.parameters)
    return sum(map(int, station.team.exchange("parameters", str(own))))


def _planning_s(planner: PlannerConfig) -> float:
    """How long planning may take, in seconds."""
    limit = time_limit(planner)
    return UNLIMITED_S if limit is None else limit


def make_plan(job: TrainJob, layout: Layout, layers: Sequence[int], note: ModelNote, station: Station) -> Plan:
    """Plan on rank 0, for the cluster as it is described or, with `runtime.calibrate`, as it is measured.

    It is measured twice: stage by stage, and then in an iteration of a first plan, since stages that share processors
    or memory are slower together than their times alone would make one think.
    """
    team = station.team

    def planned(key: str, cluster: Cluster) -> Plan:
        text = team.share(
            key, lambda: plan_for(job, cluster, layout.allocation, layers, note).to_json(), _planning_s(job.planner)
        )
        return Plan.from_json(text)

    if not job.runtime.calibrate:
        return planned("new plan", layout.cluster)
    first = planned("first plan", calibrated(station, layout))
    seconds = rehearsed(station, Engine(station, first))
    return planned("new plan", with_times(first, seconds).cluster)


def _iterate(job: TrainJob, engine: Engine, texts: Texts | None, team: Team, recorder: Recorder | None) -> None:
    """Train and validate; `texts` where there is a source."""
    config, tell = job.train, recorder or _to_nobody
    torch.manual_seed(config.seed)
    optimization = Optimization(engine.stages, config, engine.tokens)
    predicted_s = engine.plan.predicted.iteration_s
    seconds, tasks = [], TaskTimes()
    losses = [_validate(engine, texts, tell, 0)]
    for number in range(1, config.iterations + 1):
        done = engine.iterate(
            _batches(texts, engine, config, number - 1), cast("StageGradient", config.stage_gradient), optimization.step
        )
        check_finite(done, number)
        if number > 1 or config.iterations == 1:  # the first one is slower
            seconds.append(done.seconds)
            tasks.add(done.timings)
        tell(
            {
                "event": "iteration",
                "iteration": number,
                "loss": done.loss,
                "tokens": engine.tokens,
                "tokens_per_s": engine.tokens / done.seconds,
                "iteration_s": done.seconds,
                "predicted_s": predicted_s,
                "norm": done.norm,
                "learning_rate": optimization.rate,
            }
        )
        if number == config.iterations or (config.validate_every and number % config.validate_every == 0):
            losses.append(_validate(engine, texts, tell, number))
    measured = merged(team.exchange("task times", tasks.to_json()))
    measured_s = statistics.median(seconds)
    tell(
        {
            "event": "summary",
            "iterations": config.iterations,
            "loss_before": losses[0],
            "loss_after": losses[-1],
            "predicted_s": predicted_s,
            "measured_s": measured_s,
            "reasons": reasons(engine.plan, measured, measured_s, engine.rank_of, team.world * job.runtime.threads),
        }
    )


def _validate(engine: Engine, texts: Texts | None, tell: Report, iteration: int) -> float:
    def batches(microbatch: int) -> tuple[Tensor, Tensor]:
        assert texts is not None, "only a source reads"
        return texts.validation_batch(microbatch)

    loss = engine.validate(batches)
    tell({"event": "validation", "iteration": iteration, "loss": loss, "tokens": engine.validation_tokens})
    return loss


def _batches(texts: Texts | None, engine: Engine, config: TrainConfig, iteration: int) -> Batches:
    def batches(microbatch: int) -> tuple[Tensor, Tensor]:
        assert texts is not None, "only a source reads"
        order = Order(len(texts.training), len(engine.plan.microbatches), config.microbatch_size, config.seed)
        return texts.training_batch(order, iteration, microbatch)

    return batches


def _to_nobody(event: Event) -> None:
    """Take the events of ranks that nobody listens to."""
    del event
