"""Nodes, layers and microbatches of each stage, searched for measured nodes before any stage is built."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from skippipe._scheduler import Cluster, Plan
from skippipe.allocation import allocation_of
from skippipe.measured import for_planning
from skippipe.phases import allocating_phase, phase_schedule
from skippipe.planning import PlanningJob, make_plan, question_for, time_limit
from skippipe.runtime.message import MessageSpec
from skippipe.train.connect.links import Links
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.measuring.profile import profile_cluster
from skippipe.train.measuring.spec import ProfileSpec
from skippipe.train.prepare.planning import UNLIMITED_S, request_sha256
from skippipe.train.prepare.resume import ResumePoint
from skippipe.train.prepare.stages import partition_model
from skippipe.train.resolve.resolve import divide_phases
from skippipe.train.resolve.spec import AllocationSearch, RunSpec
from skippipe.workload import workload_of


def with_searched_allocation(  # noqa: PLR0913, PLR0917 - what a rank knows
    spec: RunSpec,
    config: Any,
    rendezvous: Rendezvous,
    links: Links,
    message_spec: MessageSpec,
    rank_of: Sequence[int],
    resume: ResumePoint,
) -> RunSpec:
    """The run with the allocation that it is to have: searched if it asks for that, else as it is. All ranks call this.

    A run that resumes keeps the allocation of its checkpoint's plans if it asks for the same.

    Raises:
        InputError: the model has too few layers, or a node too little memory.
        SchedulerError: a rank did not answer, or no plan was found.

    """
    search = spec.search
    if search is None:
        return spec
    kept = _kept(spec, config, resume)
    if kept is not None:
        return kept
    measured = profile_cluster(
        ProfileSpec(
            spec.data.microbatch_size, spec.data.sequence, spec.precision, spec.device, spec.communication,
            spec.memory_bytes, stages=len(spec.layout.stages),
        ),
        config,
        rendezvous,
        links,
        message_spec,
        names=spec.layout.cluster.names,
        rank_of=rank_of,
        source="measured by skippipe train before any stage was built",
        progress=lambda _done, _total, _what: None,
    )  # fmt: skip
    question = allocation_question(spec, search, measured)
    limit_s = time_limit(spec.planner, question.scope)
    text = rendezvous.broadcast(
        "allocation",
        lambda: make_plan(question, search.schedule.strategy, spec.planner).to_json(),
        UNLIMITED_S if limit_s is None else limit_s,
    )
    return with_allocation_of(spec, Plan.from_json(text))


def allocation_question(spec: RunSpec, search: AllocationSearch, measured: Cluster) -> PlanningJob:
    """Ask for nodes, layers and microbatches of each stage, on measured nodes, for the longest phase that uses all.

    No node holds more microbatches than the run's own cluster states, or stays unused: all of them have a process.
    """
    layout, total = spec.layout, workload_of(measured).layers
    measured = measured.with_contention(spec.communication.planned_contention(layout.cluster))
    content = json.loads(for_planning(measured, len(layout.stages), total=total, searched=True).to_json())
    for node, most in zip(content["nodes"], layout.cluster.memory.tolist(), strict=True):
        node["memory"] = min(node["memory"], most)
    allocating = dataclasses.replace(search.allocate, unused="forbid", decoder_layers=total)
    number = allocating_phase(search.phases)
    schedule = search.schedule if number is None else phase_schedule(search.phases.list[number], search.schedule)
    sizes = [len(nodes) for nodes in layout.stages]
    return question_for(Cluster.from_json(json.dumps(content)), sizes, None, allocating, schedule)


def with_allocation_of(spec: RunSpec, plan: Plan) -> RunSpec:
    """The run with nodes, layers and microbatches of a plan."""
    assert spec.search is not None
    layout = dataclasses.replace(spec.layout, allocation=allocation_of(plan))
    schedule = dataclasses.replace(spec.search.schedule, microbatches_per_source=list(plan.problem().microbatches))
    question = dataclasses.replace(spec.search, schedule=schedule)
    phases = divide_phases(
        question, spec.planner, spec.iterations, spec.data.microbatch_size * spec.data.sequence, layout
    )
    return dataclasses.replace(spec, layout=layout, phases=phases)


def _kept(spec: RunSpec, config: Any, resume: ResumePoint) -> RunSpec | None:
    """The run with the allocation of a plan in its checkpoint, if all of its plans would then be asked for again."""
    plans = {} if resume.checkpoint is None else resume.checkpoint.plans
    names, total = spec.layout.cluster.names, config.num_hidden_layers
    for plan in plans.values():
        alike = plan.cluster.names == names and len(plan.stages) == len(spec.layout.stages)
        if alike and not plan.absent_stages and sum(plan.layers) == total:
            again = with_allocation_of(spec, plan)
            model = partition_model(again, config)
            if all(request_sha256(again, phase, model) in plans for phase in again.phases):
                return again
    return None
