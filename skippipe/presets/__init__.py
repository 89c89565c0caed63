"""Preset clusters: settings in, arrays out. Pure functions."""

from skippipe.presets.regions import regions_cluster
from skippipe.presets.sites import sites_cluster
from skippipe.presets.spec import ClusterSpec
from skippipe.presets.synthetic import synthetic_cluster

__all__ = ["ClusterSpec", "regions_cluster", "sites_cluster", "synthetic_cluster"]
