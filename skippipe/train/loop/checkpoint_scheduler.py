"""When a checkpoint is written, what it holds, and what is reported of it."""

from collections.abc import Callable, Mapping

from torch import Tensor

from skippipe.checkpoint.saving import CheckpointContents, CheckpointSaver, SaveResult, SavingError
from skippipe.train.observe.events import CheckpointFailed, CheckpointSaved, Report

Snapshot = Callable[[int], tuple[Mapping[str, Tensor], CheckpointContents]]
"""This rank's share of a checkpoint after so many iterations."""


class CheckpointScheduler:
    """Schedules the checkpoints of one run; all ranks call the same methods with the same numbers."""

    def __init__(
        self, saver: CheckpointSaver, every: int | None, snapshot: Snapshot, newest: int, report: Report
    ) -> None:
        """Prepare.

        Args:
            saver: writes checkpoints.
            every: iterations between two of them; None: only when `finish` is called.
            snapshot: gives what this rank saves.
            newest: iteration of the newest checkpoint in the run's folder; -1: there is none.
            report: takes events.

        """
        self._saver, self._every, self._snapshot, self._report = saver, every, snapshot, report
        self._newest = newest
        self._due = False

    @property
    def newest(self) -> int:
        """Iteration of the newest checkpoint that is known to be complete; -1: there is none."""
        return self._newest

    @property
    def busy(self) -> bool:
        """Whether this rank is still saving."""
        return self._saver.saving

    def settle(self) -> None:
        """Wait until weights and optimizer state may change; to be called before each step."""
        self._saver.wait_copied()

    def wait(self) -> None:
        """Wait until this rank is no longer saving, whatever becomes of it."""
        self._saver.wait()

    def after(self, iteration: int, *, saving: bool) -> None:
        """Save after an iteration if a checkpoint is due and no rank is still `saving`."""
        self._report_finished()
        if self._every and iteration % self._every == 0:
            self._due = True
        if self._due and not saving:
            self._due = False
            self._saver.save(*self._snapshot(iteration))

    def take_note(self) -> None:
        """Report what has become of checkpoints so far."""
        self._report_finished()

    def finish(self, iteration: int) -> None:
        """Ensure that there is a checkpoint after this iteration; raises `SavingError` if that fails."""
        self._saver.wait()
        self._report_finished()
        if self._newest == iteration:
            return
        self._saver.save(*self._snapshot(iteration))
        self._saver.wait()
        failed = self._report_finished()
        if failed is not None and failed.error is not None:
            message = f"the checkpoint {failed.path} could not be written: {failed.error}"
            raise SavingError(message) from failed.error.__cause__

    def _report_finished(self) -> SaveResult | None:
        """Report what became of checkpoints; gives the latest one if it failed."""
        failed: SaveResult | None = None
        for saved in self._saver.take_results():
            path = str(saved.path)
            if saved.error is not None:
                failed = saved
                self._report(CheckpointFailed(iteration=saved.iteration, path=path, message=str(saved.error)))
                continue
            failed, self._newest = None, saved.iteration
            self._report(
                CheckpointSaved(
                    iteration=saved.iteration, path=path, blocked_s=saved.blocked_s, seconds=saved.seconds,
                    bytes=saved.bytes,
                )
            )  # fmt: skip
        return failed
