"""The plan of a training run: made for a model, or read from a file and held against the model that is trained.

The part of `skippipe.plan/1` that speaks of the model is written and compared here; the planner knows nothing of it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from skippipe._scheduler import Cluster, Plan, Problem
from skippipe.allocation import Allocation, even_shares
from skippipe.config import PlannerConfig
from skippipe.devices import DTYPES
from skippipe.errors import InputError
from skippipe.model.settings import resolved_settings
from skippipe.planning import evaluate, make_plan, state_problem
from skippipe.train.config import TrainJob
from skippipe.train.events import Event
from skippipe.train.layout import Layout
from skippipe.workload import Workload, other_cut, other_sources, workload_of

KEY_OF_KIND = {"F": "forward_s", "L": "loss_s", "B": "backward_s"}


@dataclasses.dataclass(frozen=True)
class ModelNote:
    """What a plan says about the model that it was made for."""

    config_sha256: str
    hidden: int
    layers: int
    microbatch_size: int
    sequence: int
    wire_dtype: str

    @property
    def message_bytes(self) -> int:
        """Bytes of one message, activations or gradients of a microbatch."""
        return self.microbatch_size * self.sequence * self.hidden * DTYPES[self.wire_dtype]


_KEYS = {
    "hidden": "model.hidden_size",
    "layers": "model.num_hidden_layers",
    "microbatch_size": "train.microbatch_size",
    "sequence": "data.sequence",
    "wire_dtype": "train.dtype",
    "config_sha256": "model",
}
"""Settings that the parts of a note come from; the plainest first."""


def model_note(job: TrainJob, config_sha256: str, hidden: int, layers: int) -> ModelNote:
    """Describe the model of a job."""
    return ModelNote(config_sha256, hidden, layers, job.train.microbatch_size, job.data.sequence, job.train.dtype)


def plan_for(job: TrainJob, cluster: Cluster, allocation: Allocation, layers: Sequence[int], note: ModelNote) -> Plan:
    """Plan with the strategy of the job, and write the model into the plan."""
    problem = state_problem(cluster, dataclasses.replace(allocation, layers=tuple(layers)), job.schedule)
    return with_note(make_plan(problem, job.schedule.strategy, job.planner), note)


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run that has a plan of its own."""

    after: int
    """iterations before it"""
    job: TrainJob
    """what its plan is asked for"""


def phases_of(job: TrainJob) -> list[Phase]:
    """Divide a run where its skip ratio changes.

    Raises:
        InputError: changes that do not follow one another, or that a given plan leaves no room for.

    """
    changes, iterations = job.train.skip_changes, job.train.iterations
    if changes and job.plan is not None:
        raise InputError(f"train.skip_changes is set, and plan is {job.plan}: every part of the run needs its own plan")
    phases = [Phase(0, job)]
    for number, change in enumerate(changes):
        after = round(change.after * iterations)
        if not phases[-1].after < after < iterations:
            raise InputError(
                f"train.skip_changes[{number}].after is {change.after}, that is after {after} of {iterations} "
                f"iterations; more than {phases[-1].after} and less than {iterations} is expected"
            )
        schedule = dataclasses.replace(job.schedule, skip_ratio=change.skip_ratio)
        phases.append(Phase(after, dataclasses.replace(job, schedule=schedule)))
    return phases


def check_phases(job: TrainJob, cluster: Cluster, allocation: Allocation) -> None:
    """Raise `InputError` where some part of a run asks for what the nodes of the cluster cannot be asked for."""
    for number, phase in enumerate(phases_of(job)[1:]):
        try:
            state_problem(cluster, allocation, phase.job.schedule)
        except InputError as error:
            raise type(error)(f"train.skip_changes[{number}]: {error}") from error


def planning_sha256(job: TrainJob, layout: Layout, layers: Sequence[int], note: ModelNote) -> str:
    """Hash of everything that a plan is asked for: where it is the same, a run can go on by the plan that it has."""
    allocation = layout.allocation
    asked = [
        layout.cluster.to_json(), allocation.stages, allocation.absent_stages, allocation.absent_nodes, list(layers),
        job.runtime.calibrate,
        *(dataclasses.asdict(part) for part in (job.schedule, job.planner, note)),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def full_pipelines(plan: Plan, planner: PlannerConfig) -> dict[str, float | None]:
    """Predicted iteration time of the full pipeline with the same allocation, straight and routed, in seconds."""
    counts = plan.microbatches_per_source
    problem = Problem(
        plan.cluster,
        plan.stages,
        [counts.get(source, 0) for source in plan.stages[0]],
        skip_ratio=0.0,
        constraints=plan.constraints,
        absent_stages=plan.absent_stages,
        absent_nodes=plan.absent_nodes,
    )
    return {name: evaluate(problem, name, planner).iteration_s for name in ("full", "full-routed")}


def with_note(plan: Plan, note: ModelNote) -> Plan:
    """The same plan, said to be for this model."""
    return Plan.from_json(json.dumps(json.loads(plan.to_json()) | {"model": dataclasses.asdict(note)}))


def with_times(plan: Plan, seconds: Mapping[int, Mapping[str, float]]) -> Plan:
    """The same plan for a cluster whose nodes take other times, by node and kind of task (F, L, B), in seconds.

    The times of its tasks are those of the old cluster; `simulate` gives the new ones.
    """
    content = json.loads(plan.to_json())
    for number, node in enumerate(content["cluster"]["nodes"]):
        node.update({KEY_OF_KIND[kind]: time for kind, time in seconds.get(number, {}).items()})
    return Plan.from_json(json.dumps(content))


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Whether the times of a plan hold for a run."""

    holds: bool
    """whether its iteration time is a prediction for the run"""
    note: str
    """why not, or what is not known of it; empty: nothing"""


def judge_prediction(
    plan: Plan, note: ModelNote, layers: Sequence[int], job: TrainJob, device: str | None
) -> Prediction:
    """Hold what the times of a plan were measured or stated for against a run.

    Args:
        plan: with its cluster, which may say what its times hold for.
        note: the model of the run.
        layers: decoder layers of each stage of the run.
        job: its settings.
        device: what its stages compute on; None: not known here.

    """
    if job.runtime.group > 1:
        return Prediction(
            holds=False, note=f"microbatches share passes (runtime.group={job.runtime.group}), the plan's do not"
        )
    misfit = _misfit(plan, note, layers, device)
    if misfit is not None:
        return Prediction(holds=False, note=misfit)
    stated = workload_of(plan.cluster)
    given = job.plan is not None and plan.model is not None  # the model of a plan made here is this run's, whatever
    if not given and None in (stated.hidden, stated.layers, stated.microbatch_size, stated.sequence):
        return Prediction(
            holds=True, note="neither plan nor cluster says which model and microbatch its times hold for"
        )
    return Prediction(holds=True, note=other_sources(plan) or "")


def _misfit(plan: Plan, note: ModelNote, layers: Sequence[int], device: str | None) -> str | None:
    """Name the first thing in which the run differs from what the cluster's times hold for."""
    stated, cluster = workload_of(plan.cluster), plan.cluster
    for part, key in _KEYS.items():
        theirs, ours = getattr(stated, part), getattr(note, part)
        if theirs not in (None, ours):
            return f"times of the cluster hold for {part} {theirs}, here it is {ours} ({key})"
    if cluster.activation_bytes not in (0.0, note.message_bytes):
        return (
            f"times of the cluster hold for messages of {cluster.activation_bytes:,.0f} bytes (activation_bytes), "
            f"here they have {note.message_bytes:,}"
        )
    if None not in (stated.device, device) and stated.device != device:
        return f"times of the cluster hold for {stated.device}, here it is {device} (runtime.device)"
    cut = other_cut(plan, layers)
    return None if cut is None else f"times of the cluster hold for another cut: {cut}"


def plan_event(plan: Plan, note: ModelNote, prediction: Prediction, full: Mapping[str, float | None]) -> Event:
    """Say what a plan is, and what it and the `full` pipelines are predicted to take, where that holds."""
    predicted = plan.predicted
    return {
        "event": "plan",
        "strategy": plan.strategy,
        "skip_ratio": plan.skip_ratio,
        "stages": len(plan.stages),
        "nodes": sum(map(len, plan.stages)),
        "microbatches": len(plan.microbatches),
        "microbatch_size": note.microbatch_size,
        "sequence": note.sequence,
        "predicted_s": predicted.iteration_s if prediction.holds else None,
        "lower_bound_s": predicted.lower_bound_s if prediction.holds else None,
        "prediction_note": prediction.note,
        "full": dict(full) if prediction.holds else {},
    }


def workload_note(note: ModelNote, layout: Layout, layers: Sequence[int], device: str) -> Workload:
    """Say what times measured in a run hold for."""
    stage_of = {node: stage for stage, nodes in enumerate(layout.stages) for node in nodes}
    nodes = range(len(layout.cluster))
    node_layers = tuple(layers[stage_of[node]] if node in stage_of else None for node in nodes)
    sources = tuple(layout.stages[0])
    return Workload(**dataclasses.asdict(note), device=device, node_layers=node_layers, sources=sources)


def stated_note(job: TrainJob) -> dict[str, Any]:
    """Say as much of a job's model as its settings do: all but the hash, which takes torch to find."""
    model = resolved_settings(job.model)
    note = dataclasses.asdict(model_note(job, "", model.get("hidden_size", 0), model.get("num_hidden_layers", 0)))
    return {part: value for part, value in note.items() if value}


def check_model(plan: Plan, note: Mapping[str, Any], origin: str) -> None:
    """Raise `InputError` naming what differs if a plan was made for another model; a plan may say nothing of it."""
    if plan.model is None:
        return
    stated: Mapping[str, Any] = json.loads(plan.model)
    for part, key in _KEYS.items():
        ours = note.get(part)
        if part in stated and ours is not None and stated[part] != ours:
            raise InputError(
                f"{origin}: the plan is for another model: its {part} is {stated[part]}, here it is {ours} ({key})"
            )


def stage_sizes(job: TrainJob, layout: Layout, note: ModelNote) -> list[int]:
    """Decoder layers of each stage of a job.

    Raises:
        InputError: the layers do not fit model or plan, or the plan is for another model.

    """
    if layout.plan is not None:
        check_model(layout.plan, dataclasses.asdict(note), layout.origin)
    return layers_of(layout.stated_layers, job.train.layers, len(layout.stages), note.layers, layout.origin)


def layers_of(
    plan_layers: Sequence[int], asked: Sequence[int] | None, stages: int, layers: int, origin: str
) -> list[int]:
    """Decoder layers of each stage: those asked for, else those of the plan, else as even as can be.

    Raises:
        InputError: they do not fit the model or the plan; `origin` is the file that the plan is from.

    """
    if asked is not None:
        if plan_layers and list(asked) != list(plan_layers):
            raise InputError(f"train.layers is {list(asked)}, {origin} has {list(plan_layers)}")
        if len(asked) != stages or sum(asked) != layers or min(asked) < 1:
            raise InputError(
                f"train.layers is {list(asked)}, {stages} numbers of at least 1 that add up to the model's {layers} "
                "layers are expected"
            )
        return list(asked)
    if plan_layers:
        if sum(plan_layers) != layers:
            raise InputError(
                f"{origin}: the plan is for another model: its stages have {sum(plan_layers)} layers, "
                f"the model has {layers} (model.num_hidden_layers)"
            )
        return list(plan_layers)
    if stages > layers:
        raise InputError(f"model.num_hidden_layers is {layers}, at least the number of stages, {stages}, is expected")
    return even_shares(layers, stages)
