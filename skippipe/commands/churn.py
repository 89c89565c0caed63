"""`skippipe churn`."""

import dataclasses
import json

from skippipe.churn.simulation import Costs, Policy, goodput, nodes_down, simulate_churn
from skippipe.churn.text import document, draw_runs, show_runs
from skippipe.churn.timing import Planner, Redundant, Remaining
from skippipe.churn.trace import draw_trace, load_trace
from skippipe.config import ChurnJob, PlannerConfig
from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay
from skippipe.context import Context
from skippipe.errors import unexpected
from skippipe.files import check_writable, write_bytes, write_text
from skippipe.packages import check_installed
from skippipe.plan_file import load_plan
from skippipe.report.format import percent
from skippipe.report.plots import png

POLICIES = {
    "recover": Policy(goes_on=True, admits=False),
    "join": Policy(goes_on=True, admits=True),
    "restart": Policy(goes_on=False, admits=False),
    "redundant": Policy(goes_on=True, admits=True),
}


def churn(job: ChurnJob, context: Context) -> float:
    """Simulate a run whose nodes come and go; returns the fraction of iterations that the first policy loses."""
    output, picture = context.output(job.output), context.output(job.picture)
    for path in (output, picture):
        if path is not None:
            check_writable(path)
    if picture is not None:
        check_installed("picture", ("matplotlib",))
    if not job.policies:
        raise unexpected("policies", "none", f"some of {', '.join(POLICIES)}")
    plan = load_plan(job.plan)
    plan = plan.with_contention("none")  # else only the policies without redundant work would pay for it
    names, horizon_s = plan.cluster.names, job.hours * 3600
    if job.trace is None:
        changes = draw_trace(len(names), job.mean_up_s, job.mean_down_s, horizon_s, job.seed)
    else:
        changes = load_trace(job.trace, names)
    used = {node for nodes in plan.stages for node in nodes}
    changes = [change for change in changes if change.node in used]
    costs = Costs(job.detect_s, job.recover_s, job.restart_s, job.join_s, job.checkpoint_every)
    console = Console()
    with ProgressDisplay(Console(stderr=True), is_open_ended=True) as progress:
        progress.begin("planning")
        planned = Planner(
            plan.strategy,
            PlannerConfig(work_limit=job.work_limit, seed=job.seed),
            lambda count: progress.update(count, f"{count} sets of nodes"),
        )
        remaining, redundant = Remaining(plan, planned), Redundant(plan, planned)
        runs = {}
        for name in job.policies:
            timing = redundant if name == "redundant" else remaining
            if timing(frozenset()) is None:
                raise unexpected("policies", name, "a policy for which all nodes together have a plan")
            runs[name] = simulate_churn(POLICIES[name], changes, timing, costs, horizon_s)
    undisturbed_s = plan.predicted.iteration_s
    away = percent(nodes_down(changes, len(used), horizon_s))
    console.write_line(
        f"{len(used)} nodes, {job.hours:g} hours: {sum(not change.up for change in changes)} losses, "
        f"on average {away} of the nodes are down"
    )
    show_runs(console, runs, undisturbed_s, horizon_s)
    if output is not None:
        text = json.dumps(document(runs, undisturbed_s, horizon_s, dataclasses.asdict(job)), indent=1)
        write_text(output, text + "\n")
        console.write_line(f"results written to {context.shown(output)}")
    if picture is not None:
        write_bytes(picture, png(draw_runs(runs, undisturbed_s, horizon_s)))
        console.write_line(f"picture written to {context.shown(picture)}")
    return 1 - goodput(runs[job.policies[0]], undisturbed_s, horizon_s)
