"""The plans of a run's phases: given, kept from a checkpoint, or made by rank 0 for measured times."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

from skippipe._scheduler import Cluster, Plan
from skippipe.allocation import Allocation
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, ImpossibleError, NoPlanError
from skippipe.phases import changes_s, phase_changes, phase_problem, summarize
from skippipe.planning import PlanningJob, make_plan, state_problem, time_limit
from skippipe.ranks import iteration_s_on, planned_processors
from skippipe.runtime.stage import Stage
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.engine import Engine
from skippipe.train.loop.task_times import with_times
from skippipe.train.observe.events import PlanReady
from skippipe.train.prepare.calibrate import measure_cluster, rehearse
from skippipe.train.prepare.prediction import Prediction
from skippipe.train.prepare.resume import ResumePoint
from skippipe.train.prepare.stages import PartitionedModel, weight_bytes
from skippipe.train.resolve.spec import PlanPhase, RunSpec
from skippipe.workload import Workload

UNLIMITED_S = 24 * 3600.0
"""Time for planning that only a work limit ends."""


def plan_phase(
    spec: RunSpec, phase: PlanPhase, cluster: Cluster, model: PartitionedModel, rank_of: Sequence[int]
) -> Plan:
    """Plan a phase of a run for a cluster and the ranks that serve its nodes, and write the model into the plan."""
    problem = phase_problem(_cluster_on(spec, cluster, rank_of), phase, model.layers)
    plan = make_plan(PlanningJob(problem), phase.schedule.strategy, phase.planner)
    return plan.with_model(**dataclasses.asdict(model.plan_model))


def on_ranks(spec: RunSpec, plan: Plan, rank_of: Sequence[int]) -> Plan:
    """A plan that was made before, with the times that it has where these ranks serve its nodes."""
    plan = plan.on_processors(planned_processors(rank_of))
    return plan.with_contention(spec.communication.planned_contention(plan.cluster))


def _cluster_on(spec: RunSpec, cluster: Cluster, rank_of: Sequence[int]) -> Cluster:
    """A cluster as plans of a run assume it, where these ranks serve its nodes."""
    contention = spec.communication.planned_contention(cluster)
    return cluster.with_processors(planned_processors(rank_of)).with_contention(contention)


def request_sha256(spec: RunSpec, phase: PlanPhase, model: PartitionedModel) -> str:
    """Hash of everything that a plan is asked for: where it is the same, a resumed run may keep its plan."""
    allocation = phase.allocation
    asked = [
        spec.layout.cluster.to_json(), spec.communication.planned_contention(spec.layout.cluster),
        allocation.stages, allocation.absent_stages, allocation.absent_nodes,
        model.layers, phase.layers, spec.calibrate,
        None if spec.search is None else dataclasses.asdict(spec.search.allocate),
        *(dataclasses.asdict(part) for part in (phase.schedule, phase.planner, model.plan_model)),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def kept_plans(resume: ResumePoint, requests: Sequence[str]) -> list[Plan | None]:
    """For every phase the plan in the checkpoint that the run resumes from, if one was asked for the same."""
    plans = {} if resume.checkpoint is None else resume.checkpoint.plans
    return [plans.get(request) for request in requests]


def make_plans(
    context: RankContext,
    model: PartitionedModel,
    kept: Sequence[Plan | None],
    *,
    workloads: Sequence[Workload],
    build_head: Callable[[], Stage],
) -> list[Plan]:
    """Plan every phase on rank 0, for the cluster as described or, with `runtime.calibrate`, as measured.

    It is measured twice: stage by stage, and then in iterations of a first plan, since stages that share processors or
    memory are slower together than their own times suggest; that is done for each allocation, by its first phase with
    the most stages in use. A phase whose plan is `kept` has it. Plans that were made for nodes on other processors than
    the ranks are, given or kept, are predicted anew, with the order that the ranks give them. All ranks call this.

    `workloads` are what measured times hold for, by allocation.
    """
    spec, layout = context.spec, context.spec.layout
    if layout.plan is not None:
        return [on_ranks(spec, layout.plan, context.rank_of)]
    kept = [None if plan is None else on_ranks(spec, plan, context.rank_of) for plan in kept]

    def planned(key: str, phase: PlanPhase, cluster: Cluster) -> Plan:
        text = context.rendezvous.broadcast(
            key, lambda: plan_phase(spec, phase, cluster, model, context.rank_of).to_json(), planning_s(phase.planner)
        )
        return Plan.from_json(text)

    def cluster_of(number: int, allocation: Allocation) -> Cluster:
        own = [(phase, kept[n]) for n, phase in enumerate(spec.phases) if spec.allocation_of(phase) == allocation]
        if not own or not spec.calibrate or all(plan is not None for _, plan in own):
            return layout.cluster
        known = next((plan.cluster for phase, plan in own if plan is not None and phase.layers is None), None)
        if known is not None:
            return known
        most = min((phase for phase, _ in own), key=lambda phase: len(phase.allocation.absent_stages))
        most = dataclasses.replace(most, layers=None)  # all layers are timed
        measured = measure_cluster(context, allocation, workloads[number], build_head, f"allocation {number}")
        first = planned(f"first plan {number}", most, measured)
        return with_times(first, rehearse(context, Engine(context, most, first), f"rehearsal {number}")).cluster

    clusters = [cluster_of(number, allocation) for number, allocation in enumerate(spec.allocations)]
    return [
        plan or planned(f"plan {number}", phase, clusters[spec.allocations.index(spec.allocation_of(phase))])
        for number, (phase, plan) in enumerate(zip(spec.phases, kept, strict=True))
    ]


def planning_s(planner: PlannerConfig) -> float:
    """How long planning may take, in seconds."""
    limit = time_limit(planner)
    return UNLIMITED_S if limit is None else limit


def full_pipelines(
    spec: RunSpec, model: PartitionedModel, cluster: Cluster, rank_of: Sequence[int]
) -> dict[str, float | None]:
    """Predicted iteration time of full pipelines on the same allocation and ranks, straight and routed, in seconds."""
    plan = spec.layout.plan
    if plan is None:
        allocation = dataclasses.replace(spec.layout.allocation, layers=tuple(model.layers))
        full = dataclasses.replace(spec.phases[0].schedule, skip_ratio=0.0, profile=None, classes=None)
        problem = state_problem(_cluster_on(spec, cluster, rank_of), allocation, full)
    else:
        problem = on_ranks(spec, plan, rank_of).problem()
    job = PlanningJob(problem)

    def iteration_s(strategy: str) -> float | None:
        try:
            return iteration_s_on(make_plan(job, strategy, spec.planner), rank_of)
        except (NoPlanError, DeadlockError, ImpossibleError):
            return None

    return {strategy: iteration_s(strategy) for strategy in ("full", "full-routed")}


def plan_ready(  # noqa: PLR0913 - by keyword
    spec: RunSpec,
    model: PartitionedModel,
    plans: Sequence[Plan],
    predictions: Sequence[Prediction],
    full: Mapping[str, float | None],
    *,
    rank_of: Sequence[int],
    parameters: int,
    processes: int,
    training_tokens: int,
    recv_buffers: int,
    device: str,
    transport: str = "",
) -> PlanReady:
    """Report what is about to be trained, and the predicted times as far as they hold."""
    plan, prediction = plans[0], predictions[0]
    weights = weight_bytes(model, spec.precision.torch_dtype)
    clusters, copy = [own.cluster for own in plans], spec.new_layers == "copy"
    changes = phase_changes(spec.phases, rank_of, model.stage_layers, copy=copy)
    seconds = changes_s(changes, clusters, rank_of, model.stage_layers, weights)
    return PlanReady(
        strategy=plan.strategy,
        skip_ratio=plan.skip_ratio,
        stages=len(plan.stages),
        nodes=sum(map(len, spec.layout.stages)),
        microbatches=len(plan.microbatches),
        microbatch_size=spec.data.microbatch_size,
        sequence=spec.data.sequence,
        predicted_s=iteration_s_on(plan, rank_of) if prediction.holds else None,
        lower_bound_s=plan.predicted.lower_bound_s if prediction.holds else None,
        prediction_note=prediction.note,
        full=dict(full) if prediction.holds else {},
        model=model.config.model_type,
        parameters=parameters,
        layers=model.layers,
        processes=processes,
        training_tokens=training_tokens,
        iterations=spec.iterations,
        recv_buffers=recv_buffers,
        transport=transport,
        device=device,
        phases=tuple(
            summarize(phase, plan, change, predicts=prediction.holds)
            for phase, plan, change, prediction in zip(spec.phases, plans, seconds, predictions, strict=True)
        ),
    )
