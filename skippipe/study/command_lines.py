"""Command lines of a study's steps."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skippipe.errors import unexpected
from skippipe.evaluate.omission import parse_omission
from skippipe.overrides import quoted
from skippipe.study.arms import Arm, StudyStep
from skippipe.study.collect import EVALUATION

OWN_TRAIN = {"experiment", "train.seed", "folder", "data.prepared", "runtime.device", "checkpoint.key"}
OWN_EVALUATE = {"checkpoint", "model", "model_folder", "compare", "omit", "output", "data.prepared", "device", "key"}
"""settings made by the study itself"""


@dataclass(frozen=True)
class CommandLines:
    """Builds command lines from what all steps of a study share."""

    runs: Path
    """the folder of the study"""
    prepared: Path
    """the corpus"""
    overrides: Sequence[str] = ()
    omit: Sequence[str] = ()
    evaluation: Sequence[str] = ()
    """additional settings of evaluations"""
    key: Path | None = None
    """the key that signs checkpoints"""
    config_folders: Sequence[str] = ()
    """additional folders of experiments"""

    def __post_init__(self) -> None:
        """Raise `InputError` early for settings that would fail only when an arm starts or ends."""
        for name, settings, own in (
            ("overrides", self.overrides, OWN_TRAIN),
            ("evaluation", self.evaluation, OWN_EVALUATE),
        ):
            for number, setting in enumerate(settings):
                if setting.partition("=")[0].lstrip("+~") in own:
                    raise unexpected(f"{name}[{number}]", setting, "a setting that the study does not make itself")
        for omission in self.omit:
            parse_omission(omission)

    def line(self, step: StudyStep, device: str) -> list[str]:
        """Command line of a step on a device, for subprocess."""
        arguments = self._train(step.arm, device) if step.kind == "train" else self._evaluate(step.arm, device)
        folders = [part for folder in self.config_folders for part in ("--config-dir", folder)]
        return [sys.executable, "-m", "skippipe", step.kind, *arguments, *folders]

    def _train(self, arm: Arm, device: str) -> list[str]:
        return [
            f"experiment={arm.experiment}",
            f"train.seed={arm.seed}",
            f"folder={quoted(self.runs / arm.folder)}",
            f"data.prepared={quoted(self.prepared)}",
            f"runtime.device={device}",
            *([f"checkpoint.key={quoted(self.key)}"] if self.key else []),
            *self.overrides,
        ]

    def _evaluate(self, arm: Arm, device: str) -> list[str]:
        folder = self.runs / arm.folder
        return [
            f"checkpoint={quoted(folder)}",
            f"omit=[{','.join(map(quoted, self.omit))}]",
            f"output={quoted(folder / EVALUATION)}",
            f"data.prepared={quoted(self.prepared)}",
            f"data.sequence={arm.job.data.sequence}",
            f"data.validation_blocks={arm.job.data.validation_blocks}",
            f"device={device}",
            *([f"key={quoted(self.key)}"] if self.key else []),
            *self.evaluation,
        ]
