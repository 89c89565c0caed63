"""Predicted and measured times during training, and other plans where they differ: the shell of rank 0.

What it decides is in `replan_policy.py`, what it measures in `observed.py` and `live_profile.py`. Searches run in a
thread beside the training; the planner holds no lock of Python.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from skippipe._scheduler import Cluster, Plan
from skippipe.config import Contention, PlannerConfig
from skippipe.runtime.actions import Program
from skippipe.train.loop.live_profile import LiveProfile
from skippipe.train.loop.observed import Ratios, observe, ratios
from skippipe.train.loop.replan_policy import (
    TRIAL,
    Offer,
    Outlook,
    ReplanPolicy,
    ReplanState,
    after_change,
    after_iteration,
    after_nothing,
    is_worth_it,
    may_search,
)
from skippipe.train.loop.replanning import Candidate, Question, find_plan, retimed_s, routes_s
from skippipe.train.loop.slow_nodes import SlowRank, slowest_rank
from skippipe.train.loop.timelines import RankTimeline
from skippipe.train.observe.events import PlanSearched, Report
from skippipe.train.resolve.spec import ReplanSpec


class Files(Protocol):
    """Where plans and profiles are kept."""

    def keep_plan(self, after: int, plan: Plan) -> None:
        """Write the plan that holds after so many iterations."""

    def keep_profile(self, cluster: Cluster) -> None:
        """Write the cluster as it is now."""


class PlanInUse(Protocol):
    """What runs; see `skippipe.train.loop.engine.Engine`."""

    @property
    def plan(self) -> Plan:
        """Routes and order."""

    @property
    def programs(self) -> Sequence[Program]:
        """Of all ranks; none where microbatches share passes."""

    @property
    def rank_of(self) -> Sequence[int]:
        """The rank that serves each node."""

    @property
    def recv_buffers(self) -> int:
        """Receives posted ahead, per sending rank."""

    @property
    def shared(self) -> Contention:
        """What messages have to take turns on."""

    @property
    def planned_s(self) -> float:
        """Iteration time of the plan."""

    @property
    def predicted_s(self) -> float | None:
        """The same, if it is a prediction for this run."""

    def prove(self, plan: Plan) -> None:
        """Raise `DeadlockError` unless another plan cannot deadlock on the same ranks."""


@dataclass(frozen=True)
class Taken:
    """A plan that is to be used from the next iteration on."""

    plan: Plan
    current_s: float
    """predicted iteration time of the plan in use"""


ChangeTime = Callable[[Plan], float]
"""Seconds that weights and optimizer state take to where a plan needs them."""


class ClosedLoop:
    """Compares, keeps the profile, searches; its methods are called between iterations."""

    def __init__(self, spec: ReplanSpec, files: Files, report: Report) -> None:
        """Prepare.

        Args:
            spec: whether and when to look for other plans.
            files: of the run.
            report: takes events.

        """
        self._spec, self._files, self._report = spec, files, report
        self._policy = ReplanPolicy(spec.gain, spec.wait)
        self._state = ReplanState(spec.wait)
        self._engine: PlanInUse | None = None
        self._planner = PlannerConfig()
        self._profile: LiveProfile | None = None
        self._planned = Outlook(0.0, 0.0)
        self._asked = self._planned
        """when the latest search began"""
        self._measured: list[float] = []
        """seconds of the latest iterations"""
        self._thread = ThreadPoolExecutor(1, "replan")
        self._search: Future[Candidate] | None = None
        self._taken: Taken | None = None

    def close(self) -> None:
        """Wait for a search that still runs."""
        self._thread.shutdown(cancel_futures=True)

    def begin(self, engine: PlanInUse, planner: PlannerConfig, *, adopted: bool) -> None:
        """A plan comes into use.

        Args:
            engine: what runs it.
            planner: how other plans are searched.
            adopted: whether it has taken the place of another plan of the same phase.

        """
        self._engine, self._planner, self._taken = engine, planner, None
        if not adopted:  # other stages and layers: what was measured of the links still holds
            cluster = engine.plan.cluster
            self._profile = LiveProfile(cluster) if self._profile is None else self._profile.rebased(cluster)
            self._state, self._measured = replace(self._state, trial=None), []
            self._search = None
        self._planned = Outlook(engine.planned_s, routes_s(engine.plan))

    def after(self, iteration: int, timelines: Sequence[RankTimeline], seconds: float, following: int) -> Ratios:
        """Compare an iteration with its prediction, and begin to look for another plan if it is time.

        Args:
            iteration: its number.
            timelines: of all ranks.
            seconds: that it took.
            following: iterations that the plan in use is still to run.

        """
        engine, profile = self._engine, self._profile
        assert engine is not None, "a plan is in use"
        assert profile is not None, "a plan is in use"
        if not engine.programs:
            return Ratios(None, None)
        seen = observe(
            engine.programs, timelines, recv_buffers=engine.recv_buffers, shared=engine.shared,
            expected_s=profile.transfer_s(),
        )  # fmt: skip
        profile.add(seen)
        if self._spec.mode != "off" and engine.predicted_s is not None:
            self._measured = [*self._measured, seconds][-TRIAL:]
            self._state = after_iteration(self._policy, self._state, iteration, seconds)
            if following and self._search is None and self._taken is None:
                self._begin_search(iteration, engine, profile.cluster())
        return ratios(seen, engine.plan.cluster)

    def slowest_rank(self, most: float) -> SlowRank | None:
        """The rank that is to be treated as lost, since it is slower than planned by more than the factor `most`."""
        engine, profile = self._engine, self._profile
        if engine is None or profile is None:
            return None
        return slowest_rank(profile.slowdowns(), engine.plan.stages, engine.rank_of, most)

    def _begin_search(self, iteration: int, engine: PlanInUse, cluster: Cluster) -> None:
        """Look for another plan, if it is time."""
        current = engine.plan.with_cluster(cluster)
        now = Outlook(retimed_s(current, engine.rank_of), routes_s(current))
        if may_search(self._policy, self._state, iteration, self._planned, now):
            self._asked = now
            self._files.keep_profile(cluster)
            reallocate = self._spec.mode == "allocation"
            question = Question(engine.plan, cluster, self._planner, engine.rank_of, reallocate, engine.prove)
            self._search = self._thread.submit(find_plan, question)

    def wants_change(self, iteration: int, following: int, change_s: ChangeTime) -> bool:
        """Whether another plan is to be used after an iteration; called as it ends, before `after`.

        Args:
            iteration: its number.
            following: iterations that the plan in use would still run.
            change_s: of the change to a plan, for the weights as they lie now.

        """
        if self._taken is None and self._search is not None and self._search.done():
            found, self._search = self._search.result(), None
            self._judge(iteration, found, following, change_s)
        return self._taken is not None

    def _judge(self, iteration: int, found: Candidate, following: int, change_s: ChangeTime) -> None:
        """Decide on what a search has found, and report it."""
        offer = None
        if found.plan is not None and found.candidate_s is not None:
            offer = Offer(found.current_s, found.candidate_s, change_s(found.plan), following)
            if following and is_worth_it(self._policy, offer):
                self._taken = Taken(found.plan, found.current_s)
        if self._taken is None:
            self._state = after_nothing(self._state, iteration)
            self._planned = self._asked
        self._report(
            PlanSearched(
                iteration=iteration, current_s=found.current_s, found_s=found.candidate_s,
                change_s=None if offer is None else offer.change_s, taken=self._taken is not None,
                refused=found.refused,
            )
        )  # fmt: skip

    def take(self, iteration: int) -> Taken:
        """Give that plan, after so many iterations."""
        taken = self._taken
        assert taken is not None, "a plan is ready"
        self._files.keep_plan(iteration, taken.plan)
        self._state = after_change(self._state, iteration, self._measured)
        return taken

    def keep_profile(self) -> None:
        """Write the profile, if anything has been measured."""
        if self._profile is not None and self._profile.iterations:
            self._files.keep_profile(self._profile.cluster())
