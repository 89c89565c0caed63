"""The phases of a run: skip ratio and stages in use as functions of training time. Pure."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from skippipe._scheduler import Cluster, Plan, Problem
from skippipe.allocation import Allocation
from skippipe.config import PhaseConfig, PhasesConfig, ScheduleConfig
from skippipe.errors import InputError, in_group, unexpected
from skippipe.planning import state_problem

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
    absent_stages: tuple[int, ...] = ()
    """stages that no route visits in it"""


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


def resolve_phases(
    config: PhasesConfig, schedule: ScheduleConfig, stages: int, lost: Collection[int] = ()
) -> tuple[Phase, ...]:
    """Resolve the settings of phases for a number of stages.

    Args:
        config: the settings.
        schedule: what phases fall back to.
        stages: number of stages.
        lost: stages without nodes in all phases.

    Raises:
        InputError: shares do not add up, or a phase uses stages that do not exist; the message names the phase.

    """
    present = [stage for stage in range(stages) if stage not in lost]
    phases: list[Phase] = []
    begin = 0.0
    for number, (phase, share) in enumerate(zip(config.list, _shares(config), strict=True)):
        absent = _absent_stages(phase, present, f"phases.list[{number}]")
        phases.append(Phase(begin, share, phase_schedule(phase, schedule), absent))
        begin += share
    return tuple(phases)


def phase_schedule(phase: PhaseConfig, schedule: ScheduleConfig) -> ScheduleConfig:
    """The schedule of a phase."""
    return schedule if phase.skip_ratio is None else dataclasses.replace(schedule, skip_ratio=phase.skip_ratio)


def allocating_phase(config: PhasesConfig) -> int | None:
    """Number of the phase for which the allocation of all phases is searched: the longest one that uses all stages.

    None: every phase leaves out stages. Raises `InputError` if shares do not add up.
    """
    shares = _shares(config)
    complete = [n for n, phase in enumerate(config.list) if phase.stages is None and not phase.absent_stages]
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


def phase_problem(cluster: Cluster, allocation: Allocation, phase: Phase) -> Problem:
    """State the problem of a phase on the allocation that the run keeps."""
    return state_problem(cluster, without_stages(allocation, phase.absent_stages), phase.schedule)


def check_phases(cluster: Cluster, allocation: Allocation, phases: Sequence[Phase]) -> None:
    """Raise `InputError`, naming the phase, where one asks for what the nodes of the cluster cannot do."""
    for number, phase in enumerate(phases):
        try:
            phase_problem(cluster, allocation, phase)
        except InputError as error:
            raise in_group(error, f"phases.list[{number}]") from error


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
