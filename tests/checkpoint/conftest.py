"""Shared fixtures of the checkpoint tests."""

import pytest
from pool import Pool, shared_pool

pytest.importorskip("torch", reason="needs torch (the extra `train`)")


@pytest.fixture(scope="session")
def pool() -> Pool:
    """Warm workers, at most six."""
    return shared_pool()
