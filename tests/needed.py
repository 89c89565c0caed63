"""Packages that tests need and that may be missing; unlike `pytest.importorskip` this does not import them yet.

Every process collects all files, but imports what only some of them use where it runs those.
"""

from importlib.util import find_spec

import pytest


def skip_without(package: str, brought_by: str) -> None:
    """Skip the file or folder that calls this where a package is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package} ({brought_by})", allow_module_level=True)
