"""The record of an arm on this machine, from the folder of its run."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import skippipe
from skippipe.config import PhaseConfig
from skippipe.errors import InputError, in_file
from skippipe.evaluate.compare import read_table
from skippipe.evaluate.results import TABLE
from skippipe.evaluate.summary import Row
from skippipe.study.arms import Arm, plain_settings_sha256, skip_changes
from skippipe.study.records import ArmRecord
from skippipe.study.run_history import Point, RunHistory, read_run_history
from skippipe.train.observe.events import read_events
from skippipe.train.observe.run_log import METRICS, SETTINGS

EVALUATION = "evaluation"
"""folder of an arm's evaluation within its run's folder"""
RULES = ("cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump")


def read_arm(arm: Arm, runs: Path, text: str | None, note: str | None = None) -> ArmRecord:
    """Read an arm's record on this machine.

    Args:
        arm: the arm.
        runs: the folder of the study.
        text: hash of the corpus of runs here.
        note: why the latest attempt failed.

    Raises:
        InputError: the folder holds a run with other settings.

    """
    folder = runs / arm.folder
    history = None
    if (folder / METRICS).is_file():
        check_settings(arm, folder)
        lines = (folder / METRICS).read_text("utf-8", errors="replace").splitlines()
        try:
            history = read_run_history(read_events(lines))
        except InputError as error:
            raise in_file(error, folder / METRICS) from None
    if history is None:
        return dataclasses.replace(planned_record(arm), note=note)
    day = dt.datetime.fromtimestamp((folder / METRICS).stat().st_mtime, dt.UTC).date().isoformat()
    entry = started_record(arm, history, text=text, date=day, versions=versions())
    return dataclasses.replace(entry, note=note, evaluation=_evaluation(folder / EVALUATION))


def check_settings(arm: Arm, folder: Path) -> None:
    """Raise `InputError` if the run in a folder has other settings than the arm."""
    path = folder / SETTINGS
    try:
        kept: Any = OmegaConf.to_container(OmegaConf.load(path))
        found = plain_settings_sha256(kept)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(file=path, expected="the settings of a run", found=error) from None
    if found != arm.settings:
        hint = "choose another folder=, or remove it"
        raise InputError(f"holds a run with other settings than {arm.key.title}", file=folder, hint=hint)


def planned_record(arm: Arm) -> ArmRecord:
    """Record of an arm that has not started."""
    schedule, phases = arm.job.schedule, arm.job.phases.list
    first = phases[0].skip_ratio
    return ArmRecord(
        experiment=arm.experiment,
        seed=arm.seed,
        settings=arm.settings,
        tokens=arm.tokens,
        strategy=schedule.strategy,
        skip_ratio=schedule.skip_ratio if first is None else first,
        skip_changes=skip_changes(phases, schedule.skip_ratio, arm.tokens),
        stages_in_use=stages_in_use(phases),
        rules={name: getattr(schedule, name) for name in RULES},
    )


def stages_in_use(phases: Sequence[PhaseConfig]) -> list[str]:
    """Stages in use of every phase, as set; empty if all phases use all stages."""
    texts = [
        f"without {','.join(map(str, phase.absent_stages))}"
        if phase.absent_stages
        else f"all, {phase.layers:.4g} of the layers of each"
        if phase.layers is not None
        else "all"
        if phase.stages is None
        else f"{phase.stages:.4g}"
        for phase in phases
    ]
    return texts if set(texts) != {"all"} else []


def started_record(
    arm: Arm, history: RunHistory, *, text: str | None, date: str, versions: Mapping[str, str]
) -> ArmRecord:
    """What is known of an arm that has begun."""
    plan, summary = history.plan, history.summary
    breakdown = None if summary is None else summary.breakdown
    return dataclasses.replace(
        planned_record(arm),
        skip_ratio=plan.skip_ratio,
        text=text,
        text_tokens=plan.training_tokens,
        model=plan.model,
        parameters=plan.parameters,
        tokens_done=history.tokens,
        finished=history.summary is not None and history.tokens >= arm.tokens,
        seconds=round(history.seconds, 1),
        tokens_per_s=_rounded(history.median("tokens_per_s"), 0),
        mfu=_rounded(history.median("mfu"), 4),
        device=plan.device,
        breakdown={} if breakdown is None else {kind: round(share, 4) for kind, share in breakdown.shares.items()},
        date=date,
        versions=dict(versions),
        curve=[Point(p.tokens, round(p.loss, 5), _rounded(p.training_loss, 5)) for p in history.curve],
    )


def versions() -> dict[str, str]:
    """Versions of the packages that train here."""
    try:
        torch = {"torch": metadata.version("torch")}
    except metadata.PackageNotFoundError:
        torch = {}
    return {"skippipe": skippipe.__version__, **torch}


def _evaluation(folder: Path) -> list[Row]:
    return read_table(folder)[1] if (folder / TABLE).is_file() else []


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
