"""Whether and when a worker that was lost is started again. Pure."""

from dataclasses import dataclass, field

FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
"""Before a lost worker is started again: the first time, and at most."""
DOUBLINGS = 6
"""After so many the pause is the longest."""


@dataclass
class Restarts:
    """Ends a crash loop: each pause is twice the one before, and few starts in a row may come to nothing."""

    retries: int
    """starts in a row of a rank that may come to nothing"""
    _made: dict[int, int] = field(default_factory=dict)
    """by rank"""
    _fruitless: dict[int, int] = field(default_factory=dict)
    """since a process of the rank has trained, by rank"""

    def pause_s(self, rank: int, *, trained: bool) -> float | None:
        """After which pause the lost worker of a rank is started again; None: it stays lost.

        Args:
            rank: of the worker.
            trained: whether it has trained an iteration since it joined, or was there from the start.

        """
        fruitless = 0 if trained else self._fruitless.get(rank, 0)
        if fruitless >= self.retries:
            return None
        made = self._made.get(rank, 0)
        self._made[rank], self._fruitless[rank] = made + 1, fruitless + 1
        return min(FIRST_PAUSE_S * 2.0 ** min(made, DOUBLINGS), MOST_PAUSE_S)
