"""What has to be equal on all ranks of a job, of whatever kind."""

import json
from collections.abc import Mapping
from typing import Any

import skippipe
from skippipe.model.settings import plain_settings


def with_version_and_model(settings: Mapping[str, str], config: Any) -> dict[str, str]:
    """Settings by name, with the version of the program and every setting of the model, as JSON."""
    model = plain_settings(config)
    return {
        "version of skippipe": skippipe.__version__,
        **settings,
        **{f"model.{name}": json.dumps(value, sort_keys=True) for name, value in model.items()},
    }
