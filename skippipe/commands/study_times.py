"""Predicted times of the arms of a study on a cluster."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from skippipe.allocation import choose_sizes, even_shares
from skippipe.commands.planned_run import allocating_settings, plan_run
from skippipe.config import ClusterConfig, PlanJob
from skippipe.console.progress import planning_progress
from skippipe.files import write_text
from skippipe.model.settings import resolved_settings
from skippipe.phases import scaled_cluster
from skippipe.planning import make_plan, planning_job
from skippipe.presets import configured_cluster
from skippipe.study.arms import Arm
from skippipe.study.time_to_loss import RunTimes
from skippipe.train.resolve.layout import resolve_layout


def predict_times(arms: Sequence[Arm], baseline: str | None, job: PlanJob) -> list[RunTimes]:
    """Predict the times of every experiment, the baseline's also with straight pipelines.

    All have the microbatches of the arms, over the sources of the cluster. Node times hold for a stage of the baseline:
    those of an arm whose stages have other numbers of layers are scaled.

    Args:
        arms: of the study.
        baseline: its experiment; None: no arm is scaled.
        job: cluster, allocation and limits of the plans.

    """
    by_name = {arm.experiment: arm for arm in reversed(arms)}
    first = {name: by_name[name] for name in dict.fromkeys(arm.experiment for arm in arms)}
    reference = None if baseline is None else first.get(baseline)
    straight = [] if reference is None else [_times(reference, job, 1.0, "full")]
    return straight + [_times(arm, job, _fraction(arm, reference), None) for arm in first.values()]


def _layers_per_stage(arm: Arm) -> float | None:
    """None: unknown before the model is read."""
    layers = resolved_settings(arm.job.model).get("num_hidden_layers")
    return None if layers is None else layers / len(resolve_layout(arm.job).stages)


def _fraction(arm: Arm, reference: Arm | None) -> float:
    """Layers of its stages as a fraction of those of the baseline; 1 where either is unknown."""
    ours, theirs = _layers_per_stage(arm), None if reference is None else _layers_per_stage(reference)
    return 1.0 if ours is None or theirs is None else ours / theirs


def _times(arm: Arm, job: PlanJob, fraction: float, strategy: str | None) -> RunTimes:
    """Times of an arm, by its own strategy or another."""
    stages = len(resolve_layout(arm.job).stages)
    with tempfile.TemporaryDirectory() as folder:
        asked = _of_arm(arm, job, stages, strategy)
        if fraction != 1.0:
            scaled = _scaled(job.cluster, stages, fraction, Path(folder) / "cluster.json")
            asked = dataclasses.replace(asked, cluster=scaled)
        schedule, planner = allocating_settings(asked)
        with planning_progress(arm.experiment) as progress:
            question = planning_job(asked.cluster, asked.allocate, schedule)
            made = make_plan(question, schedule.strategy, planner, progress)
        summaries = plan_run(asked, made, copy=arm.job.train.new_layers == "copy").summaries
    return RunTimes(
        experiment=arm.experiment,
        iterations=arm.job.train.iterations,
        shares=[summary.share for summary in summaries],
        iteration_s=[summary.iteration_s or 0.0 for summary in summaries],
        changes_s=[summary.change_s or 0.0 for summary in summaries],
        how="" if strategy is None else "straight pipelines",
    )


def _of_arm(arm: Arm, job: PlanJob, stages: int, strategy: str | None) -> PlanJob:
    """The same cluster with schedule, phases and microbatches of an arm, and the same sizes of stages for all arms."""
    per_iteration = arm.job.train.microbatch_size * arm.job.data.sequence * arm.job.train.iterations
    preset = None if job.cluster.file is not None else job.cluster.stage_sizes
    nodes = len(configured_cluster(job.cluster))
    sizes = choose_sizes(job.allocate.sizes, nodes, stages, preset, job.allocate.sources)
    schedule = dataclasses.replace(
        arm.job.schedule,
        strategy=strategy or arm.job.schedule.strategy,
        stages=stages,
        microbatches_per_source=even_shares(arm.tokens // per_iteration, sizes[0]),
    )
    allocate = dataclasses.replace(job.allocate, sizes=sizes)
    return dataclasses.replace(job, allocate=allocate, schedule=schedule, phases=arm.job.phases)


def _scaled(machines: ClusterConfig, stages: int, fraction: float, path: Path) -> ClusterConfig:
    """The cluster as a file, with node times and gradients for a fraction of the layers of each stage."""
    cluster = configured_cluster(machines, stages)
    scaled = scaled_cluster(cluster, [fraction] * len(cluster), [fraction] * len(cluster.gradient_bytes))
    write_text(path, scaled.to_json())
    return ClusterConfig(file=str(path))
