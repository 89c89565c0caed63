"""Settings of `skippipe study`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import ABOVE_0, AT_LEAST_0, Range, setting


@dataclass
class ArmConfig:
    """One run of a study."""

    experiment: str = MISSING
    """as in `skippipe train experiment=...`"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """train.seed"""


@dataclass
class StudyJob:
    """Settings of `skippipe study`."""

    arms: list[ArmConfig] = field(default_factory=list)
    """the runs in order of priority, e.g. [{experiment: llama30m_0, seed: 1}]"""
    baseline: str | None = None
    """the experiment that others are compared with, seed by seed; null: none"""
    prepared: str = MISSING
    """a folder written by `skippipe data prepare`: data.prepared of all runs"""
    folder: str = "studies"
    """folder of the runs, each in EXPERIMENT/seedN; existing runs are resumed"""
    records: str = MISSING
    """JSON file with the results of all runs, wherever they ran; a page (.md) and figures (.png) of the same name are
    written next to it"""
    minutes: float | None = setting(None, within=AT_LEAST_0)
    """after so many minutes all runs stop with a checkpoint, to be resumed later; 0: only rewrite records and page;
    null: until all runs are finished"""
    devices: list[str] | None = None
    """devices, with one run at a time on each, e.g. [cuda:0,cuda:1]; null: all GPUs, else the cpu"""
    overrides: list[str] = field(default_factory=list)
    """further settings of all runs, e.g. ["train.iterations=100"]"""
    omit: list[str] = field(default_factory=list)
    """omissions that `skippipe evaluate` measures on each finished run; []: no evaluation"""
    evaluation: list[str] = field(default_factory=list)
    """further settings of these evaluations"""
    key: str | None = None
    """file with the key that checkpoints are signed with, needed to resume on another machine; null: the user's own
    (~/.config/skippipe)"""
    grace_s: float = setting(120.0, within=ABOVE_0)
    """seconds that a run has to stop when asked to; then it is killed, to be resumed from its last checkpoint"""
    dry_run: bool = False
    """only show what would run where (also --dry-run)"""
