"""Identical nodes at identical sites: one machine, one data centre, or several."""

import numpy as np

from skippipe.config import MOST_NODES, SitesConfig
from skippipe.errors import unexpected
from skippipe.presets.spec import ClusterSpec, Floats, equal_nodes


def sites_cluster(config: SitesConfig) -> ClusterSpec:
    """`sites` times `nodes_per_site` nodes, numbered site by site."""
    if config.sites * config.nodes_per_site > MOST_NODES:
        nodes = config.sites * config.nodes_per_site
        raise unexpected("cluster.sites times cluster.nodes_per_site", nodes, f"at most {MOST_NODES}")
    region_of = [site for site in range(config.sites) for _ in range(config.nodes_per_site)]
    return equal_nodes(
        config.node,
        [_name(config, site, i) for site in range(config.sites) for i in range(config.nodes_per_site)],
        region_of,
        _matrix(config.sites, config.inside.latency_s, config.between.latency_s),
        _matrix(config.sites, config.inside.bandwidth, config.between.bandwidth),
    )


def _name(config: SitesConfig, site: int, i: int) -> str:
    return f"{config.name}-{i}" if config.sites == 1 else f"{config.name}{site}-{i}"


def _matrix(sites: int, inside: float, between: float) -> Floats:
    matrix = np.full((sites, sites), between, dtype=np.float64)
    np.fill_diagonal(matrix, inside)
    return matrix
