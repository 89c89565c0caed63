"""Presets by name: the clusters of the group `cluster`, for Python."""

from importlib import resources
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from skippipe._scheduler import Cluster
from skippipe.config import ClusterConfig
from skippipe.errors import InputError, unexpected
from skippipe.presets import configured_cluster
from skippipe.validate import validate

FOLDER = "skippipe.conf.cluster"


def named_cluster(name: str, stages: int | None, settings: dict[str, Any]) -> Cluster:
    """See `skippipe.preset_cluster`."""
    config = preset_config(name, settings)
    return configured_cluster(config, len(config.stage_sizes or []) if stages is None else stages)


def preset_config(name: str, settings: dict[str, Any]) -> ClusterConfig:
    """Settings of a preset with some of them replaced, all in range; raises `InputError`."""
    files = {file.name.removesuffix(".yaml"): file for file in resources.files(FOLDER).iterdir()}
    names = sorted(name for name, file in files.items() if file.name.endswith(".yaml"))
    if name not in names:
        raise unexpected("name", name, f"one of {', '.join(names)}")
    content = OmegaConf.create(files[name].read_text(encoding="utf-8"))
    assert isinstance(content, DictConfig)
    schema = content.pop("defaults")[0]
    kinds = {f"{kind.__name__.removesuffix('Config').lower()}_schema": kind for kind in ClusterConfig.__subclasses__()}
    try:
        merged = OmegaConf.merge(OmegaConf.structured(kinds[schema]), content, settings)
        config: ClusterConfig = OmegaConf.to_object(merged)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        reason = (error.msg or str(error)).splitlines()[0]
        raise InputError(reason, key=error.full_key or None) from None
    validate(config)
    return config
