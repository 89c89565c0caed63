"""When the actions of all ranks ran in an iteration, gathered by rank 0 on one clock.

The times travel with the sum of the losses: they are sent before it and awaited after it, so that they cost no latency
of their own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skippipe.runtime.executor import Timings
from skippipe.runtime.links import Link, Work
from skippipe.runtime.links.collectives import TIMES_TAG


class RankTimeline(NamedTuple):
    """When the actions of a rank's program ended; each began when the one before it had ended."""

    began_at: float
    """start of the iteration, in seconds on the clock of rank 0"""
    ends: Sequence[float]
    """seconds from then on"""


class TimelineExchange:
    """One iteration's exchange; every rank begins it, and finishes it later."""

    def __init__(self, link: Link, rank: int, actions: Sequence[int], timings: Timings, offset_s: float) -> None:
        """Begin.

        Args:
            link: to the other ranks, for tensors in the host's memory.
            rank: this one.
            actions: how many each rank has.
            timings: of this rank's actions.
            offset_s: reading of the clock of rank 0 less that of this rank.

        """
        self._own = torch.tensor([timings.began_at + offset_s, *timings.ends], dtype=torch.float64)
        self._rank, self._arriving, self._work = rank, list[Tensor](), list[Work]()
        if rank:
            self._work = [link.isend(self._own, 0, TIMES_TAG)]
            return
        self._arriving = [torch.empty(1 + count, dtype=torch.float64) for count in actions[1:]]
        self._work = [link.irecv(times, sender, TIMES_TAG) for sender, times in enumerate(self._arriving, 1)]

    def finish(self, timeout_s: float) -> list[RankTimeline]:
        """Give the timelines of all ranks on rank 0, and none elsewhere.

        Raises:
            TimeoutError, OSError: see `skippipe.runtime.links.Work`.

        """
        for work in self._work:
            work.wait(timeout_s)
        if self._rank:
            return []
        return [RankTimeline(began_at, ends) for began_at, *ends in (t.tolist() for t in (self._own, *self._arriving))]
