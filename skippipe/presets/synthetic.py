"""Random clusters from a seed: any number of nodes and regions, heterogeneous speeds and memories, asymmetric links.

Only uniform numbers from PCG64 are drawn, always in the same order: equal settings give equal clusters.
"""

import numpy as np

from skippipe.config import SyntheticConfig
from skippipe.presets.spec import ClusterSpec, Floats


def synthetic_cluster(config: SyntheticConfig) -> ClusterSpec:
    """Draw nodes and links.

    Regions are points in the unit square. From `inside` to `farthest`, latency grows linearly and bandwidth falls
    geometrically with distance; then each direction is slowed by its own random factor up to `asymmetry`.
    """
    random = np.random.Generator(np.random.PCG64(config.seed))
    positions = random.random((config.regions, 2))
    slowed_latency, slowed_bandwidth = random.random((2, config.regions, config.regions))
    speed, memory = random.random((2, config.nodes))

    distance = np.linalg.norm(positions[:, None, :] - positions[None, :, :], axis=-1) / np.sqrt(2.0)
    inside, farthest = config.inside, config.farthest
    latency_s = inside.latency_s + distance * (farthest.latency_s - inside.latency_s)
    bandwidth = inside.bandwidth * (farthest.bandwidth / inside.bandwidth) ** distance
    slowness = config.speed_spread ** (speed - 0.5)
    return ClusterSpec(
        names=[f"region{i % config.regions}-{i // config.regions}" for i in range(config.nodes)],
        forward_s=config.node.forward_s * slowness,
        backward_s=config.node.backward_s * slowness,
        loss_s=config.node.loss_s * slowness,
        memory=config.node.memory + np.floor(memory * (config.memory_spread + 1)).astype(np.int64),
        region_of=np.arange(config.nodes, dtype=np.int64) % config.regions,
        latency_s=latency_s * _between_regions(slowed_latency, config.asymmetry),
        bandwidth=bandwidth / _between_regions(slowed_bandwidth, config.asymmetry),
    )


def _between_regions(uniform: Floats, most: float) -> Floats:
    """Log-uniform factors from 1 to `most`; 1 within a region."""
    factors = np.power(most, uniform)
    np.fill_diagonal(factors, 1.0)
    return factors
