"""Clusters, read from files, and with other links."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from skippipe._scheduler import Cluster
from skippipe.errors import InputError, in_file
from skippipe.files import read_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Cluster", "load_cluster", "scaled_links"]


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
