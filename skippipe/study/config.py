"""Settings of `skippipe study`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import ABOVE_0, AT_LEAST_0, Range, setting


@dataclass
class ArmConfig:
    """One training of a study."""

    experiment: str = MISSING
    """experiment, as in `skippipe train experiment=...`"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """train.seed"""


@dataclass
class StudyJob:
    """`skippipe study`: run the unfinished runs of a study on this machine's devices, and update its tables."""

    arms: list[ArmConfig] = field(default_factory=list)
    """the trainings by priority, e.g. [{experiment: llama30m_0, seed: 1}]"""
    baseline: str | None = None
    """experiment to compare the others with, seed by seed; null: none"""
    prepared: str = MISSING
    """folder written by `skippipe data prepare`: data.prepared of all arms"""
    folder: str = "studies"
    """folder of the runs, EXPERIMENT/seedN; existing runs resume"""
    records: str = MISSING
    """JSON file with the records of all arms from all machines; a page (.md) and plots (.png) of the same name are
    written next to it"""
    minutes: float | None = setting(None, within=AT_LEAST_0)
    """time limit after which all runs stop with a checkpoint, to be resumed; 0: only update records and page; null: no
    limit"""
    devices: list[str] | None = None
    """devices, with one arm at a time each, e.g. [cuda:0,cuda:1]; null: all GPUs, else the CPU"""
    overrides: list[str] = field(default_factory=list)
    """additional settings of all trainings, e.g. ["train.iterations=100"]"""
    omit: list[str] = field(default_factory=list)
    """omissions of `skippipe evaluate` for each finished arm; []: no evaluation"""
    evaluation: list[str] = field(default_factory=list)
    """additional settings of these evaluations"""
    times: list[str] = field(default_factory=list)
    """settings of `skippipe plan` for which times to the loss are predicted, e.g. ["cluster=geo20"]; []: none"""
    key: str | None = None
    """file with the key that signs checkpoints, to resume on another machine; null: the user's default key
    (~/.config/skippipe)"""
    grace_s: float = setting(120.0, within=ABOVE_0)
    """seconds that a run has to stop before it is killed (it resumes from its last checkpoint)"""
    dry_run: bool = False
    """print what would run where, and exit (same as --dry-run)"""
