"""The arms of a study: settings, amount of training, and what to run next."""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from skippipe.config import AllocateConfig, PhaseConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError, from_origin, unexpected
from skippipe.overrides import quoted
from skippipe.planning import microbatches
from skippipe.study.config import ArmConfig
from skippipe.study.records import ArmKey, ArmRecord
from skippipe.train.config import TrainConfig, TrainJob
from skippipe.train.resolve.layout import resolve_layout

DECISIVE = ("plan", "cluster", "model")
"""Settings that determine what is learnt, as complete groups."""
DEFAULTS: dict[str, Any] = {
    "allocate": AllocateConfig(),
    "schedule": ScheduleConfig(),
    "planner": PlannerConfig(),
    "train": TrainConfig(),
}
"""Groups of which only differences from the defaults count: a new setting changes no existing hash."""
ADDED: dict[str, dict[str, Any]] = {"cluster": {"processors": None, "contention": "none"}}
"""Settings that complete groups got later, with the values under which hashes are what they were."""
DECISIVE_DATA = ("sequence", "validation_blocks")
INDIFFERENT = {"cluster": ("workload",), "train": ("validate_every", "validate_training")}
"""Settings of decisive groups that do not affect what is learnt."""

StepKind = Literal["train", "evaluate"]
ComposeTraining = Callable[[Sequence[str]], TrainJob]
"""Composes the settings of `skippipe train` from overrides."""


@dataclass(frozen=True)
class Arm:
    """One training of a study."""

    experiment: str
    seed: int
    job: TrainJob
    tokens: int
    """of the complete training"""
    settings: str
    """hash of everything that determines what is learnt, except the corpus"""

    @property
    def key(self) -> ArmKey:
        """Key of its record."""
        return ArmKey(self.experiment, self.seed)

    @property
    def folder(self) -> Path:
        """Folder of its run within the study's."""
        return Path(self.experiment, f"seed{self.seed}")


class StudyStep(NamedTuple):
    """One process for an arm: training or evaluation."""

    arm: Arm
    kind: StepKind


def compose_arms(
    asked: Sequence[ArmConfig], prepared: str, overrides: Sequence[str], compose: ComposeTraining
) -> list[Arm]:
    """Compose the arms, in order.

    Args:
        asked: the arms' experiments and seeds.
        prepared: folder of the corpus; not read.
        overrides: additional settings of all arms.
        compose: composes the settings of a command line.

    Raises:
        InputError: invalid settings, or an arm listed twice; the message names it.

    """
    arms: list[Arm] = []
    text = f"data.prepared={quoted(prepared)}"
    for number, config in enumerate(asked):
        if config in asked[:number]:
            raise unexpected(f"arms[{number}]", f"{config.experiment}, seed {config.seed} again", "different arms")
        try:
            job = compose([f"experiment={config.experiment}", f"train.seed={config.seed}", text, *overrides])
            arms.append(Arm(config.experiment, config.seed, job, tokens_of(job), settings_sha256(job)))
        except InputError as error:
            raise from_origin(error, f"arms[{number}], {config.experiment}") from None
    return arms


def tokens_of(job: TrainJob) -> int:
    """Tokens of a complete training; raises `InputError` if the settings cannot be planned."""
    layout = resolve_layout(job)
    if layout.plan is not None:
        count = len(layout.plan.microbatches)
    else:
        count = sum(microbatches(job.schedule.microbatches_per_source, len(layout.stages[0])))
    return job.train.iterations * count * job.train.microbatch_size * job.data.sequence


def settings_sha256(job: TrainJob) -> str:
    """Hash of what determines what is learnt: runs with equal hash and corpus agree up to rounding."""
    return plain_settings_sha256(dataclasses.asdict(job))


def plain_settings_sha256(job: Mapping[str, Any]) -> str:
    """The same for settings as plain values, as stored in a run's folder; raises `KeyError`."""
    decisive: dict[str, Any] = {group: job[group] for group in DECISIVE}
    for group, defaults in DEFAULTS.items():
        usual = dataclasses.asdict(defaults)
        decisive[group] = {key: value for key, value in job[group].items() if key not in usual or value != usual[key]}
    for group, indifferent in INDIFFERENT.items():
        decisive[group] = {key: value for key, value in decisive[group].items() if key not in indifferent}
    for group, added in ADDED.items():
        kept = decisive[group].items()
        decisive[group] = {key: value for key, value in kept if key not in added or value != added[key]}
    decisive |= _decisive_phases(job["phases"]["list"], job["schedule"]["skip_ratio"], decisive["train"])
    decisive["data"] = {key: job["data"][key] for key in DECISIVE_DATA}
    decisive["autocast"] = job["runtime"]["autocast"]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _decisive_phases(
    phases: Sequence[Mapping[str, Any]], skip_ratio: float, train: Mapping[str, Any]
) -> dict[str, Any]:
    """What the hash covers of phases; where only later skip ratios differ, as in the records made when that was all."""
    usual = dataclasses.asdict(PhaseConfig())
    set_here = [{key: value for key, value in phase.items() if value != usual[key]} for phase in phases]
    if len(set_here) == 1 and not set_here[0]:
        return {}
    first, *later = set_here
    if (
        first.keys() | {key for phase in later for key in phase} <= {"share", "skip_ratio"}
        and "skip_ratio" not in first
    ):
        changes = [
            {"after": after, "skip_ratio": ratio}
            for after, ratio in skip_changes([PhaseConfig(**phase) for phase in set_here], skip_ratio)
        ]
        return {"train": {**train, "skip_changes": changes}}
    return {"phases": set_here}


def skip_changes(
    phases: Sequence[PhaseConfig], skip_ratio: float, tokens: float = math.inf
) -> list[tuple[float, float]]:
    """For every phase but the first: fraction of the run before it, and its skip ratio (null: `skip_ratio`).

    `tokens` is the length of the run, for phases that state theirs.
    """
    begins = itertools.accumulate(phase.share or (phase.tokens or 0.0) / tokens for phase in phases[:-1])
    ratios = (skip_ratio if phase.skip_ratio is None else phase.skip_ratio for phase in phases[1:])
    return list(zip(begins, ratios, strict=True))


def next_step(
    arms: Sequence[Arm],
    records: Mapping[ArmKey, ArmRecord],
    started: Collection[tuple[ArmKey, StepKind]],
    *,
    finished_here: Collection[ArmKey] = (),
    omit: Sequence[str] = (),
) -> StudyStep | None:
    """Choose the next step: the first unfinished one not yet started in this session.

    Args:
        arms: by priority.
        records: of the arms.
        started: steps started in this session, whatever their outcome.
        finished_here: arms trained to the end on this machine; others cannot be evaluated here.
        omit: the omissions to evaluate.

    """
    for arm in arms:
        kind = _unfinished(records.get(arm.key), omit if arm.key in finished_here else ())
        if kind is not None and (arm.key, kind) not in started:
            return StudyStep(arm, kind)
    return None


def _unfinished(entry: ArmRecord | None, omit: Sequence[str]) -> StepKind | None:
    if entry is None or not entry.finished:
        return "train"
    return "evaluate" if set(omit) - {row.omission for row in entry.evaluation} else None
