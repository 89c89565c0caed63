"""What the tests of training share."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Pool, shared_pool

torch = pytest.importorskip("torch", reason="needs torch (the extra `train`)")
torch.set_num_threads(1)

Folder = Callable[[str], Path]


@pytest.fixture(scope="session")
def pool() -> Pool:
    """Warm workers, at most six."""
    return shared_pool()


@pytest.fixture(scope="session")
def prepared() -> Path:
    """The text that ships, tokenised once for all trainings."""
    from train.jobs import prepared_text

    return prepared_text()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Make a folder for one run."""

    def call(name: str) -> Path:
        path = tmp_path / name
        path.mkdir()
        return path

    return call
