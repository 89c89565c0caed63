"""Settings of `skippipe study`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import ABOVE_0, AT_LEAST_0, Range, setting


@dataclass
class ArmConfig:
    """One training of a study."""

    experiment: str = MISSING
    """settings, as in `skippipe train experiment=...`"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """train.seed"""


@dataclass
class StudyJob:
    """Settings of `skippipe study`."""

    arms: list[ArmConfig] = field(default_factory=list)
    """the trainings, e.g. [{experiment: llama30m_0, seed: 1}]; the first that is open comes first"""
    baseline: str | None = None
    """the experiment that the others are held against, seed by seed; null: none"""
    prepared: str = MISSING
    """a folder that `skippipe data prepare` has written: data.prepared of all arms"""
    folder: str = "studies"
    """the runs go here, each into EXPERIMENT/seedN; one that is there goes on"""
    records: str = MISSING
    """JSON file of what is known of all arms, wherever they ran; beside it a page (.md) and figures (.png) of the same
    name are written"""
    minutes: float | None = setting(None, within=AT_LEAST_0)
    """after so many minutes all runs end in order, to go on another time; 0: only write records and page anew; null:
    until no arm is open"""
    devices: list[str] | None = None
    """one arm at a time on each, e.g. [cuda:0,cuda:1]; null: all GPUs, else the cpu"""
    overrides: list[str] = field(default_factory=list)
    """more settings of all trainings, e.g. ["train.iterations=100"]"""
    omit: list[str] = field(default_factory=list)
    """what `skippipe evaluate` leaves out of each arm that has come to its end; []: arms are not evaluated"""
    evaluation: list[str] = field(default_factory=list)
    """more settings of these evaluations"""
    key: str | None = None
    """a file with the secret that checkpoints are signed with, to go on with them on another machine; null: the user's
    own (~/.config/skippipe)"""
    grace_s: float = setting(120.0, within=ABOVE_0)
    """seconds in which a run that is asked to stop has to end; then it is killed, and goes on from its last checkpoint
    another time"""
    dry_run: bool = False
    """say what would run where, and stop (the same as --dry-run)"""
