"""Shared fixtures of the runtime tests; without torch, only the tests of lowering and deadlock proof run."""

from importlib.util import find_spec

import pytest
from pool import Pool, shared_pool

collect_ignore = [] if find_spec("torch") else ["test_executor.py", "test_exactness.py", "test_proof.py"]


@pytest.fixture(scope="session")
def pool() -> Pool:
    """Warm workers, at most six."""
    return shared_pool()
