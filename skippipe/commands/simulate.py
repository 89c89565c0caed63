"""`skippipe simulate`."""

from skippipe import scheduler
from skippipe.config import SimulateJob
from skippipe.console.output import Console
from skippipe.context import Context
from skippipe.errors import DeadlockError, from_origin
from skippipe.files import check_writable
from skippipe.plan_file import load_plan, save_plan
from skippipe.planning import outcome
from skippipe.report.format import seconds, throughput_text
from skippipe.report.terminal import show_outcomes, show_plan
from skippipe.workload import throughput


def simulate(job: SimulateJob, context: Context) -> float:
    """Simulate a plan, print and write the result; returns the iteration time in seconds."""
    output = context.output(job.output)
    if output is not None:
        check_writable(output)
    planned = load_plan(job.plan)
    try:
        assumed = planned if job.contention is None else planned.with_contention(job.contention)
        simulated = scheduler.simulate(assumed, order=job.order)
    except DeadlockError as error:
        raise from_origin(error, job.plan) from None
    if output is not None:
        save_plan(simulated, output)
    console = Console()
    if context.label is not None:
        done = seconds(simulated.predicted.iteration_s) + throughput_text(throughput(simulated))
        console.write_line(f"{context.label} iteration {done}")
        return simulated.predicted.iteration_s
    show_outcomes(console, [outcome(simulated)])
    console.write_line(f"the plan says {seconds(planned.predicted.iteration_s)}\n")
    show_plan(console, simulated)
    if output is not None:
        console.write_line(f"simulated plan written to {context.shown(output)}")
    return simulated.predicted.iteration_s
