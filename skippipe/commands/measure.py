"""`skippipe measure`."""

from skippipe.context import Context
from skippipe.train.measuring.config import MeasureJob
from skippipe.train.measuring.launch import launch


def measure(job: MeasureJob, context: Context) -> float:
    """Measure nodes and links, and write them; returns the longest time of forward and backward, in seconds."""
    return launch(job, context)
