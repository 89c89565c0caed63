"""From settings to a plan: state the question, call the planner, compare strategies."""

import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from skippipe import _scheduler
from skippipe._scheduler import (
    AllocationScope,
    Cluster,
    Constraints,
    Plan,
    PlanRequest,
    Problem,
    is_full,
    is_joint,
    is_random,
)
from skippipe.allocation import Allocation, choose_layers, choose_sizes, given_allocation
from skippipe.config import STRATEGIES, AllocateConfig, ClusterConfig, PlannerConfig, RouteClass, ScheduleConfig
from skippipe.errors import (
    DeadlockError,
    ImpossibleError,
    InputError,
    NoPlanError,
    in_file,
    in_group,
    unexpected,
)
from skippipe.measured import for_planning, layers_by_node
from skippipe.presets import configured_cluster
from skippipe.scheduler import SearchProgress, effective_time_limit_s
from skippipe.workload import Throughput, throughput, workload_of

ALLOCATING_WORK = 500_000
"""Work limit of a planner whose allocation, a share of it, must be the same on every machine."""
SMALL_GAP = 0.02
"""Gap to the bound over all allocations up to which a longer search is not suggested."""
ROUNDING_GAP = 1e-6
"""Gap that rounding to nanoseconds may leave, so that the search ends there of its own accord (docs/planner.md)."""
RATIO_TOLERANCE = 1e-3
"""By how much a stated skip ratio may differ from that of the classes: 0.333 is a third."""
SHARE_TOLERANCE = 0.02
"""By how much the sum of the shares of the classes may differ from 1: 0.33 is a third."""
ROUNDING = 1e-9
RANDOM_SEEDS = 20


@dataclass(frozen=True)
class PlanningJob:
    """A planning question, without strategy and limits."""

    first: Problem
    """cluster, constraints, skip ratio and microbatches; without allocation: the surrogate's comes first"""
    scope: AllocationScope | None = None
    """what the search may change of the first allocation; None: nothing"""


@dataclass(frozen=True)
class Outcome:
    """Result of a strategy; times in seconds, None if there is none."""

    strategy: str
    iteration_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    note: str = ""
    throughput: Throughput = field(default_factory=Throughput)
    """work per second; the number of microbatches may differ between strategies"""


def planning_job(machines: ClusterConfig, allocating: AllocateConfig, schedule: ScheduleConfig) -> PlanningJob:
    """Resolve the cluster and state the question.

    Raises:
        InputError: settings or files that cannot be used.

    """
    check_scope(allocating, schedule)
    cluster = configured_cluster(machines)
    preset = None if machines.file is not None else machines.stage_sizes
    # One entry per stage.
    wanted = schedule.stages or len(allocating.sizes or cluster.gradient_bytes) or None
    allocation = None if allocating.stages is None else given_allocation(allocating, cluster, schedule.stages)
    if allocation is None:
        sizes = choose_sizes(allocating.sizes, len(cluster), wanted, preset, allocating.sources)
    else:
        sizes = [len(stage) for stage in allocation.stages]
    if machines.file is None and machines.gradient_bytes > 0:
        cluster = configured_cluster(machines, len(sizes))
    try:
        return question_for(cluster, sizes, allocation, allocating, schedule)
    except InputError as error:
        raise with_origin(error, machines.file, allocating.stages) from None


def question_for(
    cluster: Cluster,
    sizes: list[int],
    allocation: Allocation | None,
    allocating: AllocateConfig,
    schedule: ScheduleConfig,
) -> PlanningJob:
    """State the question for a cluster.

    Args:
        cluster: the nodes; figures of a measured one become those of the plan's stages.
        sizes: nodes of each stage, to begin with.
        allocation: if it is given.
        allocating: what is searched.
        schedule: strategy and constraints.

    Raises:
        InputError: they do not fit each other.

    """
    cluster = for_planning(
        cluster,
        len(sizes),
        total=allocating.decoder_layers,
        searched=allocating.layers == "auto",
        node_layers=None if allocation is None else layers_by_node(allocation.stages, allocation.layers, cluster),
    )
    if allocation is not None:
        return PlanningJob(state_problem(cluster, allocation, schedule))
    layers = choose_layers(allocating, len(sizes), workload_of(cluster).layers)
    counts = microbatches(schedule.microbatches_per_source, sizes[0])
    rules, skip_ratio = rules_of(schedule, counts, range(len(sizes)))
    first = Problem(
        cluster,
        microbatches=counts,
        sizes=sizes,
        skip_ratio=skip_ratio,
        constraints=rules,
        sources=allocating.sources,
        max_replica_transfer_s=allocating.max_replica_transfer_s,
        layers=layers,
    )
    return PlanningJob(first, scope_of(allocating, layers))


def check_scope(allocating: AllocateConfig, schedule: ScheduleConfig) -> None:
    """Raise `InputError` if layers are to be searched, but other settings rule that out."""
    if allocating.layers != "auto":
        return
    if allocating.objective != "simulated":
        raise unexpected("allocate.objective", allocating.objective, "simulated, as allocate.layers is auto")
    if isinstance(schedule.microbatches_per_source, list):
        raise unexpected(
            "schedule.microbatches_per_source",
            schedule.microbatches_per_source,
            "one number, as allocate.layers is auto: the microbatches of all sources are redistributed",
        )


def scope_of(allocating: AllocateConfig, layers: tuple[int, ...]) -> AllocationScope | None:
    """What the search may change of the surrogate's allocation; None: nothing."""
    if allocating.objective != "simulated":
        return None
    choosing = allocating.layers == "auto"
    return AllocationScope(
        layers=sum(layers) if choosing else 0,
        sources=allocating.sources is None,
        max_replica_transfer_s=allocating.max_replica_transfer_s,
        unused=allocating.unused == "allow",
    )


def with_origin(error: InputError, cluster_file: str | None, stages_file: str | None) -> InputError:
    """Add to an error of a problem the file, or the group of settings, in which its key is."""
    root = re.split(r"[.\[]", error.key or "", maxsplit=1)[0]
    if stages_file is not None and root in {"stages", "absent_stages", "absent_nodes", "layers"}:
        return in_file(error, stages_file)
    if cluster_file is not None and root == "cluster":
        return in_file(error, cluster_file)
    if root == "constraints":  # each of them is a setting of its own
        located = in_group(error, "schedule")
        located.key = f"schedule.{str(error.key).removeprefix('constraints.')}"
        return located
    group = {"skip_ratio": "schedule", "sizes": "allocate", "sources": "allocate", "max_replica_transfer_s": "allocate"}
    return in_group(error, group[root]) if root in group else error


def state_problem(cluster: Cluster, allocation: Allocation, schedule: ScheduleConfig) -> Problem:
    """State the problem for a given allocation."""
    counts = microbatches(schedule.microbatches_per_source, len(allocation.stages[0]) if allocation.stages else 0)
    present = [stage for stage in range(len(allocation.stages)) if stage not in allocation.absent_stages]
    rules, skip_ratio = rules_of(schedule, counts, present)
    return Problem(
        cluster,
        allocation.stages,
        counts,
        skip_ratio=skip_ratio,
        constraints=rules,
        absent_stages=allocation.absent_stages,
        layers=allocation.layers,
        absent_nodes=allocation.absent_nodes,
    )


def microbatches(setting: object, sources: int) -> list[int]:
    """Microbatches of each source, from one number for all or a list with one per source."""
    key = "schedule.microbatches_per_source"
    if not sources:
        return []  # the problem refuses this allocation with a better message
    counts: list[Any] = setting if isinstance(setting, list) else [setting] * sources
    for i, count in enumerate(counts):
        if type(count) is not int or not 0 <= count < 2**31:
            name = f"{key}[{i}]" if isinstance(setting, list) else key
            raise unexpected(name, repr(count), "an integer of at least 0")
    if len(counts) != sources:
        raise unexpected(key, counts, f"one number or a list of {sources}, one per source")
    if not sum(counts):
        raise unexpected(key, setting, "at least one microbatch")
    return counts


def rules_of(schedule: ScheduleConfig, counts: Sequence[int], present: Sequence[int]) -> tuple[Constraints, float]:
    """Constraints and skip ratio, for the microbatches of each source and the stages that are present.

    Raises:
        InputError: classes that are not of as many routes as the microbatches take, or contradict the skip ratio.

    """
    if schedule.classes is None:
        return constraints(schedule), schedule.skip_ratio
    routes = sum(-(-count // schedule.waves) for count in counts)
    classes = class_routes(schedule.classes, routes, present)
    visits = sum(len(stages) * count for stages, count in classes)
    skip_ratio = 1 - visits / (routes * len(present)) if routes and present else schedule.skip_ratio
    if schedule.skip_ratio != ScheduleConfig.skip_ratio and abs(schedule.skip_ratio - skip_ratio) > RATIO_TOLERANCE:
        expected = f"{skip_ratio:.6g}, what schedule.classes leave out, or no such setting"
        raise unexpected("schedule.skip_ratio", schedule.skip_ratio, expected)
    return constraints(schedule, classes), skip_ratio


def class_routes(classes: Sequence[RouteClass], routes: int, present: Sequence[int]) -> list[tuple[list[int], int]]:
    """Stages of each class and how many of so many routes it has; shares become counts by largest remainder."""
    visited = [_class_stages(one, present, f"schedule.classes[{i}]") for i, one in enumerate(classes)]
    for i, one in enumerate(classes):
        if (one.routes is None) == (one.share is None):
            raise unexpected(f"schedule.classes[{i}]", "both or none", "either routes or share")
    if all(one.routes is not None for one in classes):
        return [(stages, one.routes or 0) for stages, one in zip(visited, classes, strict=True)]
    shares = [one.share or 0.0 for one in classes]
    if not all(shares):
        raise unexpected("schedule.classes", "routes and shares", "routes for every class, or shares")
    if abs(sum(shares) - 1) > SHARE_TOLERANCE:
        raise unexpected("schedule.classes", f"shares with a sum of {sum(shares):.6g}", "shares with a sum of 1")
    exact = [share / sum(shares) * routes for share in shares]
    counts = [int(x + ROUNDING) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: routes - sum(counts)]:
        counts[i] += 1
    if not all(counts):
        raise unexpected(
            f"schedule.classes[{counts.index(0)}].share",
            shares[counts.index(0)],
            f"a share that gives the class at least one of the {routes} routes",
        )
    return list(zip(visited, counts, strict=True))


def _class_stages(one: RouteClass, present: Sequence[int], key: str) -> list[int]:
    """The stages that a class visits, of those `present`."""
    if one.depth is None:
        return list(one.stages)
    if one.stages:
        raise unexpected(f"{key}.depth", one.depth, "null, as stages is set")
    return list(present[: max(1, int(one.depth * len(present) + 0.5))])


def constraints(schedule: ScheduleConfig, classes: list[tuple[list[int], int]] | None = None) -> Constraints:
    """Constraints of the problem, as a class of the extension."""
    return Constraints(
        cc1=schedule.cc1,
        cc2=schedule.cc2,
        cc3=schedule.cc3,
        tc1=schedule.tc1,
        tc2=schedule.tc2,
        max_swaps=schedule.max_swaps,
        waves=schedule.waves,
        max_stage_jump=schedule.max_stage_jump,
        profile=None if schedule.profile is None else list(schedule.profile),
        classes=classes,
    )


def plan_request(job: PlanningJob, strategy: str, planner: PlannerConfig) -> PlanRequest:
    """Make the request for one strategy, with the limits of a planner."""
    return PlanRequest(
        job.first,
        strategy,
        scope=job.scope,
        method=planner.method,
        suboptimality=planner.suboptimality,
        time_limit_s=time_limit(planner, job.scope),
        work_limit=planner.work_limit,
        threads=planner.threads,
        seed=planner.seed,
    )


def make_plan(job: PlanningJob, strategy: str, planner: PlannerConfig, progress: SearchProgress | None = None) -> Plan:
    """Plan with one strategy, on the best allocation found within the scope of the job.

    Raises:
        KeyboardInterrupt: the search was interrupted (the extension's `plan` returns the best plan so far).
        ImpossibleError: proved: no plan can satisfy the constraints.
        NoPlanError: none was found within the limit.
        DeadlockError: the dispatch rule deadlocks.

    """
    plan = _scheduler.plan(plan_request(job, strategy, planner), progress=progress)
    if plan.solver.interrupted:
        raise KeyboardInterrupt
    return plan


def allocated(job: PlanningJob, planner: PlannerConfig) -> Problem:
    """The problem with its first allocation: the surrogate's, within its share of the planner's limits.

    Raises:
        InputError: no allocation satisfies the limit on transfers within a stage.
        NoPlanError: none was found that does.

    """
    problem, _ = _scheduler.first_allocation(plan_request(job, STRATEGIES[0], planner))
    return problem


def time_limit(planner: PlannerConfig, scope: AllocationScope | None = None) -> float | None:
    """Time limit in seconds of a search for a plan; None: unlimited."""
    return effective_time_limit_s(planner.time_limit_s, planner.work_limit, scope)


def may_gain(plan: Plan, planner: PlannerConfig) -> bool:
    """Whether a search with the default limit ended without proof, far from its bound or while plans still improved."""
    if planner.time_limit_s is not None or planner.work_limit is not None or not is_joint(plan.strategy):
        return False
    report, iteration_s = plan.solver, plan.predicted.iteration_s
    bound_s = plan.predicted.lower_bound_s if report.allocation is None else report.allocation.lower_bound_s
    found = [(event.elapsed_s, event.upper_s) for event in report.events if event.upper_s is not None]
    better = [elapsed_s for (_, before_s), (elapsed_s, after_s) in itertools.pairwise(found) if after_s < before_s]
    is_far = iteration_s > (1 + SMALL_GAP) * bound_s
    is_improving = bool(better) and better[-1] > (report.wall_s or 0.0) / 2
    is_closed = iteration_s <= bound_s * (1 + ROUNDING_GAP)
    return not is_closed and (is_far or is_improving)


def outcome(plan: Plan) -> Outcome:
    """The result that a plan is."""
    predicted = plan.predicted
    return Outcome(
        plan.strategy, predicted.iteration_s, predicted.lower_bound_s, predicted.gap, throughput=throughput(plan)
    )


def evaluate_strategy(
    job: PlanningJob, strategy: str, planner: PlannerConfig, progress: SearchProgress | None = None
) -> Outcome:
    """Plan with `strategy` as `make_plan` does; having no plan is an outcome too."""
    try:
        if is_random(strategy):
            return _median_of_seeds(job, strategy, planner, progress)
        return outcome(make_plan(job, strategy, planner, progress))
    except ImpossibleError as error:
        return Outcome(strategy, note=f"impossible: {error}")
    except (NoPlanError, DeadlockError) as error:
        return Outcome(strategy, note=f"none found: {error}")


def _median_of_seeds(
    job: PlanningJob, strategy: str, planner: PlannerConfig, progress: SearchProgress | None
) -> Outcome:
    """Random routes vary, so their result is the median over seeds; a bound holds for the routes of one seed only.

    The allocation search uses other random routes than these.
    """
    if job.scope is not None:
        job = PlanningJob(make_plan(job, strategy, planner, progress).problem())
    seeds = range(planner.seed, planner.seed + RANDOM_SEEDS)
    plans = [make_plan(job, strategy, dataclasses.replace(planner, seed=seed)) for seed in seeds]
    median_s = statistics.median(plan.predicted.iteration_s for plan in plans)
    note = f"median of {RANDOM_SEEDS} seeds"
    return Outcome(strategy, median_s, note=note, throughput=throughput(plans[0], median_s))


def on_allocation_of(plan: Plan, schedule: ScheduleConfig) -> Problem:
    """State the problem of `schedule` with allocation, layers and microbatches per source of a plan."""
    problem = plan.problem()
    present = [stage for stage in range(len(problem.stages)) if stage not in problem.absent_stages]
    rules, skip_ratio = rules_of(schedule, problem.microbatches, present)
    return problem.with_rules(rules, skip_ratio=skip_ratio)


def describe_comparison(job: PlanningJob, kind: str, strategy: str, planner: PlannerConfig) -> str:
    """Describe which of the two comparisons of strategies was made.

    Args:
        job: the question.
        kind: "own" or "same", the setting compare_allocation.
        strategy: the one whose allocation all use, with "same".
        planner: limits of each search.

    """
    if job.first.stages:
        return "all strategies on the given allocation"
    if job.scope is None:
        return "all strategies on the surrogate's allocation"
    if kind == "same":
        return f"all strategies on the allocation found for {strategy}"
    limit_s = time_limit(planner, job.scope)
    limits = [
        *([] if limit_s is None else [f"{limit_s:g} s"]),
        *([] if planner.work_limit is None else [f"{planner.work_limit:,} units of work"]),
    ]
    budget = f"the same budget ({', '.join(limits)})" if limits else "no limit"
    return f"each strategy on its own best allocation, searched with {budget}"


def compared(asked: Iterable[str], strategy: str) -> list[str]:
    """Strategies to plan besides `strategy`, weakest first; those that run every stage come together."""
    wanted = set(asked)
    if any(map(is_full, wanted)):
        wanted |= set(filter(is_full, STRATEGIES))
    return [name for name in STRATEGIES if name in wanted - {strategy}]


def saving(iteration_s: float | None, baseline_s: float | None) -> float | None:
    """Fraction of the baseline's time that is saved; negative if `iteration_s` is longer."""
    if iteration_s is None or baseline_s is None or baseline_s <= 0:
        return None
    return 1.0 - iteration_s / baseline_s
