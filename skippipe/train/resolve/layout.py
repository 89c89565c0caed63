"""Nodes and stages of a job: read from its plan, or allocated for its cluster before a plan is made."""

import copyreg
import json
from dataclasses import dataclass, replace
from typing import Any

from skippipe._scheduler import Cluster, Plan
from skippipe.allocation import Allocation, allocation_of
from skippipe.config import PlannerConfig
from skippipe.errors import unexpected
from skippipe.plan_file import load_plan
from skippipe.planning import ALLOCATING_WORK, allocated, check_scope, planning_job
from skippipe.train.config import TrainJob


@dataclass(frozen=True)
class Layout:
    """Nodes and stages of a job, and its plan if one is given."""

    cluster: Cluster
    allocation: Allocation
    plan: Plan | None
    origin: str
    """how messages call the plan"""

    @property
    def stages(self) -> list[list[int]]:
        """Node numbers of each stage."""
        return self.allocation.stages

    @property
    def stage_of(self) -> dict[int, int]:
        """Stage of each node that serves one."""
        return self.allocation.stage_of

    @property
    def unused(self) -> list[str]:
        """Names of the nodes that serve no stage, which no process serves."""
        return [name for node, name in enumerate(self.cluster.names) if node not in self.stage_of]

    @property
    def used(self) -> list[str]:
        """Names of all other nodes."""
        return [name for node, name in enumerate(self.cluster.names) if node in self.stage_of]


def resolve_layout(job: TrainJob) -> Layout:
    """Read the plan of a job, or allocate the nodes of its cluster by the surrogate, layers as even as possible.

    Raises:
        InputError: files or settings that cannot be used.

    """
    if job.plan is not None:
        plan = load_plan(job.plan)
        return Layout(plan.cluster, allocation_of(plan), plan, job.plan)
    _check_allocate(job)
    allocating = replace(job.allocate, layers="equal")  # until they are searched
    problem = allocated(planning_job(job.cluster, allocating, job.schedule), allocating_planner(job.planner))
    return Layout(problem.cluster, allocation_of(problem), None, job.allocate.stages or "the plan")


def allocating_planner(planner: PlannerConfig) -> PlannerConfig:
    """The budget of a search that each rank of a distributed run does for itself: it ends by work, not by the clock."""
    return replace(planner, work_limit=planner.work_limit or ALLOCATING_WORK, time_limit_s=None)


def searches_layers(job: TrainJob) -> bool:
    """Whether layers and nodes of each stage are searched for measured times, before any stage is built."""
    return job.plan is None and job.allocate.layers == "auto"


def _check_allocate(job: TrainJob) -> None:
    """Raise `InputError` for settings of the allocation that training cannot honour."""
    config = job.allocate
    check_scope(config, job.schedule)
    if config.layers == "auto":
        for key, found, expected in (
            ("allocate.stages", config.stages, None),
            ("train.layers", job.train.layers, None),
            ("runtime.calibrate", job.runtime.calibrate, True),
        ):
            if found != expected:
                raise unexpected(key, found, f"{json.dumps(expected)}, as allocate.layers is auto")
    if config.decoder_layers is not None:
        hint = "the model has its own number (model.num_hidden_layers)"
        raise unexpected("allocate.decoder_layers", config.decoder_layers, "null in training", hint=hint)


def _pickled(value: Any) -> tuple[Any, tuple[str]]:
    return type(value).from_json, (value.to_json(),)


# The supervisor of a local run sends its workers the description of the run.
copyreg.pickle(Cluster, _pickled)
copyreg.pickle(Plan, _pickled)
