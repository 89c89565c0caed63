"""What the tests of the runtime share. Without torch only those of the planning half of the runtime run."""

from importlib.util import find_spec

import pytest
from pool import Pool, shared_pool

collect_ignore = [] if find_spec("torch") else ["test_executor.py", "test_exactness.py", "test_proof.py"]


@pytest.fixture(scope="session")
def pool() -> Pool:
    """Warm workers, at most six."""
    return shared_pool()
