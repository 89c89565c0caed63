"""Command lines of steps."""

from pathlib import Path

import pytest
from study.test_arms import make_arm, train_job

from skippipe.application import compose
from skippipe.errors import InputError
from skippipe.study.arms import StudyStep
from skippipe.study.command_lines import CommandLines

RUNS, TEXT = Path("/runs of mine"), Path("/text, 'prepared'")


def settings_of(line: list[str]) -> list[str]:
    """The overrides of a command line."""
    assert line[1:3] == ["-m", "skippipe"]
    return line[4:]


def test_command_lines() -> None:
    commands = CommandLines(RUNS, TEXT, ["train.iterations=9"], ["none", "stages:1+2"], ["draws=3"], Path("/a key"))
    arm = make_arm("llama30m_33", 7)
    job = train_job(*settings_of(commands.line(StudyStep(arm, "train"), "cuda:1")))
    assert (job.train.seed, job.train.iterations, job.runtime.device) == (7, 9, "cuda:1")
    assert (job.folder, job.data.prepared) == ("/runs of mine/llama30m_33/seed7", str(TEXT))
    assert (job.schedule.skip_ratio, job.checkpoint.key) == (1 / 3, "/a key")

    arm.job.data.sequence, arm.job.data.validation_blocks = 64, 40
    evaluation = compose("evaluate", settings_of(commands.line(StudyStep(arm, "evaluate"), "cuda:1")))
    assert (evaluation.checkpoint, evaluation.data.prepared) == (job.folder, str(TEXT))
    assert (evaluation.omit, evaluation.draws, evaluation.device) == (["none", "stages:1+2"], 3, "cuda:1")
    assert (evaluation.data.sequence, evaluation.data.validation_blocks) == (64, 40)
    assert (evaluation.key, evaluation.output) == ("/a key", f"{job.folder}/evaluation")


@pytest.mark.parametrize(
    ("overrides", "omit", "evaluation", "message"),
    [
        (["train.iterations=3", "train.seed=1"], [], [], r"overrides\[1\]: expected a setting .*, got train.seed=1"),
        (["+experiment=a"], [], [], r"overrides\[0\]: .* got \+experiment=a"),
        (["runtime.device=cpu"], [], [], r"overrides\[0\]: .* got runtime.device=cpu"),
        ([], [], ["output=x"], r"evaluation\[0\]: expected a setting .*, got output=x"),
        ([], ["none", "half"], [], "omit: expected none, random.* got half"),
    ],
)
def test_invalid_settings_are_refused_early(
    overrides: list[str], omit: list[str], evaluation: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        CommandLines(RUNS, TEXT, overrides, omit, evaluation)
