"""Clusters to begin with: settings in, arrays out. Pure functions, no files of the user's."""

from skippipe.presets.regions import regions_cluster
from skippipe.presets.sites import sites_cluster
from skippipe.presets.spec import ClusterSpec
from skippipe.presets.synthetic import synthetic_cluster

__all__ = ["ClusterSpec", "regions_cluster", "sites_cluster", "synthetic_cluster"]
