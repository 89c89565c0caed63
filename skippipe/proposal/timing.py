"""Predicted times of recipes on a cluster, each run in every way that was measured, and in the fastest."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from skippipe._scheduler import Cluster, Plan
from skippipe.allocation import allocation_of
from skippipe.config import PhaseConfig, PhasesConfig, PlanJob
from skippipe.errors import ImpossibleError, NoPlanError
from skippipe.phases import Phase, PhaseSummary, average_iteration_s, reallocate, resolve_phases, scaled_cluster
from skippipe.planning import PlanningJob, make_plan, state_problem
from skippipe.proposal.costs import FULL, Recipe
from skippipe.proposal.proposal import Timing

TOLERANCE = 0.01
"""By how much a phase may leave out more than measured: whole routes and layers round."""

PlanRun = Callable[[PlanJob, bool], Sequence[PhaseSummary]]
"""Plans a run of phases on its own best allocation; says whether layers that join are copies."""


def fastest(ways: Iterator[Timing | None]) -> Timing | None:
    """The way with the least time; None: there is none."""
    return min((way for way in ways if way is not None), key=lambda way: way.iteration_s, default=None)


def ways(recipe: Recipe, job: PlanJob, depth: int, full: Plan, plan_run: PlanRun) -> Iterator[Timing | None]:
    """Time a recipe in every way.

    Args:
        recipe: what was measured.
        job: cluster, allocation, schedule and limits.
        depth: layers of the model.
        full: a plan of the full pipeline.
        plan_run: plans phases.

    Yields:
        None where a phase would leave out more than was measured, or there is no plan.

    """
    if recipe.phases is None:
        assert recipe.depth is not None, "a recipe has phases or a depth"
        yield from _dense(recipe.depth / depth, job, full)
        return
    if recipe.name == FULL:
        straight = dataclasses.replace(job, schedule=dataclasses.replace(job.schedule, strategy="full"))
        yield _of_phases(recipe, recipe.phases, straight, "straight pipelines (schedule.strategy=full)", plan_run)
    yield _of_phases(recipe, recipe.phases, job, "routed", plan_run)
    anew = PhasesConfig([_anew(phase) for phase in recipe.phases.list])
    if anew != recipe.phases:
        yield _of_phases(recipe, anew, job, "all nodes on the stages in use", plan_run)


def _anew(phase: PhaseConfig) -> PhaseConfig:
    return phase if phase.stages is None else dataclasses.replace(phase, allocation="anew")


def _of_phases(recipe: Recipe, phases: PhasesConfig, job: PlanJob, how: str, plan_run: PlanRun) -> Timing | None:
    try:
        summaries = plan_run(dataclasses.replace(job, phases=phases), recipe.new_layers == "copy")
    except (ImpossibleError, NoPlanError):
        return None
    pairs = zip(summaries, recipe.left_out, strict=True)
    if any(summary.left_out > measured + TOLERANCE for summary, measured in pairs):
        return None
    average_s = average_iteration_s(summaries)
    assert average_s is not None, "plans made here predict"
    return Timing(
        how=how,
        settings=(
            f"phases.list={phases_text(phases)}",
            *([f"train.new_layers={recipe.new_layers}"] if recipe.new_layers else []),
            "train.decay=linear",
        ),
        iteration_s=average_s,
        changes_s=sum(summary.change_s or 0.0 for summary in summaries),
        bent_rules=list(dict.fromkeys(rule for summary in summaries for rule in summary.bent_rules)),
    )


def _dense(share: float, job: PlanJob, full: Plan) -> Iterator[Timing | None]:
    """A model of a share of the layers: in as few stages as hold them, or in all stages with fewer layers each.

    Every way has all nodes and the same sources and microbatches. Memory is that of the full model's stages.
    """
    stages = len(full.stages)
    fewest = -int(-share * stages // 1)
    for count in sorted({fewest, stages}):
        fraction = share * stages / count
        cluster = scaled_cluster(full.cluster, [fraction] * len(full.cluster), [fraction] * stages)
        asked = PhaseConfig(skip_ratio=0.0, stages=None if count == stages else float(count), allocation="anew")
        (phase,) = resolve_phases(PhasesConfig([asked]), job.schedule, job.planner, allocation_of(full))
        plan = _dense_plan(reallocate(cluster, phase, job.allocate), cluster)
        if plan is not None:
            yield Timing(f"{count} stages", (), plan.predicted.iteration_s, 0.0)


def _dense_plan(phase: Phase, cluster: Cluster) -> Plan | None:
    problem = state_problem(cluster, phase.allocation, phase.schedule)
    try:
        return make_plan(PlanningJob(problem), phase.schedule.strategy, phase.planner)
    except (ImpossibleError, NoPlanError):
        return None


def phases_text(phases: PhasesConfig) -> str:
    """A list of phases as it is typed: what differs from the defaults."""
    return _text([_set(phase) for phase in phases.list])


def _set(item: Any) -> Any:
    """What a dataclass sets, by name."""
    if isinstance(item, list):
        return [_set(each) for each in item]
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return item
    usual = type(item)()
    return {
        field.name: _set(getattr(item, field.name))
        for field in dataclasses.fields(item)
        if getattr(item, field.name) != getattr(usual, field.name)
    }


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
