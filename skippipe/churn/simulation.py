"""How far a run gets while nodes go down and come up: a simulation by iterations. Pure.

What the runtime promises holds here: a loss costs at most the iteration in which it happens; a restart costs what came
after the latest checkpoint; a node is admitted between two iterations.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from skippipe.churn.trace import Change

IterationTime = Callable[[frozenset[int]], float | None]
"""Seconds of an iteration without some nodes; None: the others cannot train."""
ROUNDING = 1e-9
"""Of times, relative to an iteration."""


@dataclass(frozen=True)
class Costs:
    """Of what is not training; seconds."""

    detect_s: float
    """until a loss is noticed"""
    recover_s: float
    """from there until the others go on"""
    restart_s: float
    """from there until all have started again"""
    join_s: float
    """that all wait for nodes which join"""
    checkpoint_every: int
    """iterations"""


@dataclass(frozen=True)
class Policy:
    """What a run does when nodes come and go."""

    goes_on: bool
    """whether the others go on without a lost node if they can; else all start again"""
    admits: bool
    """whether nodes that are back join a running job; else they take part after the next restart"""


@dataclass
class Account:
    """Where the time went; seconds."""

    training: float = 0.0
    """in iterations that count, or were undone by a restart later on"""
    redone: float = 0.0
    """in iterations that were broken off"""
    recovering: float = 0.0
    joining: float = 0.0
    restarting: float = 0.0
    waiting: float = 0.0
    """for a node without which nobody can train"""


@dataclass
class Progress:
    """What became of a run."""

    iterations: int = 0
    """done at the end"""
    undone: int = 0
    """that were done and then lost by restarts"""
    losses: int = 0
    """recoveries from losses"""
    restarts: int = 0
    account: Account = field(default_factory=Account)
    points: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """moments and iterations done by then"""


def simulate_churn(
    policy: Policy, changes: Sequence[Change], iteration_s: IterationTime, costs: Costs, horizon_s: float
) -> Progress:
    """Train for `horizon_s` with nodes that change as given; all are up at first, and can train together."""
    run = _Run(policy, changes, iteration_s, costs, horizon_s)
    while run.now < horizon_s:
        run.train()
    return run.progress


class _Run:
    """A run at a moment."""

    def __init__(
        self, policy: Policy, changes: Sequence[Change], iteration_s: IterationTime, costs: Costs, horizon_s: float
    ) -> None:
        self._policy, self._iteration_s, self._costs, self._horizon_s = policy, iteration_s, costs, horizon_s
        self._coming = deque(sorted(changes))
        self._down: set[int] = set()
        self._absent: frozenset[int] = frozenset()
        """nodes that the job does without"""
        self.now = 0.0
        self.progress = Progress()

    def train(self) -> None:
        """Train until a node is lost or joins, and deal with that."""
        iteration_s = self._iteration_s(self._absent)
        assert iteration_s is not None, "these nodes can train"
        begin = self.now
        joins_at = begin + iteration_s if self._waiting_to_join() else math.inf
        lost_at: float | None = None
        while self._coming and self._coming[0].time_s < min(joins_at, self._horizon_s):
            change = self._next()
            if change.node not in self._absent:
                lost_at = max(change.time_s, begin)
                break
            if not self._waiting_to_join():
                joins_at = math.inf  # who was back has gone again
            elif joins_at == math.inf:
                count = math.floor((change.time_s - begin) / iteration_s + ROUNDING) + 1
                joins_at = begin + count * iteration_s
        end = min(joins_at, self._horizon_s) if lost_at is None else lost_at
        whole = math.floor((end - begin) / iteration_s + ROUNDING)
        self.progress.iterations += whole
        self.progress.account.training += whole * iteration_s
        self.progress.account.redone += max(end - begin - whole * iteration_s, 0.0)
        self.now = end
        self._mark()
        if lost_at is not None:
            self._lose()
        elif end < self._horizon_s:
            self._admit()

    def _waiting_to_join(self) -> bool:
        return self._policy.admits and not self._absent <= self._down

    def _next(self) -> Change:
        change = self._coming.popleft()
        (self._down.discard if change.up else self._down.add)(change.node)
        return change

    def _admit(self) -> None:
        """Let nodes join that are up; one that goes down meanwhile is lost at the end of it."""
        self._absent = frozenset(self._absent & self._down)
        self.progress.account.joining += self._pass(self._costs.join_s)
        if not self._down <= self._absent and self.now < self._horizon_s:
            self._lose()

    def _lose(self) -> None:
        """Go on without nodes that are down, or start again."""
        while self._policy.goes_on and self.now < self._horizon_s:
            absent = self._absent | self._down
            if self._iteration_s(absent) is None:
                break
            self.progress.losses += 1
            self._absent = absent
            seconds, is_broken_off = self._pass_unless_lost(self._costs.detect_s + self._costs.recover_s)
            self.progress.account.recovering += seconds
            if not is_broken_off:
                return
        self._restart()

    def _restart(self) -> None:
        """Start again from the latest checkpoint with all nodes that are up, once they can train."""
        every = self._costs.checkpoint_every
        saved = self.progress.iterations // every * every
        self.progress.undone += self.progress.iterations - saved
        self.progress.iterations = saved
        self._mark()
        self.progress.account.restarting += self._pass(self._costs.detect_s)
        while self.now < self._horizon_s:
            while self._iteration_s(frozenset(self._down)) is None:
                until = self._coming[0].time_s if self._coming else math.inf
                self.progress.account.waiting += self._pass(max(until - self.now, 0.0))
                if self.now >= self._horizon_s:
                    return
            self._absent = frozenset(self._down)
            self.progress.restarts += 1
            seconds, is_broken_off = self._pass_unless_lost(self._costs.restart_s)
            self.progress.account.restarting += seconds
            if not is_broken_off:
                return

    def _pass(self, seconds: float) -> float:
        """Let time pass, and nodes change; gives how long that is before the end."""
        begin = self.now
        self.now = min(begin + seconds, self._horizon_s)
        while self._coming and self._coming[0].time_s <= self.now:
            self._next()
        return self.now - begin

    def _pass_unless_lost(self, seconds: float) -> tuple[float, bool]:
        """The same until a node of the job goes down, if that is before; whether it is."""
        begin, end = self.now, min(self.now + seconds, self._horizon_s)
        while self._coming and self._coming[0].time_s <= end:
            change = self._next()
            if change.node not in self._absent:
                self.now = max(change.time_s, begin)
                return self.now - begin, True
        self.now = end
        return end - begin, False

    def _mark(self) -> None:
        self.progress.points.append((self.now, self.progress.iterations))


def goodput(progress: Progress, undisturbed_s: float, horizon_s: float) -> float:
    """Iterations done, as a fraction of those of a run that loses nobody."""
    return progress.iterations * undisturbed_s / horizon_s


def nodes_down(changes: Collection[Change], nodes: int, horizon_s: float) -> float:
    """Mean fraction of nodes that are down."""
    down = 0.0
    for change in changes:
        if change.time_s < horizon_s:
            down += (horizon_s - change.time_s) * (-1 if change.up else 1)
    return down / (nodes * horizon_s)
