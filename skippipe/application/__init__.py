"""Commands under Hydra: configuration composed, checked and handed over as dataclasses, errors made readable.

Everything about Hydra and OmegaConf is in here; the commands know neither.
"""

from skippipe.application.configuration import compose
from skippipe.application.run import run_command

__all__ = ["compose", "run_command"]
