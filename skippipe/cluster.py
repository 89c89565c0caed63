"""Clusters, read from files."""

from pathlib import Path

from skippipe._scheduler import Cluster
from skippipe.errors import InputError, in_file
from skippipe.files import read_text

__all__ = ["Cluster", "load_cluster"]


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
