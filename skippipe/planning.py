"""From settings to a plan: put the question together, and have the extension answer it."""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from skippipe import _scheduler
from skippipe._scheduler import Allocated, Cluster, Constraints, Freedom, Plan, Problem
from skippipe.allocation import Allocation, allocate, effort
from skippipe.cluster import load_cluster, preset_spec
from skippipe.config import STRATEGIES, AllocateConfig, ClusterConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import ImpossibleError, InputError, LockupError, NoPlanError, in_file
from skippipe.workload import Throughput, throughput

Progress = Callable[[float, float, float, int], None]
"""Called while planning with seconds gone by, best iteration so far, lower bound (both seconds), and work done."""

DEFAULT_TIME_LIMIT_S = 1.0
DEFAULT_SEARCH_LIMIT_S = 5.0
"""Where the allocation is searched too."""
ALLOCATING_WORK = 500_000
"""Of a planner, of which an allocation gets its share, where it has to come out the same wherever it is made."""
SMALL_GAP = 0.02
"""To the bound over all allocations: no more is said of what a longer search may gain."""
RANDOM_SEEDS = 20
JOINT = ("full-routed", "skippipe")
"""Strategies that search routes and order as well as an allocation, so that more time may always gain."""


@dataclass(frozen=True)
class Instance:
    """A question for the planner, and the parts of it that reports need."""

    cluster: Cluster
    allocation: Allocation
    problem: Problem
    freedom: Freedom | None = None
    """what the planner may change of the allocation; None: nothing"""


@dataclass(frozen=True)
class Outcome:
    """What a strategy reached on an instance; times in seconds, None where there is none."""

    strategy: str
    iteration_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    note: str = ""
    throughput: Throughput = field(default_factory=Throughput)
    """work per second: the microbatches of strategies may differ"""


def prepare(
    machines: ClusterConfig,
    allocating: AllocateConfig,
    schedule: ScheduleConfig,
    planner: PlannerConfig | None = None,
) -> Instance:
    """Resolve the cluster, allocate its nodes by the surrogate, and state the problem.

    `planner` says how long to search for an allocation; None: for a fixed amount of work.

    Raises:
        InputError: settings or files that cannot be used, or a problem that has no plan.
        NoPlanError: no allocation was found within the limit.

    """
    check_freedom(allocating, schedule)
    planner = PlannerConfig(work_limit=ALLOCATING_WORK) if planner is None else planner
    if machines.file is not None:
        cluster = load_cluster(machines.file)
        allocation = allocate(allocating, cluster, schedule.stages, None, planner)
    else:
        parts = preset_spec(machines)
        cluster = parts.cluster(machines)
        allocation = allocate(allocating, cluster, schedule.stages, machines.stage_sizes, planner)
        if machines.gradient_bytes > 0:
            cluster = parts.cluster(machines, [machines.gradient_bytes] * len(allocation.stages))
    try:
        problem = state_problem(cluster, allocation, schedule)
    except InputError as error:
        raise with_origin(error, machines.file, allocating.stages) from None
    return Instance(cluster, allocation, problem, freedom_of(allocating, allocation))


def check_freedom(allocating: AllocateConfig, schedule: ScheduleConfig) -> None:
    """Raise `InputError` where layers are to be chosen, and other settings leave nobody or nothing to choose them."""
    if allocating.layers != "auto":
        return
    if allocating.objective != "simulated":
        raise InputError(
            f"allocate.layers is auto, allocate.objective is {allocating.objective}, simulated is expected"
        )
    if isinstance(schedule.microbatches_per_source, list):
        raise InputError(
            f"allocate.layers is auto, schedule.microbatches_per_source is {schedule.microbatches_per_source}, "
            "one number is expected: the microbatches of all sources together are dealt anew"
        )


def freedom_of(allocating: AllocateConfig, allocation: Allocation) -> Freedom | None:
    """What the planner may change of an allocation; None where it is given, or to be the surrogate's."""
    if allocation.found is None or allocating.objective != "simulated":
        return None
    choosing = allocating.layers == "auto"
    return Freedom(
        sizes=choosing and allocating.sizes is None,
        layers=sum(allocation.layers) if choosing else 0,
        sources=allocating.sources is None,
        max_replica_transfer_s=allocating.max_replica_transfer_s,
        unused=allocating.unused == "allow",
    )


def with_origin(error: InputError, cluster_file: str | None, stages_file: str | None) -> InputError:
    """Say in which file or setting the key stands that a problem's error names."""
    text = str(error)
    if stages_file is not None and text.startswith(("stages", "absent_", "layers")):
        return in_file(error, stages_file)
    if cluster_file is not None and text.startswith("cluster"):
        return in_file(error, cluster_file)
    return type(error)(f"schedule.{text}") if text.startswith("skip_ratio") else error


def state_problem(cluster: Cluster, allocation: Allocation, schedule: ScheduleConfig) -> Problem:
    """State the problem for a given allocation."""
    return Problem(
        cluster,
        allocation.stages,
        microbatches(schedule.microbatches_per_source, len(allocation.stages[0]) if allocation.stages else 0),
        skip_ratio=schedule.skip_ratio,
        constraints=constraints(schedule),
        absent_stages=allocation.absent_stages,
        layers=allocation.layers,
        absent_nodes=allocation.absent_nodes,
    )


def microbatches(setting: object, sources: int) -> list[int]:
    """Microbatches of each source, from one number for all or a list with one for each."""
    key = "schedule.microbatches_per_source"
    if not sources:
        return []  # an allocation that the problem refuses, with the better message
    counts: list[Any] = setting if isinstance(setting, list) else [setting] * sources
    for i, count in enumerate(counts):
        if type(count) is not int or not 0 <= count < 2**31:
            name = f"{key}[{i}]" if isinstance(setting, list) else key
            raise InputError(f"{name} is {count!r}, an integer of at least 0 is expected")
    if len(counts) != sources:
        raise InputError(f"{key} is {counts}, one number or a list of {sources}, one for each source, is expected")
    if not sum(counts):
        raise InputError(f"{key} is {setting}, at least one microbatch is expected")
    return counts


def constraints(schedule: ScheduleConfig) -> Constraints:
    """Rules of the problem, as the extension takes them."""
    return Constraints(
        cc1=schedule.cc1,
        cc2=schedule.cc2,
        cc3=schedule.cc3,
        tc1=schedule.tc1,
        tc2=schedule.tc2,
        max_swaps=schedule.max_swaps,
        waves=schedule.waves,
        max_stage_jump=schedule.max_stage_jump,
    )


def make_plan(
    problem: Problem,
    strategy: str,
    planner: PlannerConfig,
    progress: Progress | None = None,
    freedom: Freedom | None = None,
) -> Plan:
    """Plan with one strategy; with `freedom` for the best allocation found, else for the problem's.

    Raises:
        KeyboardInterrupt: somebody did not want to wait; `plan_until_stopped` keeps what was found.
        ImpossibleError: proved that no plan can hold the rules.
        NoPlanError: none was found within the limit.
        LockupError: the dispatch rule locks up.

    """
    plan = plan_until_stopped(problem, strategy, planner, progress, freedom)
    if is_interrupted(plan):
        raise KeyboardInterrupt
    return plan


def is_interrupted(plan: Plan) -> bool:
    """Whether the search for this plan was ended by hand."""
    return bool(json.loads(plan.solver).get("interrupted", False))


def plan_until_stopped(
    problem: Problem,
    strategy: str,
    planner: PlannerConfig,
    progress: Progress | None = None,
    freedom: Freedom | None = None,
) -> Plan:
    """Plan with one strategy as `make_plan` does; an interrupt ends the search with the best plan so far.

    With `freedom` the plan may be for another allocation than the problem's.
    """
    return _scheduler.plan(
        problem,
        strategy,
        method=planner.method,
        suboptimality=planner.suboptimality,
        time_limit_s=time_limit(planner, freedom),
        work_limit=planner.work_limit,
        threads=planner.threads,
        seed=planner.seed,
        progress=progress,
        freedom=freedom,
    )


def with_surrogate(plan: Plan, found: Allocated) -> Plan:
    """The same plan; its `solver` tells where the search for an allocation began."""
    best, other = found.best, found.runner_up
    told = {
        "stages": best.stages,
        "score_s": best.score_s,
        "replica_s": best.replica_s,
        "tour_s": best.tour_s,
        "compute_s": best.compute_s,
        "lower_bound_s": found.lower_bound_s,
        "optimal": found.optimal,
        "runner_up": None if other is None else {"stages": other.stages, "score_s": other.score_s},
    }
    return plan.with_solver_entry("surrogate", json.dumps(told))


def after_allocating(planner: PlannerConfig, instance: Instance) -> PlannerConfig:
    """Take what the surrogate had of the planner's seconds from them; its work comes beside the planner's."""
    limit = time_limit(planner, instance.freedom)
    used, _ = effort(planner)
    if instance.allocation.found is None or limit is None or used is None:
        return planner
    return dataclasses.replace(planner, time_limit_s=limit - used)


def time_limit(planner: PlannerConfig, freedom: Freedom | None = None) -> float | None:
    """Seconds to search for; none by default where the work is limited, as a clock would make the result vary.

    Where `freedom` lets the search choose the allocation too, it has more of them by default.
    """
    if planner.time_limit_s is None and planner.work_limit is None:
        return DEFAULT_TIME_LIMIT_S if freedom is None else DEFAULT_SEARCH_LIMIT_S
    return planner.time_limit_s


def may_gain(plan: Plan, planner: PlannerConfig) -> bool:
    """Whether a search that nobody limited ended unproved, far from its bound or while plans got better."""
    solver = json.loads(plan.solver)
    if planner.time_limit_s is not None or planner.work_limit is not None or plan.strategy not in JOINT:
        return False
    bound_s = solver.get("allocation", {}).get("lower_bound_s", plan.predicted.lower_bound_s)
    events = [event for event in solver.get("events", []) if event[2] is not None]
    better = [after[0] for before, after in itertools.pairwise(events) if after[2] < before[2]]
    is_far = plan.predicted.iteration_s > (1 + SMALL_GAP) * bound_s
    is_improving = bool(better) and better[-1] > solver.get("wall_s", 0.0) / 2
    is_proved = plan.predicted.iteration_s <= bound_s * (1 + 1e-9)
    return not is_proved and (is_far or is_improving)


def outcome(plan: Plan) -> Outcome:
    """What a plan reached."""
    predicted = plan.predicted
    return Outcome(
        plan.strategy, predicted.iteration_s, predicted.lower_bound_s, predicted.gap, throughput=throughput(plan)
    )


def evaluate(
    problem: Problem,
    strategy: str,
    planner: PlannerConfig,
    progress: Progress | None = None,
    freedom: Freedom | None = None,
) -> Outcome:
    """Plan with `strategy` as `make_plan` does and say what came of it; to have no plan is an outcome too."""
    try:
        if strategy == "random-skip":
            return _median_of_seeds(problem, planner, progress, freedom)
        return outcome(make_plan(problem, strategy, planner, progress, freedom))
    except ImpossibleError as error:
        return Outcome(strategy, note=f"impossible: {error}")
    except (NoPlanError, LockupError) as error:
        return Outcome(strategy, note=f"none found: {error}")


def _median_of_seeds(
    problem: Problem, planner: PlannerConfig, progress: Progress | None, freedom: Freedom | None
) -> Outcome:
    """Random routes vary: their figure is the median over seeds. The bounds hold for each one's routes, not for it.

    The search for an allocation judges it by other random routes than these.
    """
    if freedom is not None:
        problem = make_plan(problem, "random-skip", planner, progress, freedom).problem()
    seeds = range(planner.seed, planner.seed + RANDOM_SEEDS)
    plans = [make_plan(problem, "random-skip", dataclasses.replace(planner, seed=seed)) for seed in seeds]
    median_s = statistics.median(plan.predicted.iteration_s for plan in plans)
    note = f"median of {RANDOM_SEEDS} seeds"
    return Outcome("random-skip", median_s, note=note, throughput=throughput(plans[0], median_s))


def on_allocation_of(plan: Plan, schedule: ScheduleConfig) -> Problem:
    """State what `schedule` asks for on the allocation, the layers and the microbatches of each source of a plan."""
    counts = [plan.microbatches_per_source.get(source, 0) for source in plan.stages[0]]
    allocation = Allocation(
        plan.stages, tuple(plan.absent_stages), tuple(plan.layers), absent_nodes=tuple(plan.absent_nodes)
    )
    asked = dataclasses.replace(schedule, microbatches_per_source=counts)
    return state_problem(plan.cluster, allocation, asked)


def comparison(instance: Instance, kind: str, strategy: str, planner: PlannerConfig) -> str:
    """Which of the two comparisons figures of several strategies are, in words.

    Args:
        instance: the question.
        kind: "own" or "same", the setting compare_allocation.
        strategy: whose allocation all of them have, with "same".
        planner: the limits that each search has.

    """
    if instance.allocation.found is None:
        return "all strategies on the allocation that was given"
    if instance.freedom is None:
        return "all strategies on the surrogate's allocation"
    if kind == "same":
        return f"all strategies on the allocation that was searched for {strategy}"
    limit_s = time_limit(planner, instance.freedom)
    limits = [
        *([] if limit_s is None else [f"{limit_s:g} s"]),
        *([] if planner.work_limit is None else [f"{planner.work_limit:,} units of work"]),
    ]
    effort_in_words = f"the same effort ({', '.join(limits)})" if limits else "no limit"
    return f"each strategy on its own best allocation, searched with {effort_in_words}"


def compared(asked: Iterable[str], strategy: str) -> list[str]:
    """Strategies to plan beside `strategy`, weakest first; a saving against one baseline never stands alone."""
    wanted = set(asked)
    if wanted & {"full", "full-routed"}:
        wanted |= {"full", "full-routed"}
    return [name for name in STRATEGIES if name in wanted - {strategy}]


def saving(iteration_s: float | None, baseline_s: float | None) -> float | None:
    """Share of the baseline's time that is saved; negative where more is needed."""
    if iteration_s is None or baseline_s is None or baseline_s <= 0:
        return None
    return 1.0 - iteration_s / baseline_s
