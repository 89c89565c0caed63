"""A network for the tests of this folder, where there can be one."""

from functools import cache
from pathlib import Path

import pytest
from rig.network import missing

_missing = cache(missing)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder: they compare seconds, so they run on request, on a quiet machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("rig")


@pytest.fixture(autouse=True)
def needs_network() -> None:
    """Skip where there can be no network, with the reason."""
    reason = _missing()
    if reason is not None:
        pytest.skip(reason)
