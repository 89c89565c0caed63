"""When a checkpoint is due, what it holds, and what is told of it."""

from collections.abc import Callable, Mapping

from torch import Tensor

from skippipe.checkpoint.saving import CheckpointContents, CheckpointSaver, SaveResult, SavingError
from skippipe.train.config import CheckpointConfig
from skippipe.train.events import Report

Snapshot = Callable[[int], tuple[Mapping[str, Tensor], CheckpointContents]]
"""What this rank gives to a checkpoint after so many iterations."""


class Keeper:
    """Keeps checkpoints of one run; all ranks call the same methods with the same numbers."""

    def __init__(
        self, saver: CheckpointSaver, config: CheckpointConfig, snapshot: Snapshot, newest: int, tell: Report
    ) -> None:
        """Prepare; `newest` is the iteration of the checkpoint that stands already, -1 where none does."""
        self._saver, self._config, self._snapshot, self._tell = saver, config, snapshot, tell
        self._newest = newest
        self._due = False

    @property
    def busy(self) -> bool:
        """Whether this rank is still saving."""
        return self._saver.saving

    def settle(self) -> None:
        """Wait until weights and optimizer may change; to be called before each step."""
        self._saver.wait_copied()

    def after(self, iteration: int, *, saving: bool) -> None:
        """Save after an iteration if it is time for it, once nobody is still `saving`."""
        self._look()
        if self._config.every and iteration % self._config.every == 0:
            self._due = True
        if self._due and not saving:
            self._due = False
            self._saver.save(*self._snapshot(iteration))

    def finish(self, iteration: int) -> None:
        """See that a checkpoint after this iteration stands; raises `SavingError` where it cannot be."""
        self._saver.wait()
        self._look()
        if self._newest == iteration:
            return
        self._saver.save(*self._snapshot(iteration))
        self._saver.wait()
        failed = self._look()
        if failed is not None:
            raise SavingError(f"the checkpoint {failed.path} could not be written: {failed.error}")

    def _look(self) -> SaveResult | None:
        """Tell what became of saves; gives the latest one if it failed."""
        latest: SaveResult | None = None
        for saved in self._saver.take_results():
            about = {"iteration": saved.iteration, "path": str(saved.path)}
            latest = None if saved.error is None else saved
            if saved.error is not None:
                self._tell({"event": "checkpoint_failed", **about, "message": str(saved.error)})
                continue
            self._newest = saved.iteration
            times = {"blocked_s": saved.blocked_s, "seconds": saved.seconds, "bytes": saved.bytes}
            self._tell({"event": "checkpoint", **about, **times})
        return latest
