"""The phases of a run: skip ratio and stages in use as functions of training time. Pure."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from skippipe._scheduler import AllocationScope, Cluster, Plan, Problem
from skippipe.allocation import Allocation, allocation_of, even_shares
from skippipe.config import AllocateConfig, PhaseConfig, PhasesConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError, in_group, unexpected
from skippipe.planning import PlanningJob, allocated, make_plan, microbatches, rules_of, state_problem

ROUNDING = 1e-9
"""Most by which shares that add up to 1 miss it."""


@dataclass(frozen=True)
class Phase:
    """A part of a run that follows one plan."""

    begin: float
    """fraction of the run before it"""
    share: float
    """fraction of the run"""
    schedule: ScheduleConfig
    """what its plan is asked for"""
    allocation: Allocation
    """in which stages that no route visits are absent, and so are their nodes unless it is the phase's own"""
    anew: bool = False
    """whether the allocation is its own"""


@dataclass(frozen=True)
class PhaseSummary:
    """A phase with its plan, in figures; times in seconds."""

    share: float
    """fraction of the run's iterations"""
    stages: int
    """of the model"""
    stages_in_use: list[int]
    skip_ratio: float
    """over the stages in use"""
    left_out: float
    """fraction of (microbatch, decoder layer) executions of the full pipeline that the plan leaves out"""
    iteration_s: float | None
    """predicted; None: the plan's times do not hold for the run"""
    lower_bound_s: float | None


def resolve_phases(config: PhasesConfig, schedule: ScheduleConfig, allocation: Allocation) -> tuple[Phase, ...]:
    """Resolve the settings of phases, all of them on one allocation: those `anew` are still to be reallocated.

    Args:
        config: the settings.
        schedule: what phases fall back to.
        allocation: of nodes to all stages.

    Raises:
        InputError: shares do not add up, or a phase uses stages that do not exist; the message names the phase.

    """
    present = [stage for stage in range(len(allocation.stages)) if stage not in allocation.absent_stages]
    phases: list[Phase] = []
    begin = 0.0
    for number, (phase, share) in enumerate(zip(config.list, _shares(config), strict=True)):
        absent = _absent_stages(phase, present, f"phases.list[{number}]")
        own = without_stages(allocation, absent)
        phases.append(Phase(begin, share, phase_schedule(phase, schedule), own, anew=phase.allocation == "anew"))
        begin += share
    return tuple(phases)


def phase_schedule(phase: PhaseConfig, schedule: ScheduleConfig) -> ScheduleConfig:
    """The schedule of a phase: what it sets takes the place of the run's settings for the same choice."""
    if phase.classes is not None:
        return dataclasses.replace(
            schedule, classes=phase.classes, profile=phase.profile, skip_ratio=ScheduleConfig.skip_ratio
        )
    if phase.skip_ratio is None and phase.profile is None:
        return schedule
    return dataclasses.replace(
        schedule,
        skip_ratio=schedule.skip_ratio if phase.skip_ratio is None else phase.skip_ratio,
        profile=schedule.profile if phase.profile is None else phase.profile,
        classes=None,
    )


def allocating_phase(config: PhasesConfig) -> int | None:
    """Number of the phase for which the run's allocation is searched: the longest that keeps it and uses all stages.

    None: there is no such phase. Raises `InputError` if shares do not add up.
    """
    shares = _shares(config)
    complete = [
        number
        for number, phase in enumerate(config.list)
        if phase.stages is None and not phase.absent_stages and phase.allocation == "kept"
    ]
    return max(complete, key=lambda number: shares[number], default=None)


def _shares(config: PhasesConfig) -> list[float]:
    """Share of every phase; the last one takes the rest."""
    if not config.list:
        raise unexpected("phases.list", "an empty list", "at least one phase")
    *first, last = [phase.share for phase in config.list]
    shares: list[float] = []
    for number, share in enumerate(first):
        rest = 1.0 - sum(shares)
        if share is None or share >= rest - ROUNDING:
            expected = f"a number below {rest:.6g}: a later phase takes the rest"
            raise unexpected(f"phases.list[{number}].share", share, expected)
        shares.append(share)
    rest = 1.0 - sum(shares)
    if last is not None and abs(last - rest) > ROUNDING:
        raise unexpected(
            f"phases.list[{len(shares)}].share", last, f"null or {rest:.6g}: the last phase takes the rest"
        )
    return [*shares, rest]


def _absent_stages(phase: PhaseConfig, present: Sequence[int], key: str) -> tuple[int, ...]:
    """Stages that a phase leaves out, of those `present`."""
    if phase.stages is None:
        later = present[1:]
        for index, stage in enumerate(phase.absent_stages):
            if stage not in later or stage in phase.absent_stages[:index]:
                expected = f"different stages after the first ({', '.join(map(str, later)) or 'there are none'})"
                raise unexpected(f"{key}.absent_stages[{index}]", stage, expected)
        return tuple(sorted(phase.absent_stages))
    if phase.absent_stages:
        raise unexpected(f"{key}.stages", phase.stages, "null, as absent_stages is set")
    if phase.stages < 1:
        return tuple(present[max(1, int(phase.stages * len(present) + 0.5)) :])
    if phase.stages != int(phase.stages) or phase.stages > len(present):
        expected = f"a fraction below 1, or a whole number up to the {len(present)} stages"
        raise unexpected(f"{key}.stages", phase.stages, expected)
    return tuple(present[int(phase.stages) :])


def without_stages(allocation: Allocation, absent: Collection[int]) -> Allocation:
    """The same allocation, without some stages and their nodes."""
    nodes = {node for stage in absent for node in allocation.stages[stage]}
    return dataclasses.replace(
        allocation,
        stages=[[] if stage in absent else served for stage, served in enumerate(allocation.stages)],
        absent_stages=tuple(sorted({*allocation.absent_stages, *absent})),
        absent_nodes=tuple(sorted({*allocation.absent_nodes, *nodes})),
    )


def check_phases(cluster: Cluster, phases: Sequence[Phase]) -> None:
    """Raise `InputError`, naming the phase, where one asks for what the nodes of the cluster cannot do."""
    for number, phase in enumerate(phases):
        try:
            state_problem(cluster, phase.allocation, phase.schedule)
        except InputError as error:
            raise in_phase(error, number) from error


def in_phase(error: InputError, number: int) -> InputError:
    """The same error of a schedule, as one of the phase that sets it."""
    located = in_group(error, f"phases.list[{number}]")
    if error.key is not None:
        located.key = f"phases.list[{number}].{error.key.removeprefix('schedule.')}"
    return located


@contextlib.contextmanager
def errors_of_phase(config: PhasesConfig, number: int | None) -> Iterator[None]:
    """Within: errors in what a phase sets of the schedule name the phase; None: there is none."""
    try:
        yield
    except InputError as error:
        name = re.match(r"schedule\.(\w+)", error.key or "")
        if number is None or name is None or not getattr(config.list[number], name[1], None):
            raise
        raise in_phase(error, number) from error


def reallocate(cluster: Cluster, phase: Phase, allocating: AllocateConfig, planner: PlannerConfig) -> Phase:
    """Give all nodes to the stages in use of a phase that is to have its own allocation; its sources stay.

    Raises:
        NoPlanError: no allocation was found within the limit.

    """
    kept = phase.allocation
    in_use = [stage for stage, nodes in enumerate(kept.stages) if nodes]
    if not phase.anew or len(in_use) == 1:
        return phase
    sources = kept.stages[0]
    counts = microbatches(phase.schedule.microbatches_per_source, len(sources))
    rules, skip_ratio = rules_of(_renumbered(phase.schedule, in_use), counts, range(len(in_use)))
    problem = Problem(
        _with_stages(cluster, in_use),
        microbatches=counts,
        sizes=[len(sources), *even_shares(len(cluster) - len(sources), len(in_use) - 1)],
        skip_ratio=skip_ratio,
        constraints=rules,
        sources=sources,
        max_replica_transfer_s=allocating.max_replica_transfer_s,
        layers=[kept.layers[stage] for stage in in_use] if kept.layers else [],
    )
    if allocating.objective == "simulated":
        scope = AllocationScope(
            sources=False,
            max_replica_transfer_s=allocating.max_replica_transfer_s,
            unused=allocating.unused == "allow",
        )
        found = allocation_of(make_plan(PlanningJob(problem, scope), phase.schedule.strategy, planner))
    else:
        found = allocation_of(allocated(PlanningJob(problem), planner))
    stages: list[list[int]] = [[] for _ in kept.stages]
    for stage, nodes in zip(in_use, found.stages, strict=True):
        stages[stage] = nodes
    stages[0] = sources  # in their order: each has its own number of microbatches
    return dataclasses.replace(
        phase, allocation=dataclasses.replace(kept, stages=stages, absent_nodes=found.absent_nodes)
    )


def _renumbered(schedule: ScheduleConfig, in_use: Sequence[int]) -> ScheduleConfig:
    """The same schedule for a model of the stages in use, which `check_phases` has found to be possible."""
    profile, classes = schedule.profile, schedule.classes
    if profile is not None:
        profile = [profile[stage - 1] for stage in in_use[1:]]
    if classes is not None:
        classes = [dataclasses.replace(one, stages=[in_use.index(stage) for stage in one.stages]) for one in classes]
    return dataclasses.replace(schedule, profile=profile, classes=classes)


def _with_stages(cluster: Cluster, stages: Sequence[int]) -> Cluster:
    """The same cluster for a model of some of its stages."""
    if not len(cluster.gradient_bytes):
        return cluster
    content = json.loads(cluster.to_json())
    content["gradient_bytes"] = [content["gradient_bytes"][stage] for stage in stages]
    return Cluster.from_json(json.dumps(content))


def summarize(phase: Phase, plan: Plan, *, predicts: bool = True) -> PhaseSummary:
    """Describe a phase and its plan in figures; `predicts` says whether the plan's times hold."""
    stages, predicted = len(plan.stages), plan.predicted
    layers = plan.layers or [1] * stages
    executed = sum(layers[stage] for microbatch in plan.microbatches for stage in microbatch.stages)
    return PhaseSummary(
        share=phase.share,
        stages=stages,
        stages_in_use=[stage for stage in range(stages) if stage not in plan.absent_stages],
        skip_ratio=plan.skip_ratio,
        left_out=1.0 - executed / (len(plan.microbatches) * sum(layers)),
        iteration_s=predicted.iteration_s if predicts else None,
        lower_bound_s=predicted.lower_bound_s if predicts else None,
    )


def average_iteration_s(summaries: Sequence[PhaseSummary]) -> float | None:
    """Average iteration time of a run, in seconds; None if that of a phase is unknown."""
    times = [None if phase.iteration_s is None else phase.share * phase.iteration_s for phase in summaries]
    known = [time_s for time_s in times if time_s is not None]
    return sum(known) if len(known) == len(times) else None


def stages_text(numbers: Sequence[int], stages: int) -> str:
    """Name the stages in use: `all 6`, `0-2 of 6`, `0,1,5 of 6`."""
    if len(numbers) == stages:
        return f"all {stages}"
    is_run = list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    shown = f"{numbers[0]}-{numbers[-1]}" if is_run else ",".join(map(str, numbers))
    return f"{shown} of {stages}"
