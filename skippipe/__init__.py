"""Plan, simulate and train pipelines in which each microbatch follows its own route and may skip stages.

    >>> import numpy as np
    >>> import skippipe
    >>> cluster = skippipe.Cluster(
    ...     names=["a", "b", "c", "d"], forward_s=np.full(4, 0.1), backward_s=np.full(4, 0.2), loss_s=np.full(4, 0.05),
    ...     memory=np.full(4, 4), transfer_s=np.full((4, 4), 0.01),
    ... )
    >>> problem = skippipe.Problem(cluster, sizes=[2, 1, 1], microbatches=4, skip_ratio=1 / 3)
    >>> plan = skippipe.plan(problem, work_limit=10_000)
    >>> full = skippipe.plan(problem, strategy="full-routed", work_limit=10_000)
    >>> plan.predicted.iteration_s < full.predicted.iteration_s
    True

Times are in seconds, sizes in bytes. Planning does not need torch. `docs/python.md` is the guide; errors are those of
`skippipe.errors`.
"""

from importlib.metadata import version

from skippipe._scheduler import (
    Allocated,
    AllocationReport,
    AllocationScope,
    Assumptions,
    Cluster,
    Constraints,
    Explanation,
    LeftOut,
    Microbatch,
    Plan,
    Predicted,
    Problem,
    RunnerUp,
    Scored,
    SearchEvent,
    SearchReport,
    Segment,
    Task,
    Upgrade,
)
from skippipe.cluster import load_cluster
from skippipe.plan_file import load_plan, save_plan
from skippipe.scheduler import allocate, explain, plan, preset_cluster, score_allocation, simulate, upgrades

__all__ = [
    "Allocated",
    "AllocationReport",
    "AllocationScope",
    "Assumptions",
    "Cluster",
    "Constraints",
    "Explanation",
    "LeftOut",
    "Microbatch",
    "Plan",
    "Predicted",
    "Problem",
    "RunnerUp",
    "Scored",
    "SearchEvent",
    "SearchReport",
    "Segment",
    "Task",
    "Upgrade",
    "allocate",
    "explain",
    "load_cluster",
    "load_plan",
    "plan",
    "preset_cluster",
    "save_plan",
    "score_allocation",
    "simulate",
    "upgrades",
]

__version__ = version("skippipe")
