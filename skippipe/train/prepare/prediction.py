"""Whether the times of a plan hold for a run."""

from dataclasses import asdict, dataclass

from skippipe._scheduler import Plan
from skippipe.allocation import Allocation
from skippipe.train.prepare.stages import PartitionedModel
from skippipe.train.resolve.plan_model import SETTING_OF
from skippipe.train.resolve.spec import RunSpec
from skippipe.workload import Workload, partition_mismatch, source_mismatch, workload_of


@dataclass(frozen=True)
class Prediction:
    """Whether the times of a plan hold for a run."""

    holds: bool
    """whether its iteration time is a prediction for the run"""
    note: str
    """why not, or what is not known; may be empty"""


def judge_prediction(plan: Plan, model: PartitionedModel, spec: RunSpec, device: str | None) -> Prediction:
    """Compare what the times of a plan were measured or stated for with a run.

    Args:
        plan: that is run, with its cluster, which may say what its times hold for.
        model: of the run.
        spec: the run.
        device: name of the device that its stages compute on; None: not known here.

    """
    if spec.device.group > 1:
        return Prediction(
            holds=False, note=f"microbatches share passes (runtime.group={spec.device.group}), the plan's do not"
        )
    communication, measured = spec.communication, spec.calibrate and spec.layout.plan is None
    if communication.time_scale != 1 and not measured:
        note = f"links are emulated with runtime.time_scale={communication.time_scale:g}, tasks run at their own speed"
        return Prediction(holds=False, note=note)
    mismatch = _mismatch(plan, model, device)
    if mismatch is not None:
        return Prediction(holds=False, note=mismatch)
    stated = workload_of(plan.cluster)
    given = spec.layout.plan is not None and plan.model is not None  # else its model is that of this run anyway
    is_unknown = not given and None in (stated.hidden, stated.layers, stated.microbatch_size, stated.sequence)
    notes = [
        "neither plan nor cluster says which model and microbatch its times hold for"
        if is_unknown
        else source_mismatch(plan),
        _assumption_mismatch(plan, spec),
    ]
    return Prediction(holds=True, note="; ".join(note for note in notes if note))


def _assumption_mismatch(plan: Plan, spec: RunSpec) -> str | None:
    """What a given plan assumed of the machines and does not hold here, where `plan` is the one that is run."""
    given = spec.layout.plan
    if given is None:
        return None
    if given.assumptions.processors != plan.assumptions.processors:
        names = plan.cluster.names
        was, now = (
            ", ".join("+".join(names[node] for node in nodes) for nodes in of.assumptions.processors) or "none"
            for of in (given, plan)
        )
        return f"nodes that share a processor: {was} by the plan, {now} here; times are predicted anew"
    was, now = given.assumptions.contention, plan.assumptions.contention
    if was != now and given.predicted.iteration_s != plan.predicted.iteration_s:
        return f"messages take turns: {was} by the plan, {now} here; times are predicted anew"
    return None


def _mismatch(plan: Plan, model: PartitionedModel, device: str | None) -> str | None:
    """The first difference between the run and what the cluster's times hold for."""
    stated, cluster, ours = workload_of(plan.cluster), plan.cluster, model.plan_model
    for name, key in SETTING_OF.items():
        theirs, own = getattr(stated, name), getattr(ours, name)
        if theirs not in (None, own):
            return f"times of the cluster hold for {name} {theirs}, here it is {own} ({key})"
    if cluster.activation_bytes not in (0.0, ours.message_bytes):
        return (
            f"times of the cluster hold for messages of {cluster.activation_bytes:,.0f} bytes (activation_bytes), "
            f"here they have {ours.message_bytes:,}"
        )
    if None not in (stated.device, device) and stated.device != device:
        return f"times of the cluster hold for {stated.device}, here it is {device} (runtime.device)"
    cut = partition_mismatch(plan, model.layers)
    return None if cut is None else f"times of the cluster hold for another partition: {cut}"


def measured_workload(model: PartitionedModel, allocation: Allocation, nodes: int, device: str) -> Workload:
    """What times of `nodes` nodes that are measured in this run hold for, on one of its allocations."""
    stage_of = allocation.stage_of
    node_layers = tuple(model.layers[stage_of[node]] if node in stage_of else None for node in range(nodes))
    sources = tuple(allocation.stages[0])
    return Workload(**asdict(model.plan_model), device=device, node_layers=node_layers, sources=sources)
