"""The arms of a study: what each one is, how much there is to do, and which of them comes next."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from skippipe.config import AllocateConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError
from skippipe.planning import microbatches
from skippipe.study.config import ArmConfig
from skippipe.study.quoting import quoted
from skippipe.study.records import Entry, Key
from skippipe.train.config import TrainConfig, TrainJob
from skippipe.train.resolve.layout import resolve_layout

DECISIVE = ("plan", "cluster", "model")
"""Settings that decide about what is learnt, as a whole."""
DEFAULTS: dict[str, Any] = {
    "allocate": AllocateConfig(),
    "schedule": ScheduleConfig(),
    "planner": PlannerConfig(),
    "train": TrainConfig(),
}
"""Groups that do so as far as they differ from these: a setting that is new one day changes no hash of before."""
DECISIVE_DATA = ("sequence", "validation_blocks")
INDIFFERENT_TRAIN = ("validate_every", "validate_training")

Kind = Literal["train", "evaluate"]
Compose = Callable[[Sequence[str]], TrainJob]
"""Makes settings of the overrides of a command line of `skippipe train`."""


@dataclass(frozen=True)
class Arm:
    """One training of a study."""

    experiment: str
    seed: int
    job: TrainJob
    tokens: int
    """of the whole training"""
    settings: str
    """hash of everything that decides about what is learnt, but the text"""

    @property
    def key(self) -> Key:
        """By which its record is found."""
        return Key(self.experiment, self.seed)

    @property
    def folder(self) -> Path:
        """Of its run, within that of the study."""
        return Path(self.experiment, f"seed{self.seed}")


class Step(NamedTuple):
    """What one process does for an arm."""

    arm: Arm
    kind: Kind


def compose_arms(asked: Sequence[ArmConfig], prepared: str, overrides: Sequence[str], compose: Compose) -> list[Arm]:
    """Settle what the arms are, in their order.

    Args:
        asked: which ones.
        prepared: the folder of the text; nothing is read.
        overrides: more settings of all of them.
        compose: makes settings of a command line.

    Raises:
        InputError: settings that cannot be used, or an arm that is listed twice; the message names it.

    """
    arms: list[Arm] = []
    text = f"data.prepared={quoted(prepared)}"
    for number, config in enumerate(asked):
        if config in asked[:number]:
            raise InputError(f"arms[{number}] is {config.experiment}, seed {config.seed}, which is listed before")
        try:
            job = compose([f"experiment={config.experiment}", f"train.seed={config.seed}", text, *overrides])
            arms.append(Arm(config.experiment, config.seed, job, tokens_of(job), settings_sha256(job)))
        except InputError as error:
            raise InputError(f"arms[{number}], {config.experiment}: {error}") from None
    return arms


def tokens_of(job: TrainJob) -> int:
    """Tokens of a whole training; raises `InputError` where it cannot be planned as it is set."""
    layout = resolve_layout(job)
    if layout.plan is not None:
        count = len(layout.plan.microbatches)
    else:
        count = sum(microbatches(job.schedule.microbatches_per_source, len(layout.stages[0])))
    return job.train.iterations * count * job.train.microbatch_size * job.data.sequence


def settings_sha256(job: TrainJob) -> str:
    """Hash of what decides about what is learnt: runs of the same hash and text are the same up to rounding."""
    return plain_settings_sha256(dataclasses.asdict(job))


def plain_settings_sha256(job: Mapping[str, Any]) -> str:
    """The same of settings as plain values, such as a run's folder keeps them; raises `KeyError` where some lack."""
    decisive = {group: job[group] for group in DECISIVE}
    for group, defaults in DEFAULTS.items():
        usual = dataclasses.asdict(defaults)
        decisive[group] = {key: value for key, value in job[group].items() if key not in usual or value != usual[key]}
    for key in INDIFFERENT_TRAIN:
        decisive["train"].pop(key, None)
    decisive["data"] = {key: job["data"][key] for key in DECISIVE_DATA}
    decisive["autocast"] = job["runtime"]["autocast"]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def next_step(
    arms: Sequence[Arm],
    records: Mapping[Key, Entry],
    begun: Collection[tuple[Key, Kind]],
    *,
    here: Collection[Key] = (),
    omit: Sequence[str] = (),
) -> Step | None:
    """Choose what is done next: the first thing that is open and was not begun before in this session.

    Args:
        arms: in the order in which they are wanted.
        records: what is known of them.
        begun: what was begun in this session, whatever came of it.
        here: arms whose runs have come to their end on this machine; others cannot be evaluated here.
        omit: what is evaluated.

    """
    for arm in arms:
        kind = _open(records.get(arm.key), omit if arm.key in here else ())
        if kind is not None and (arm.key, kind) not in begun:
            return Step(arm, kind)
    return None


def _open(entry: Entry | None, omit: Sequence[str]) -> Kind | None:
    if entry is None or not entry.finished:
        return "train"
    return "evaluate" if set(omit) - {row.word for row in entry.evaluation} else None
