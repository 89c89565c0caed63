"""`skippipe plan`."""

from collections.abc import Sequence
from pathlib import Path

from skippipe import _scheduler
from skippipe._scheduler import Plan
from skippipe.allocation import allocation_of
from skippipe.config import PlanJob, ScheduleConfig
from skippipe.console.output import Console
from skippipe.console.progress import planning_progress
from skippipe.context import Context
from skippipe.errors import InputError
from skippipe.files import check_writable
from skippipe.phases import (
    Phase,
    allocating_phase,
    average_iteration_s,
    check_phases,
    errors_of_phase,
    phase_schedule,
    reallocate,
    resolve_phases,
    summarize,
)
from skippipe.plan_file import save_plan
from skippipe.planning import (
    Outcome,
    PlanningJob,
    compared,
    describe_comparison,
    evaluate_strategy,
    make_plan,
    may_gain,
    on_allocation_of,
    outcome,
    plan_request,
    planning_job,
    saving,
    state_problem,
    time_limit,
    with_origin,
)
from skippipe.report.format import percent, throughput_text
from skippipe.report.phases import phase_lines
from skippipe.report.stages import bounds_text
from skippipe.report.terminal import (
    show_comparison,
    show_outcomes,
    show_plan,
    show_savings,
)
from skippipe.workload import skipped_executions, throughput


def plan(job: PlanJob, context: Context) -> float:
    """Plan, print what it gives, write the plan; returns the iteration time in seconds."""
    output = context.output(job.output)
    if output is not None:
        check_writable(output)
    schedule = _allocating_schedule(job)
    strategy = schedule.strategy
    with errors_of_phase(job.phases, allocating_phase(job.phases)):
        question = planning_job(job.cluster, job.allocate, schedule)
        with planning_progress(strategy) as progress:
            try:
                made = _scheduler.plan(plan_request(question, strategy, job.planner), progress=progress)
            except InputError as error:
                raise with_origin(error, job.cluster.file, job.allocate.stages) from None
    # Stopped by hand: the best plan so far is shown and written, then the command ends as an interrupted one.
    stopped = made.solver.interrupted
    phases = _phases(job, made)
    plans = [made] if stopped else _plan_phases(job, phases, made)
    summaries = [] if stopped else [summarize(phase, plan) for phase, plan in zip(phases, plans, strict=True)]
    files = {} if output is None else {phase_file(output, number): plan for number, plan in enumerate(plans, 1)}
    for file, plan in files.items():
        save_plan(plan, file)
    others = [] if stopped else _evaluate_others(job, schedule, question, made)
    kind = describe_comparison(question, job.compare_allocation, strategy, job.planner) if others else None
    console = Console()
    if context.label is None:
        if len(summaries) > 1:
            number = allocating_phase(job.phases)
            which = "all stages" if number is None else f"phase {number + 1} of {len(summaries)}"
            console.write_line(f"plan of {which}, for which the allocation was searched:")
        _print(console, made, others, kind)
        for line in phase_lines(summaries):
            console.write_line(line)
        limit_s = time_limit(job.planner, question.scope)
        if limit_s is not None and may_gain(made, job.planner):
            console.write_line(
                f"The search ended at its default limit of {limit_s:g} s: more time may find a shorter "
                f"iteration (planner.time_limit_s={10 * limit_s:g})."
            )
        for file in files:
            console.write_line(f"plan written to {context.shown(file)}")
    else:
        average = f", {average_iteration_s(summaries):.4f} s on average over the phases" if len(summaries) > 1 else ""
        console.write_line(f"{context.label} {_in_a_line(made, others, kind)}{average}")
    if stopped:
        raise KeyboardInterrupt
    return average_iteration_s(summaries) or made.predicted.iteration_s


def _allocating_schedule(job: PlanJob) -> ScheduleConfig:
    """The schedule for which the allocation is searched that all phases keep."""
    number = allocating_phase(job.phases)
    return job.schedule if number is None else phase_schedule(job.phases.list[number], job.schedule)


def _phases(job: PlanJob, made: Plan) -> tuple[Phase, ...]:
    """The phases on the allocation of a plan."""
    allocation = allocation_of(made)
    phases = resolve_phases(job.phases, job.schedule, allocation)
    check_phases(made.cluster, phases)
    return phases


def _plan_phases(job: PlanJob, phases: Sequence[Phase], made: Plan) -> list[Plan]:
    """The plan of every phase; `made` is that of the phase for which the allocation was searched."""
    plans = []
    for number, phase in enumerate(phases):
        if number == allocating_phase(job.phases):
            plans.append(made)
            continue
        own = reallocate(made.cluster, phase, job.allocate, job.planner)
        problem = state_problem(made.cluster, own.allocation, phase.schedule)
        with planning_progress(f"phase {number + 1}") as progress:
            plans.append(make_plan(PlanningJob(problem), phase.schedule.strategy, job.planner, progress))
    return plans


def phase_file(output: Path, number: int) -> Path:
    """File of the plan of a phase, from 1: the first one's has the name asked for."""
    return output if number == 1 else output.with_stem(f"{output.stem}_phase{number}")


def _evaluate_others(job: PlanJob, schedule: ScheduleConfig, question: PlanningJob, made: Plan) -> list[Outcome]:
    """Plan the other strategies: from the same question with the same limits, or on the allocation of the plan."""
    if job.compare_allocation == "same":
        question = PlanningJob(on_allocation_of(made, schedule))
    outcomes = []
    for name in compared(job.compare, job.schedule.strategy):
        with planning_progress(name) as progress:
            outcomes.append(evaluate_strategy(question, name, job.planner, progress))
    return outcomes


def _in_a_line(made: Plan, others: list[Outcome], kind: str | None) -> str:
    time_s = made.predicted.iteration_s
    savings = "".join(f", saved {percent(saving(time_s, other.iteration_s))} vs. {other.strategy}" for other in others)
    rate = throughput_text(throughput(made))
    return f"iteration {time_s:.4f} s{rate}{savings}" + ("" if kind is None else f" ({kind})")


def _print(console: Console, made: Plan, others: list[Outcome], kind: str | None) -> None:
    routes = len({microbatch.route for microbatch in made.microbatches})
    skipped = skipped_executions(made)
    executions = "" if skipped is None else f", layer executions skipped {percent(skipped)}"
    console.write_line(
        f"{len(made.cluster)} nodes, {len(made.stages)} stages, {len(made.microbatches)} microbatches "
        f"on {routes} routes, skip ratio {made.skip_ratio:.4g}{executions}\n"
    )
    outcomes = [*others, outcome(made)]
    show_outcomes(console, outcomes)
    if kind is not None:
        show_comparison(console, kind)
    show_savings(console, outcomes)
    bounds = bounds_text(made)
    if bounds is not None:
        console.write_line(bounds)
    console.write_line()
    show_plan(console, made)
