"""Failing alone: a process that has not trained yet with those that it joins, and without which they go on."""

import contextlib
from collections.abc import Callable, Iterator

import torch.distributed as dist

from skippipe.errors import WithdrawnError
from skippipe.train.connect.activity import announce_failure
from skippipe.train.connect.attempt import Attempt, LeftBehindError, reason_of
from skippipe.train.connect.store import RendezvousError


class MissedError(RendezvousError):
    """The members were lost, or have ended, before this process was one of them: it may try again."""


Tell = Callable[[str], None]
"""Takes why a process fails."""


def nobody(_reason: str) -> None:
    """Tell nobody: the others do not know of this process."""


@contextlib.contextmanager
def withdrawing(tell: Tell = nobody, *, until: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Within: what this process does before it has trained with the others. If it fails, they go on without it.

    Args:
        tell: has them know at once.
        until: whether it has trained with them by now; then its error is raised as it is.

    Raises:
        WithdrawnError: this process fails; from the error.
        MissedError: as raised within.

    """
    try:
        yield
    except LeftBehindError:
        raise
    except BaseException as error:
        if until():
            raise
        tell(reason_of(error))
        if dist.is_initialized():
            dist.destroy_process_group()
        if isinstance(error, MissedError) or not isinstance(error, Exception):
            raise
        raise WithdrawnError(str(error)) from error


def telling(attempt: Attempt, member: int) -> Tell:
    """Tell the others of an attempt, which this process is to join as `member`."""

    def tell(reason: str) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the store is gone
            announce_failure(attempt.client, attempt.name, member, reason)

    return tell
