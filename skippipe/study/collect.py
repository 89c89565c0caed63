"""What this machine knows of an arm: read from the folder of its run."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import skippipe
from skippipe.errors import InputError, in_file
from skippipe.evaluate.compare import read_table
from skippipe.evaluate.results import TABLE
from skippipe.evaluate.summary import Row
from skippipe.study.arms import Arm, plain_settings_sha256
from skippipe.study.metrics import Point, Progress, read_progress
from skippipe.study.records import Entry
from skippipe.train.observe.events import read_events
from skippipe.train.observe.run_log import METRICS, SETTINGS

EVALUATION = "evaluation"
"""folder of an arm's evaluation, within that of its run"""
RULES = ("cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump")


def read_arm(arm: Arm, runs: Path, text: str | None, note: str | None = None) -> Entry:
    """Read what is known here of an arm.

    Args:
        arm: which one.
        runs: the folder of the study.
        text: hash of the text that runs here are trained on.
        note: why the latest attempt failed.

    Raises:
        InputError: the folder holds a run with other settings.

    """
    folder = runs / arm.folder
    progress = None
    if (folder / METRICS).is_file():
        check_settings(arm, folder)
        lines = (folder / METRICS).read_text("utf-8", errors="replace").splitlines()
        try:
            progress = read_progress(read_events(lines))
        except InputError as error:
            raise in_file(error, str(folder / METRICS)) from None
    if progress is None:
        return dataclasses.replace(planned(arm), note=note)
    day = dt.datetime.fromtimestamp((folder / METRICS).stat().st_mtime, dt.UTC).date().isoformat()
    entry = entry_of(arm, progress, text=text, date=day, versions=versions())
    return dataclasses.replace(entry, note=note, evaluation=_evaluation(folder / EVALUATION))


def check_settings(arm: Arm, folder: Path) -> None:
    """Raise `InputError` where the run in a folder is of other settings than the arm."""
    path = folder / SETTINGS
    try:
        kept: Any = OmegaConf.to_container(OmegaConf.load(path))
        found = plain_settings_sha256(kept)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: the settings of a run are expected: {error!r}") from None
    if found != arm.settings:
        raise InputError(
            f"{folder} holds a run with other settings than {arm.key.title}; another folder= is expected, or remove it"
        )


def planned(arm: Arm) -> Entry:
    """What is known of an arm that has not begun."""
    schedule = arm.job.schedule
    return Entry(
        experiment=arm.experiment,
        seed=arm.seed,
        settings=arm.settings,
        tokens=arm.tokens,
        strategy=schedule.strategy,
        skip_ratio=schedule.skip_ratio,
        skip_changes=[(change.after, change.skip_ratio) for change in arm.job.train.skip_changes],
        rules={name: getattr(schedule, name) for name in RULES},
    )


def entry_of(arm: Arm, progress: Progress, *, text: str | None, date: str, versions: Mapping[str, str]) -> Entry:
    """What is known of an arm that has begun."""
    plan, summary = progress.plan, progress.summary
    breakdown = None if summary is None else summary.breakdown
    return dataclasses.replace(
        planned(arm),
        skip_ratio=plan.skip_ratio,
        text=text,
        text_tokens=plan.training_tokens,
        model=plan.model,
        parameters=plan.parameters,
        tokens_done=progress.tokens,
        finished=progress.summary is not None and progress.tokens >= arm.tokens,
        seconds=round(progress.seconds, 1),
        tokens_per_s=_rounded(progress.median("tokens_per_s"), 0),
        mfu=_rounded(progress.median("mfu"), 4),
        device=plan.device,
        breakdown={} if breakdown is None else {kind: round(share, 4) for kind, share in breakdown.shares.items()},
        date=date,
        versions=dict(versions),
        curve=[Point(p.tokens, round(p.loss, 5), _rounded(p.training_loss, 5)) for p in progress.curve],
    )


def versions() -> dict[str, str]:
    """Which versions train here."""
    try:
        torch = {"torch": metadata.version("torch")}
    except metadata.PackageNotFoundError:
        torch = {}
    return {"skippipe": skippipe.__version__, **torch}


def _evaluation(folder: Path) -> list[Row]:
    return read_table(folder)[1] if (folder / TABLE).is_file() else []


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
