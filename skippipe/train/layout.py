"""Which node serves which stage, and who serves which node: known before the plan, where that is still to be made."""

from dataclasses import dataclass, replace

from skippipe._scheduler import Cluster, Plan
from skippipe.allocation import Allocation, allocation_of
from skippipe.cluster import load_cluster, preset_spec
from skippipe.config import AllocateConfig
from skippipe.errors import InputError
from skippipe.plan import load_plan
from skippipe.planning import ALLOCATING_WORK, allocated, prepare
from skippipe.train.config import TrainJob


@dataclass(frozen=True)
class Layout:
    """Nodes and stages of a job, and its plan if one is given."""

    cluster: Cluster
    allocation: Allocation
    plan: Plan | None
    origin: str
    """what messages call the plan"""

    @property
    def stages(self) -> list[list[int]]:
        """Node numbers of each stage."""
        return self.allocation.stages

    @property
    def unused(self) -> list[str]:
        """Names of the nodes that serve no stage, which no process serves."""
        serving = {node for nodes in self.stages for node in nodes}
        return [name for node, name in enumerate(self.cluster.names) if node not in serving]

    @property
    def used(self) -> list[str]:
        """Names of all other nodes."""
        unused = set(self.unused)
        return [name for name in self.cluster.names if name not in unused]

    @property
    def stated_layers(self) -> list[int]:
        """Decoder layers of each stage as plan or allocation have them; empty: they do not say."""
        return list(self.allocation.layers)


def layout_of(job: TrainJob) -> Layout:
    """Read the plan of a job, or allocate the nodes of its cluster by the surrogate.

    Every rank does so for itself, before anything is measured: so no clock may end the search.

    Raises:
        InputError: files or settings that cannot be used.

    """
    if job.plan is not None:
        plan = load_plan(job.plan)
        return Layout(plan.cluster, allocation_of(plan), plan, job.plan)
    check_allocating(job.allocate)
    planner = replace(job.planner, work_limit=job.planner.work_limit or ALLOCATING_WORK, time_limit_s=None)
    problem = allocated(prepare(job.cluster, job.allocate, job.schedule), planner)
    return Layout(problem.cluster, allocation_of(problem), None, job.allocate.stages or "the plan")


def node_names_of(job: TrainJob) -> list[str]:
    """Names of the nodes of a job's plan or cluster, which are known before anything is planned."""
    if job.plan is not None:
        return load_plan(job.plan).cluster.names
    machines = job.cluster
    cluster = preset_spec(machines).cluster(machines) if machines.file is None else load_cluster(machines.file)
    return cluster.names


def check_allocating(config: AllocateConfig) -> None:
    """Raise `InputError` where a setting asks for what is settled before a training can measure or know it."""
    if config.layers == "auto":
        raise InputError(
            "allocate.layers is auto, equal is expected in training: stages are built before their times are measured; "
            "skippipe plan allocate.layers=auto output=plan.json makes a plan to train with (plan=plan.json)"
        )
    if config.decoder_layers is not None:
        raise InputError(
            f"allocate.decoder_layers is {config.decoder_layers}, null is expected in training: the model says it "
            "(model.num_hidden_layers)"
        )
