"""Which node serves which stage, and who serves which node: known before the plan, where that is still to be made."""

from dataclasses import dataclass

from skippipe._scheduler import Cluster, Plan
from skippipe.allocation import Allocation
from skippipe.plan import load_plan
from skippipe.planning import prepare
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
    def stated_layers(self) -> list[int]:
        """Decoder layers of each stage as plan or allocation have them; empty: they do not say."""
        return list(self.allocation.layers)


def layout_of(job: TrainJob) -> Layout:
    """Read the plan of a job, or allocate the nodes of its cluster.

    Raises:
        InputError: files or settings that cannot be used.

    """
    if job.plan is not None:
        plan = load_plan(job.plan)
        allocation = Allocation(plan.stages, tuple(plan.absent_stages), tuple(plan.layers))
        return Layout(plan.cluster, allocation, plan, job.plan)
    instance = prepare(job.cluster, job.allocate, job.schedule)
    return Layout(instance.cluster, instance.allocation, None, job.allocate.stages or "the plan")
