"""Clusters: read from a file, or built from a preset's settings."""

from skippipe._scheduler import Cluster
from skippipe.config import ClusterConfig, RegionsConfig, SitesConfig, SyntheticConfig
from skippipe.errors import InputError, in_file, unexpected
from skippipe.files import read_text
from skippipe.presets import ClusterSpec, regions_cluster, sites_cluster, synthetic_cluster

__all__ = ["Cluster", "load_cluster", "preset_spec"]


def load_cluster(path: str) -> Cluster:
    """Read a `skippipe.cluster/1` file.

    Raises:
        InputError: the file cannot be read, is no cluster, or holds a value that makes no sense; the message names
            file, key, value and what was expected.

    """
    text = read_text(path)
    try:
        return Cluster.from_json(text)
    except InputError as error:
        raise in_file(error, path) from None


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
