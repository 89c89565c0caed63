"""`skippipe train`."""

from skippipe.context import Context
from skippipe.train.config import TrainJob
from skippipe.train.launch.launch import launch


def train(job: TrainJob, context: Context) -> float:
    """Train, or with `dry_run` only check; returns the validation loss at the end (0 for a check)."""
    return launch(job, context)
