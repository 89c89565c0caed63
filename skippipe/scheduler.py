"""The functions of `skippipe` that plan, simulate and allocate, and the presets to do it with."""

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import skippipe._scheduler as core
from skippipe._scheduler import (
    Allocated,
    AllocationScope,
    Cluster,
    Explanation,
    Plan,
    PlanRequest,
    Problem,
    Scored,
    Upgrade,
)

__all__ = ["allocate", "explain", "plan", "preset_cluster", "score_allocation", "simulate", "upgrades"]

SearchProgress = Callable[[float, float, float, int], None]
"""Called about twenty times a second during a search with elapsed seconds, the best value so far (infinite as long as
there is none) and its lower bound, both in seconds, and the work done."""

DEFAULT_TIME_LIMIT_S = 1.0
DEFAULT_SEARCH_LIMIT_S = 5.0
"""If the allocation is searched as well."""
ALLOCATE_LIMIT_S = 0.2
"""By the surrogate alone."""


def plan(  # noqa: PLR0913 - each of them may be asked for
    problem: Problem,
    *,
    strategy: str = "skippipe",
    scope: AllocationScope | None = None,
    method: str = "auto",
    suboptimality: float = 1.0,
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    threads: int = 1,
    seed: int = 0,
    progress: SearchProgress | None = None,
) -> Plan:
    """Find the plan with the shortest iteration that can be found within the limits.

    With the same seed and `work_limit`, and no `time_limit_s`, the plan is the same on any machine, with any number of
    threads. Ctrl-C ends the search with the best plan so far, whose `solver.interrupted` is then true.

    Args:
        problem: what to plan. If it has `stages`, that allocation stands; if it has `sizes`, the allocation is searched
            together with routes and order.
        strategy: what to plan by; `docs/problem.md` describes the strategies.
        scope: what the search may change of the allocation. None: nothing if the problem has `stages`; with `sizes`,
            which node serves which stage, and nodes of later stages may stay unused.
        method: "auto", a portfolio of all methods; or "cbs", conflict-based search until the plan is proved optimal.
        suboptimality: with "cbs", stop at a plan of at most this factor times the lower bound; at least 1.
        time_limit_s: seconds. None: unlimited with `work_limit`, else 1, or 5 if the allocation is searched.
        work_limit: units of search effort; None: unlimited.
        threads: worker threads, from 1 to 1024.
        seed: of all random choices; at least 0.
        progress: called during the search with elapsed seconds, seconds of the best iteration so far (infinite as long
            as there is none), seconds of the lower bound, and the work done.

    Returns:
        The plan; `predicted` has its iteration time, lower bound and gap, `solver` how the search went.

    Raises:
        skippipe.errors.InputError: an argument that cannot be used.
        skippipe.errors.ImpossibleError: proved: no plan satisfies the constraints. An `InputError` too.
        skippipe.errors.NoPlanError: none was found within the limits.
        skippipe.errors.DeadlockError: the dispatch rule of `full` or `random-skip` deadlocks.
        KeyboardInterrupt: interrupted before there was a plan.

    Example:
        >>> import numpy as np
        >>> import skippipe
        >>> cluster = skippipe.Cluster(
        ...     ["a", "b", "c", "d"], np.full(4, 0.1), np.full(4, 0.2), np.full(4, 0.05), [4] * 4,
        ...     transfer_s=np.full((4, 4), 0.01),
        ... )
        >>> problem = skippipe.Problem(cluster, stages=[[0, 1], [2], [3]], microbatches=4)
        >>> plan = skippipe.plan(problem, method="cbs", time_limit_s=30)
        >>> plan.solver.optimal
        True
        >>> [len(microbatch.nodes) for microbatch in plan.microbatches]
        [2, 2, 2, 2, 2, 2, 2, 2]

    """
    if scope is None and not problem.stages:
        scope = AllocationScope(
            sources=problem.sources is None, max_replica_transfer_s=problem.max_replica_transfer_s, unused=True
        )
    request = PlanRequest(
        problem,
        strategy,
        scope=scope,
        method=method,
        suboptimality=suboptimality,
        time_limit_s=effective_time_limit_s(time_limit_s, work_limit, scope),
        work_limit=work_limit,
        threads=threads,
        seed=seed,
    )
    return core.plan(request, progress=progress)


def effective_time_limit_s(
    time_limit_s: float | None, work_limit: int | None, scope: AllocationScope | None
) -> float | None:
    """Time limit in seconds: None by default with a work limit, since a clock would make results vary.

    The default is longer if `scope` includes the allocation in the search.
    """
    if time_limit_s is None and work_limit is None:
        return DEFAULT_TIME_LIMIT_S if scope is None else DEFAULT_SEARCH_LIMIT_S
    return time_limit_s


def simulate(plan: Plan, *, order: str = "plan") -> Plan:
    """Simulate one iteration of a plan.

    Args:
        plan: whose routes, cluster and constraints are taken.
        order: "plan": each node runs its tasks in the plan's order; "dispatch": an idle node runs a backward or loss
            first, else the earliest arrival.

    Returns:
        The plan with the simulated times, and with "dispatch" in that order.

    Raises:
        skippipe.errors.DeadlockError: tasks wait for each other in a cycle; the message names them.
        skippipe.errors.InputError: tasks that do not belong to the routes, or an unknown `order`.

    Example:
        >>> import skippipe
        >>> cluster = skippipe.Cluster(
        ...     ["a", "b", "c"], [0.1] * 3, [0.2] * 3, [0.05] * 3, [4] * 3, transfer_s=[[0.01] * 3] * 3
        ... )
        >>> plan = skippipe.plan(skippipe.Problem(cluster, [[0, 1], [2]], 3, skip_ratio=0.25), work_limit=1000)
        >>> skippipe.simulate(plan).tasks == plan.tasks
        True
        >>> slower = cluster.with_times([0.1, 0.1, 0.2], [0.2, 0.2, 0.4], [0.05] * 3)
        >>> skippipe.simulate(plan.with_cluster(slower)).predicted.iteration_s > plan.predicted.iteration_s
        True

    """
    return core.simulate(plan, order=order)


def allocate(  # noqa: PLR0913 - each of them may be asked for
    cluster: Cluster,
    sizes: Iterable[SupportsIndex],
    *,
    sources: Iterable[SupportsIndex] | None = None,
    max_replica_transfer_s: float | None = None,
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    threads: int = 1,
    seed: int = 0,
    progress: SearchProgress | None = None,
) -> Allocated:
    """Find which node should serve which stage by a surrogate that knows transfers and speeds, but no routes.

    It is fast, also for thousands of nodes; `plan` starts from its result. The surrogate is the sum of the slowest
    transfer within a stage, a tour over the stages, and compute times (`docs/allocator.md`).

    Args:
        cluster: the nodes and links.
        sizes: number of nodes of each stage, stage 0 first; they add up to the nodes. Stages after stage 0 come in the
            order of the tour, so their sizes may change order.
        sources: the nodes of stage 0; None: any.
        max_replica_transfer_s: no message between two nodes of a stage takes longer, in seconds; None: any.
        time_limit_s: seconds. None: unlimited with `work_limit`, else 0.2.
        work_limit: changes tried; with the same limit and seed, and no time limit, the same result on any machine.
        threads: worker threads, from 1 to 1024.
        seed: of all random choices; at least 0.
        progress: called during the search as by `plan`, with scores in place of iteration times.

    Returns:
        The best allocation found: `best.stages` has the nodes of each stage, `lower_bound_s` a bound on all scores.

    Raises:
        skippipe.errors.InputError: an argument that cannot be used.
        skippipe.errors.ImpossibleError: proved: no allocation keeps `max_replica_transfer_s`.
        skippipe.errors.NoPlanError: none was found that does.
        KeyboardInterrupt: interrupted.

    Example:
        >>> import numpy as np
        >>> import skippipe
        >>> far = np.array([[0.0, 1.0, 0.1, 1.0], [1.0, 0.0, 1.0, 0.1], [0.1, 1.0, 0.0, 1.0], [1.0, 0.1, 1.0, 0.0]])
        >>> cluster = skippipe.Cluster(["a", "b", "c", "d"], [0.1] * 4, [0.2] * 4, [0.05] * 4, [4] * 4, transfer_s=far)
        >>> found = skippipe.allocate(cluster, [2, 2], max_replica_transfer_s=0.5)
        >>> sorted(sorted(stage) for stage in found.best.stages)
        [[0, 2], [1, 3]]

    """
    return core.allocate(
        cluster,
        list(sizes),
        sources=None if sources is None else list(sources),
        max_replica_transfer_s=max_replica_transfer_s,
        time_limit_s=ALLOCATE_LIMIT_S if time_limit_s is None and work_limit is None else time_limit_s,
        work_limit=work_limit,
        threads=threads,
        seed=seed,
        progress=progress,
    )


def score_allocation(cluster: Cluster, stages: Iterable[Iterable[SupportsIndex]]) -> Scored:
    """Score an allocation by the surrogate of `allocate`.

    Args:
        cluster: the nodes and links.
        stages: the nodes of each stage, stage 0 first; every node serves one.

    Returns:
        The score and its parts in seconds, with the stages after stage 0 in the order of the tour.

    Raises:
        skippipe.errors.InputError: an argument that cannot be used.

    """
    return core.score_allocation(cluster, [list(members) for members in stages])


def explain(plan: Plan) -> Explanation:
    """Explain where the time of an iteration goes, the order of every node kept.

    Args:
        plan: which is simulated in its own order.

    Returns:
        Slack and waiting times of every task, and the critical path; times in seconds.

    Raises:
        skippipe.errors.DeadlockError: tasks wait for each other in a cycle.

    """
    return core.explain(plan)


def upgrades(explanation: Explanation) -> list[Upgrade]:
    """Rank the nodes and links whose doubled speed would shorten the iteration.

    Args:
        explanation: of a plan, from `explain`.

    Returns:
        The upgrades, best first, each with the seconds of the iteration that it leads to; routes stay as they are.

    """
    return core.upgrades(explanation)


def preset_cluster(name: str, /, *, stages: int | None = None, **settings: Any) -> Cluster:
    """Build a preset: `geo20`, `five_clusters`, `single_cluster`, `local4` or `synthetic`.

    Args:
        name: of the preset; README describes them.
        stages: number of stages that all-reduce the gradients which the preset states; None: as many as the preset is
            made for.
        settings: replace those of the preset, such as `nodes=12` or `node={"memory": 4}`: the keys of the group
            `cluster` (`docs/commands.md`).

    Returns:
        The cluster.

    Raises:
        skippipe.errors.InputError: an unknown name, or a setting that cannot be used.

    Example:
        >>> import skippipe
        >>> len(skippipe.preset_cluster("geo20"))
        20
        >>> skippipe.preset_cluster("synthetic", nodes=3, regions=2, seed=1).names
        ['region0-0', 'region1-0', 'region0-1']

    """
    from skippipe.presets.named import named_cluster  # noqa: PLC0415 - what reads settings is loaded when needed

    return named_cluster(name, stages, settings)
