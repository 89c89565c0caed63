"""Clusters by settings: presets, which are pure functions from settings to arrays, or a file."""

from skippipe._scheduler import Cluster
from skippipe.cluster import load_cluster
from skippipe.config import ClusterConfig, RegionsConfig, SitesConfig, SyntheticConfig
from skippipe.errors import unexpected
from skippipe.presets.regions import regions_cluster
from skippipe.presets.sites import sites_cluster
from skippipe.presets.spec import ClusterSpec
from skippipe.presets.synthetic import synthetic_cluster

__all__ = ["ClusterSpec", "configured_cluster", "preset_spec", "regions_cluster", "sites_cluster", "synthetic_cluster"]


def configured_cluster(config: ClusterConfig, stages: int = 0) -> Cluster:
    """The cluster that settings describe.

    Args:
        config: a preset, or a file.
        stages: each of which has the gradients that a preset states; 0: they are left out.

    Raises:
        InputError: the file cannot be used.

    """
    if config.file is not None:
        return load_cluster(str(config.file))
    gradient_bytes = [config.gradient_bytes] * stages if config.gradient_bytes > 0 else []
    return preset_spec(config).cluster(config, gradient_bytes)


def preset_spec(config: ClusterConfig) -> ClusterSpec:
    """Build the nodes and links of a preset; the type of its settings determines its kind."""
    match config:
        case SitesConfig():
            return sites_cluster(config)
        case RegionsConfig():
            return regions_cluster(config)
        case SyntheticConfig():
            return synthetic_cluster(config)
        case _:
            raise unexpected("cluster", "neither", "a preset, or cluster.file")
