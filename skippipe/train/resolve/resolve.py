"""Resolves the settings of a run into its description."""

import copy
import dataclasses
import json
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf

from skippipe.config import PhasesConfig, PlannerConfig
from skippipe.data.model_tokenizer import with_tokenizer_of
from skippipe.devices import Precision
from skippipe.errors import unexpected
from skippipe.model.folder import own_tokenizer
from skippipe.model.settings import resolved_settings, weights_folder
from skippipe.phases import RunLength, check_phases, reallocate, resolve_phases
from skippipe.planning import microbatches
from skippipe.ranks import shown_names
from skippipe.train.config import NodeJob, RuntimeConfig, TrainJob
from skippipe.train.resolve.layout import Layout, allocating_planner, resolve_layout, searches_layers
from skippipe.train.resolve.plan_model import check_model
from skippipe.train.resolve.spec import (
    AllocationSearch,
    CheckpointSpec,
    CommunicationSpec,
    DataSpec,
    DeviceSpec,
    LaunchSpec,
    ModelSpec,
    OptimizerSpec,
    PlanPhase,
    RedundancySpec,
    ReplanSpec,
    RunSpec,
)

Spec = TypeVar("Spec")


def resolve(job: TrainJob) -> RunSpec:
    """Resolve the settings of a run: files are read, nodes allocated, contradictions refused.

    Raises:
        InputError: settings or files that cannot be used.
        NoPlanError: no allocation was found within the work limit.

    """
    job = copy.deepcopy(job)  # a copy: later changes of the settings have no effect
    layout, train = resolve_layout(job), job.train
    if layout.plan is not None:
        check_model(layout.plan, _stated_model(job), layout.origin)
    phases = plan_phases(job, layout)
    if train.replan == "allocation" and layout.unused:
        expected = f"off or routes, as no process serves {shown_names(layout.unused)}"
        raise unexpected("train.replan", train.replan, expected)
    _check_redundancy(job)
    folder = weights_folder(job.model)
    text = job.data
    if folder is not None:
        text = with_tokenizer_of(text, own_tokenizer(folder), f"model.folder={folder}")
    return RunSpec(
        layout=layout,
        phases=phases,
        search=AllocationSearch(job.allocate, job.schedule, job.phases) if searches_layers(job) else None,
        planner=job.planner,
        model=ModelSpec(job.model, folder, None if train.layers is None else tuple(train.layers)),
        data=DataSpec(text, train.microbatch_size),
        precision=precision_of(job.train.dtype, job.runtime),
        device=select(DeviceSpec, job.runtime),
        communication=communication_of(job.runtime),
        optimizer=select(OptimizerSpec, train),
        checkpoints=select(CheckpointSpec, job.checkpoint),
        launch=LaunchSpec(
            job.runtime.node,
            job.runtime.processes,
            job.runtime.port,
            job.runtime.threads,
            folder=job.folder,
            restarts=job.runtime.restarts,
            start_retries=_start_retries(job),
        ),
        iterations=train.iterations,
        seed=train.seed,
        stage_gradient=cast("Any", train.stage_gradient),
        replan=ReplanSpec(cast("Any", train.replan), train.replan_gain, train.replan_wait),
        redundancy=RedundancySpec(train.redundancy, train.redundancy_every),
        new_layers=cast("Any", train.new_layers),
        validate_every=train.validate_every,
        validate_training=train.validate_training,
        calibrate=job.runtime.calibrate,
        memory_bytes=job.runtime.memory_bytes,
        shared_settings=_shared_settings(job),
        settings_yaml=OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(job))),
    )


def _start_retries(job: TrainJob) -> int | None:
    """How often in a row a lost process is started again without having trained; None: never."""
    if not job.runtime.rejoin:
        return None
    if not job.runtime.recover:
        hint = "nobody goes on whom it could join"
        raise unexpected("runtime.rejoin", "true", "false with runtime.recover=false", hint=hint)
    if isinstance(job, NodeJob):
        hint = "a machine whose only process was lost joins the others again by runtime.restarts"
        raise unexpected("runtime.rejoin", "true", "false with skippipe node", hint=hint)
    return job.runtime.start_retries


def _check_redundancy(job: TrainJob) -> None:
    """Raise `InputError` where copies of stages are to be used and there are none, or the other way round."""
    copies, lost_stage = job.train.redundancy, job.runtime.lost_stage
    if lost_stage == "copy" and not copies:
        raise unexpected("train.redundancy", copies, "at least 1 with runtime.lost_stage=copy")
    if copies and lost_stage not in {"copy", "skip"}:
        hint = "nobody would use the copies"
        raise unexpected("train.redundancy", copies, f"0 with runtime.lost_stage={lost_stage}", hint=hint)


def precision_of(dtype: str, runtime: RuntimeConfig) -> Precision:
    """Number types of a job with weights of type `dtype`; raises `InputError` if they do not go together."""
    if runtime.wire_dtype == "float16" and runtime.autocast != "float16":
        raise unexpected(
            "runtime.wire_dtype",
            "float16",
            f"another dtype with runtime.autocast={runtime.autocast}",
            hint="gradients of a loss that is not scaled are mostly below its range",
        )
    return Precision(dtype, runtime.autocast, runtime.wire_dtype)


def communication_of(runtime: RuntimeConfig) -> CommunicationSpec:
    """How the processes of a job communicate; raises `InputError` for settings of emulated links beside real ones."""
    communication = select(CommunicationSpec, runtime)
    if communication.links == "real":
        for name in ("time_scale", "contention"):
            value, default = getattr(communication, name), getattr(CommunicationSpec, name)
            if value != default:
                raise unexpected(f"runtime.{name}", value, f"{default} with runtime.links=real")
        if communication.link_changes:
            raise unexpected("runtime.link_changes", len(communication.link_changes), "[] with runtime.links=real")
    return communication


def select(spec: type[Spec], settings: object) -> Spec:
    """Take over the settings that have the names of a description's fields."""
    names = [item.name for item in dataclasses.fields(cast("Any", spec))]
    return spec(**{name: getattr(settings, name) for name in names})


def plan_phases(job: TrainJob, layout: Layout) -> tuple[PlanPhase, ...]:
    """Divide the iterations of a run into its phases.

    Raises:
        InputError: a phase has no iteration, asks for what the nodes cannot do, or the plan is given.

    """
    if job.plan is not None and job.phases != PhasesConfig():
        hint = "each phase of a run needs its own plan"
        raise unexpected("phases.list", f"{len(job.phases.list)}", f"published with plan={job.plan}", hint=hint)
    question = AllocationSearch(job.allocate, job.schedule, job.phases)
    tokens = job.train.microbatch_size * job.data.sequence
    return divide_phases(question, job.planner, job.train.iterations, tokens, layout)


def divide_phases(
    question: AllocationSearch, planner: PlannerConfig, iterations: int, microbatch_tokens: int, layout: Layout
) -> tuple[PlanPhase, ...]:
    """The phases of a run of so many iterations and tokens per microbatch; errors are those of `plan_phases`."""
    length = None
    if layout.plan is None:
        counts = microbatches(question.schedule.microbatches_per_source, len(layout.stages[0]))
        length = RunLength(iterations, sum(counts) * microbatch_tokens)
    found = list(resolve_phases(question.phases, question.schedule, planner, layout.allocation, length))
    if layout.plan is None:
        check_phases(layout.cluster, found)
    for number, phase in enumerate(found):
        if phase.anew and layout.unused:
            expected = f"kept, as no process serves {shown_names(layout.unused)}"
            raise unexpected(f"phases.list[{number}].allocation", "anew", expected)
        allocating = dataclasses.replace(question.allocate, objective="surrogate")
        found[number] = reallocate(layout.cluster, phase, allocating, allocating_planner(phase.planner))
    ends = [*(round(phase.begin * iterations) for phase in found[1:]), iterations]
    phases: list[PlanPhase] = []
    after = 0
    for number, (phase, end) in enumerate(zip(found, ends, strict=True)):
        if end <= after:
            expected = f"a share of at least one of the {iterations} iterations (train.iterations)"
            raise unexpected(f"phases.list[{number}].share", f"{phase.share:.6g}", expected)
        phases.append(PlanPhase(**vars(phase), after=after))
        after = end
    return tuple(phases)


def _stated_model(job: TrainJob) -> dict[str, Any]:
    """Fields of `PlanModel` as far as settings alone say them: the hash of the configuration takes torch."""
    model = resolved_settings(job.model)
    stated = {
        "hidden": model.get("hidden_size"),
        "layers": model.get("num_hidden_layers"),
        "microbatch_size": job.train.microbatch_size,
        "sequence": job.data.sequence,
        "wire_dtype": precision_of(job.train.dtype, job.runtime).wire_dtype,
    }
    return {name: value for name, value in stated.items() if value}


def _shared_settings(job: TrainJob) -> dict[str, str]:
    """Settings that have to be equal on all ranks; those of the model follow when its configuration is built."""
    of_runtime = dataclasses.asdict(job.runtime)
    runtime = (
        "links", "time_scale", "contention", "link_changes", "recv_buffers", "sends_in_flight", "calibrate", "autocast",
        "wire_dtype", "deterministic", "heartbeat_s", "recover", "lost_stage",
    )  # fmt: skip
    groups: dict[str, dict[str, Any]] = {
        "train": dataclasses.asdict(job.train),
        "data": {name: getattr(job.data, name) for name in ("sequence", "validation_blocks")},
        "runtime": {name: of_runtime[name] for name in runtime},
        "checkpoint": {name: value for name, value in dataclasses.asdict(job.checkpoint).items() if name != "key"},
    }
    if job.plan is None:
        groups |= {
            name: dataclasses.asdict(getattr(job, name)) for name in ("schedule", "phases", "planner", "allocate")
        }
    return {
        f"{group}.{name}": json.dumps(value, sort_keys=True)
        for group, values in groups.items()
        for name, value in values.items()
    }
