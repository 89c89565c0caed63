"""Identical nodes in cloud regions with measured links, from `regions12.json`."""

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from skippipe.config import RegionsConfig
from skippipe.errors import unexpected
from skippipe.presets.spec import ClusterSpec, Floats, equal_nodes


@dataclass(frozen=True)
class RegionTable:
    """Regions, with latency and bandwidth of every pair."""

    names: list[str]
    latency_s: Floats
    """shape (R, R); the diagonal holds within a region"""
    bandwidth: Floats
    """shape (R, R), bytes per second"""


@cache
def region_table() -> RegionTable:
    """Read the bundled table."""
    text = resources.files("skippipe.presets").joinpath("regions12.json").read_text(encoding="utf-8")
    content = json.loads(text)
    names = sorted({pair[end] for pair in content["pairs"] for end in "ab"})
    within = content["within_region"]
    latency_s = np.full((len(names), len(names)), within["latency_s"], dtype=np.float64)
    bandwidth = np.full((len(names), len(names)), within["bandwidth"], dtype=np.float64)
    for pair in content["pairs"]:
        a, b = names.index(pair["a"]), names.index(pair["b"])
        latency_s[a, b] = latency_s[b, a] = pair["latency_s"]
        bandwidth[a, b] = bandwidth[b, a] = pair["bandwidth"]
    return RegionTable(names, latency_s, bandwidth)


def regions_cluster(config: RegionsConfig) -> ClusterSpec:
    """One node per entry of `regions`, named after its region and numbered within it."""
    table = region_table()
    if not config.regions:
        raise unexpected("cluster.regions", [], "one region per node")
    for i, region in enumerate(config.regions):
        if region not in table.names:
            raise unexpected(f"cluster.regions[{i}]", region, f"one of {', '.join(table.names)}")
    used = list(dict.fromkeys(config.regions))
    rows = np.ix_([table.names.index(x) for x in used], [table.names.index(x) for x in used])
    region_of = [used.index(region) for region in config.regions]
    names = _numbered(config.regions)
    return equal_nodes(config.node, names, region_of, table.latency_s[rows], table.bandwidth[rows])


def _numbered(regions: list[str]) -> list[str]:
    seen: dict[str, int] = defaultdict(int)
    names = []
    for region in regions:
        names.append(f"{region}-{seen[region]}")
        seen[region] += 1
    return names
