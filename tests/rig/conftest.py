"""A network for the tests of this folder, where there can be one."""

from functools import cache

import pytest
from rig.network import missing

_missing = cache(missing)


@pytest.fixture(autouse=True)
def needs_network() -> None:
    """Skip where there can be no network, with the reason."""
    reason = _missing()
    if reason is not None:
        pytest.skip(reason)
