"""Preset clusters: settings in, arrays out. Pure functions."""

from skippipe.config import ClusterConfig, RegionsConfig, SitesConfig, SyntheticConfig
from skippipe.errors import unexpected
from skippipe.presets.regions import regions_cluster
from skippipe.presets.sites import sites_cluster
from skippipe.presets.spec import ClusterSpec
from skippipe.presets.synthetic import synthetic_cluster

__all__ = ["ClusterSpec", "preset_spec", "regions_cluster", "sites_cluster", "synthetic_cluster"]


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
