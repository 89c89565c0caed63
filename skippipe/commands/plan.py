"""`skippipe plan`."""

from pathlib import Path

from skippipe import _scheduler
from skippipe._scheduler import Plan
from skippipe.commands.planned_run import PlannedRun, allocating_settings, plan_run
from skippipe.config import PlanJob, PlannerConfig, ScheduleConfig
from skippipe.console.output import Console
from skippipe.console.progress import planning_progress
from skippipe.context import Context
from skippipe.errors import InputError
from skippipe.files import check_writable
from skippipe.phases import allocating_phase, errors_of_phase
from skippipe.plan_file import save_plan
from skippipe.planning import (
    Outcome,
    PlanningJob,
    compared,
    describe_comparison,
    evaluate_strategy,
    may_gain,
    on_allocation_of,
    outcome,
    plan_request,
    planning_job,
    saving,
    time_limit,
    with_origin,
)
from skippipe.report.format import percent, throughput_text
from skippipe.report.phases import phase_lines
from skippipe.report.stages import bounds_text, stage_0_text
from skippipe.report.terminal import (
    show_comparison,
    show_outcomes,
    show_plan,
    show_savings,
)
from skippipe.rules import bent_rules
from skippipe.workload import skipped_executions, throughput


def plan(job: PlanJob, context: Context) -> float:
    """Plan, print what it gives, write the plan; returns the iteration time in seconds."""
    output = context.output(job.output)
    if output is not None:
        check_writable(output)
    schedule, planner = allocating_settings(job)
    strategy = schedule.strategy
    with errors_of_phase(job.phases, allocating_phase(job.phases)):
        question = planning_job(job.cluster, job.allocate, schedule)
        with planning_progress(strategy) as progress:
            try:
                made = _scheduler.plan(plan_request(question, strategy, planner), progress=progress)
            except InputError as error:
                raise with_origin(error, job.cluster.file, job.allocate.stages) from None
    # Stopped by hand: the best plan so far is shown and written, then the command ends as an interrupted one.
    stopped = made.solver.interrupted
    run = PlannedRun.of_one_plan(made) if stopped else plan_run(job, made, copy=job.new_layers == "copy")
    files = {} if output is None else {phase_file(output, number): plan for number, plan in enumerate(run.plans, 1)}
    for file, plan in files.items():
        save_plan(plan, file)
    others = [] if stopped else _evaluate_others(job, schedule, planner, question, made)
    kind = describe_comparison(question, job.compare_allocation, strategy, planner) if others else None
    console = Console()
    if context.label is None:
        _print_run(console, job, run)
        _print(console, made, others, kind)
        for line in _run_lines(run):
            console.write_line(line)
        limit_s = time_limit(planner, question.scope)
        if limit_s is not None and may_gain(made, planner):
            console.write_line(
                f"The search ended at its default limit of {limit_s:g} s: more time may find a shorter "
                f"iteration (planner.time_limit_s={10 * limit_s:g})."
            )
        for file in files:
            console.write_line(f"plan written to {context.shown(file)}")
    else:
        average = f", {run.iteration_s:.4f} s on average over the phases" if len(run.summaries) > 1 else ""
        console.write_line(f"{context.label} {_in_a_line(made, others, kind)}{average}")
    if stopped:
        raise KeyboardInterrupt
    return run.iteration_s


def _print_run(console: Console, job: PlanJob, run: PlannedRun) -> None:
    """Say of which phase the plan is that is shown."""
    if len(run.plans) > 1:
        number = allocating_phase(job.phases)
        which = "all stages" if number is None else f"phase {number + 1} of {len(run.plans)}"
        console.write_line(f"plan of {which}, for which the allocation was searched:")


def _run_lines(run: PlannedRun) -> list[str]:
    """The phases of the run, and what a node has to hold where they move stages."""
    lines = phase_lines(run.summaries, run.iterations)
    if run.state_bytes is not None:
        megabytes = f"{run.state_bytes / 1e6:,.0f} MB"
        lines.append(f"weights and moments on a node: at most {megabytes}, the stages of all phases and one on its way")
    return lines


def phase_file(output: Path, number: int) -> Path:
    """File of the plan of a phase, from 1: the first one's has the name asked for."""
    return output if number == 1 else output.with_stem(f"{output.stem}_phase{number}")


def _evaluate_others(
    job: PlanJob, schedule: ScheduleConfig, planner: PlannerConfig, question: PlanningJob, made: Plan
) -> list[Outcome]:
    """Plan the other strategies: from the same question with the same limits, or on the allocation of the plan."""
    if job.compare_allocation == "same":
        question = PlanningJob(on_allocation_of(made, schedule))
    outcomes = []
    for name in compared(job.compare, job.schedule.strategy):
        with planning_progress(name) as progress:
            outcomes.append(evaluate_strategy(question, name, planner, progress))
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
    bent = bent_rules(made.constraints, made.absent_stages)
    if bent:
        console.write_line(f"rules bent: {', '.join(bent)}")
    show_outcomes(console, outcomes)
    if kind is not None:
        show_comparison(console, kind)
    show_savings(console, outcomes)
    for note in (bounds_text(made), stage_0_text(made)):
        if note is not None:
            console.write_line(note)
    console.write_line()
    show_plan(console, made)
