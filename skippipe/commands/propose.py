"""`skippipe propose`."""

import dataclasses
import json
from collections.abc import Sequence

from skippipe._scheduler import Plan
from skippipe.commands.planned_run import allocating_settings, plan_run
from skippipe.config import PhaseConfig, PhasesConfig, PlanJob, ProposeJob
from skippipe.console.output import Console
from skippipe.console.progress import planning_progress
from skippipe.context import Context
from skippipe.errors import unexpected
from skippipe.files import check_writable, write_text
from skippipe.phases import PhaseSummary
from skippipe.planning import make_plan, planning_job
from skippipe.proposal.costs import load_costs
from skippipe.proposal.proposal import propose as choose
from skippipe.proposal.text import document, proposal_lines, show_candidates
from skippipe.proposal.timing import fastest, ways
from skippipe.workload import microbatch_tokens, workload_of


def propose(job: ProposeJob, context: Context) -> float:
    """Propose the phases of a run; returns the seconds to the full pipeline's loss by the last proposal."""
    output = context.output(job.output)
    if output is not None:
        check_writable(output)
    costs = load_costs(job.costs)
    planner = _Planner(job)
    depth = job.depth or job.allocate.decoder_layers or workload_of(planner.full.cluster).layers
    if depth is None:
        raise unexpected("depth", None, "the layers of the model, which the cluster does not state")
    regimes = costs.regimes_of(depth, job.tokens)
    proposals = []
    for regime in regimes:
        timings = [
            (recipe, fastest(ways(recipe, planner.job(depth), depth, planner.full, planner.plan)))
            for recipe in regime.recipes
        ]
        proposals.append(choose(regime, timings, costs.seeds_differ_by))
    console = Console()
    tokens = microbatch_tokens(planner.full)
    here = None if tokens is None else tokens * len(planner.full.microbatches)
    for proposal in proposals:
        console.write_line(f"{proposal.regime.name}:", style="bold")
        show_candidates(console, proposal)
        for line in proposal_lines(proposal, costs, here):
            console.write_line(line)
        console.write_line()
    counted = "with" if sum(planner.full.cluster.gradient_bytes) else "without"
    console.write_line(f"Times are predicted, {counted} all-reduce and changes of phases (cluster.gradient_bytes).")
    console.write_line(f"Losses: {costs.source}.")
    if output is not None:
        write_text(output, json.dumps(document(proposals, costs), indent=1) + "\n")
        console.write_line(f"proposals written to {context.shown(output)}")
    chosen = proposals[-1].chosen
    return proposals[-1].full.run_s or 0.0 if chosen is None else chosen.run_s or 0.0


class _Planner:
    """Plans runs of phases, each on its own best allocation; the same question is answered once."""

    def __init__(self, job: ProposeJob) -> None:
        self._job = job
        self._made: dict[str, Plan] = {}
        self._runs: dict[str, Sequence[PhaseSummary]] = {}
        self.full = self._plan_allocated(self.job(None, PhasesConfig([PhaseConfig(skip_ratio=0.0)])))
        """of the full pipeline"""

    def job(self, depth: int | None, phases: PhasesConfig | None = None) -> PlanJob:
        """What is planned, with these phases."""
        job = self._job
        allocate = job.allocate
        if depth is not None and allocate.stages is None and depth >= len(self.full.stages):
            allocate = dataclasses.replace(allocate, decoder_layers=depth)
        return PlanJob(
            cluster=job.cluster,
            allocate=allocate,
            schedule=job.schedule,
            phases=phases or PhasesConfig(),
            planner=job.planner,
        )

    def plan(self, job: PlanJob, copy: bool) -> Sequence[PhaseSummary]:  # noqa: FBT001 - as `PlanRun`
        """Figures of the phases of a run."""
        key = repr((job.schedule, job.phases, copy))
        if key not in self._runs:
            self._runs[key] = plan_run(job, self._plan_allocated(job), copy=copy).summaries
        return self._runs[key]

    def _plan_allocated(self, job: PlanJob) -> Plan:
        """The plan for which the allocation is searched that the phases keep."""
        schedule, planner = allocating_settings(job)
        key = repr((job.allocate, schedule, planner))
        if key not in self._made:
            question = planning_job(job.cluster, job.allocate, schedule)
            with planning_progress(schedule.strategy) as progress:
                self._made[key] = make_plan(question, schedule.strategy, planner, progress)
        return self._made[key]
