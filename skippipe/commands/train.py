"""`skippipe train`."""

from importlib.util import find_spec

from skippipe.application import Context
from skippipe.errors import InputError
from skippipe.train.config import TrainJob

NEEDED = ("torch", "transformers", "datasets", "tensorboard")


def train(job: TrainJob, context: Context) -> float:
    """Train, or with `dry_run` only check; returns the validation loss at the end (0 for a check)."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"training needs {', '.join(missing)}, which is not installed here: pip install 'skippipe[train]' brings it"
        )
    # Imported here: planning and --help do without torch.
    from skippipe.train.launch import launch  # noqa: PLC0415

    return launch(job, context)
