"""What the tests of training share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pool import TIMED_S, Pool, shared_pool

torch = pytest.importorskip("torch", reason="needs torch (the extra `train`)")
torch.set_num_threads(1)

Folder = Callable[[str], Path]


@pytest.fixture(scope="package", autouse=True)
def timed_briefly() -> Iterator[None]:
    """Stages are timed in this process as briefly as in warm workers."""
    from skippipe.measure import stages

    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in zip(("STAGE_S", "HEAD_S"), TIMED_S, strict=True):
            patch.setattr(stages, name, seconds)
        yield


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
