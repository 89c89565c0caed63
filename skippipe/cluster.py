"""Clusters, read from files or by the name of a preset, and with other links."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skippipe._scheduler import Cluster
from skippipe.errors import InputError, in_file
from skippipe.files import read_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Cluster", "load_cluster", "preset_cluster", "scaled_links"]


def load_cluster(path: str | Path) -> Cluster:
    """Read a `skippipe.cluster/1` file.

    Raises:
        InputError: the file cannot be read, is no cluster, or holds a value that makes no sense; the message names
            file, key, value and what was expected.

    """
    text = read_text(str(path))
    try:
        return Cluster.from_json(text)
    except InputError as error:
        raise in_file(error, path) from None


def preset_cluster(name: str, /, *, stages: int | None = None, **settings: Any) -> Cluster:
    """Build a preset: `geo20`, `five_clusters`, `single_cluster`, `local4` or `synthetic`.

    Args:
        name: of the preset; README describes them.
        stages: number of stages that all-reduce the gradients which the preset states; None: as many as the preset is
            made for.
        settings: replace those of the preset, such as `nodes=12` or `node={"memory": 4}`: the keys of the group
            `cluster` (`docs/commands.md`).

    Returns:
        The cluster.

    Raises:
        skippipe.errors.InputError: an unknown name, or a setting that cannot be used.

    Example:
        >>> import skippipe
        >>> len(skippipe.preset_cluster("geo20"))
        20
        >>> skippipe.preset_cluster("synthetic", nodes=3, regions=2, seed=1).names
        ['region0-0', 'region1-0', 'region0-1']

    """
    from skippipe.presets.named import named_cluster  # noqa: PLC0415 - what reads settings is loaded when needed

    return named_cluster(name, stages, settings)


def scaled_links(cluster: Cluster, factors: "NDArray[np.float64]") -> Cluster:
    """The same cluster with slower or faster links; `overhead_s`, which is the same for all of them, stays.

    Args:
        cluster: whose regions, if it has some, become single links.
        factors: shape (nodes, nodes), row = sender: on latency and on seconds per byte, or on whole transfer times.

    """
    import numpy as np  # noqa: PLC0415 - `skippipe --help` need not wait for it

    content = json.loads(cluster.to_json())
    region_of = content.pop("region_of", None) or list(range(len(cluster)))
    for name in ("latency_s", "bandwidth", "transfer_s"):
        if content.get(name):
            matrix = np.array(content[name], dtype=np.float64)[np.ix_(region_of, region_of)]
            content[name] = (matrix / factors if name == "bandwidth" else matrix * factors).tolist()
    return Cluster.from_json(json.dumps(content))
