"""`skippipe train`."""

from skippipe.application import Context
from skippipe.commands.needed import check_installed
from skippipe.train.config import TrainJob

NEEDED = ("torch", "transformers", "datasets", "tensorboard")


def train(job: TrainJob, context: Context) -> float:
    """Train, or with `dry_run` only check; returns the validation loss at the end (0 for a check)."""
    check_installed("training", NEEDED)
    # Imported here: planning and --help do without torch.
    from skippipe.train.launch.launch import launch  # noqa: PLC0415

    return launch(job, context)
