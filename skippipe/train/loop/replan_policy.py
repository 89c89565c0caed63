"""When a run looks for another plan, and when it takes one. Pure.

Two rules keep it from changing plans back and forth. A plan is taken only if it is predicted to be shorter by a minimum
fraction, and to save more than the change costs before the run ends. And what was taken is on trial: if the measured
iterations after it are not shorter than those before by half of that fraction, it has brought nothing, and the time
until the next search doubles, as it does after a search that finds nothing. While it waits, only a large change of the
predicted times has it search at once, and how large doubles with each plan that brought nothing. So the number of such
plans grows with the logarithms of the run's length and of how much times vary, whatever noise makes predictions say.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

TRIAL = 3
"""Iterations before a change, and after it, whose medians are compared."""
ALARM = 2.0
"""How many times the gain the predicted time has to change while searches wait, at first."""
DILUTED = 0.5
"""The sum over all routes has to change by this share of the gain: a few links that change by much hardly change it."""
PAYBACK = 2.0
"""A change must save so many times what it costs."""


@dataclass(frozen=True)
class ReplanPolicy:
    """What makes a change worth it."""

    gain: float
    """least fraction of the iteration time that a plan has to save"""
    wait: int
    """iterations until the next search, after the first that brought nothing"""


class Outlook(NamedTuple):
    """What a plan is to take, on a cluster; seconds."""

    iteration_s: float
    """of an iteration"""
    routes_s: float
    """of all routes, if none waited for another: faster links may shorten these alone, and another plan's iteration"""


class Offer(NamedTuple):
    """A plan that was found, for the cluster as it is now; seconds."""

    current_s: float
    """predicted iteration time of the plan in use"""
    candidate_s: float
    """of the one that was found"""
    change_s: float
    """of the change to it"""
    iterations: int
    """that would follow it"""


@dataclass(frozen=True)
class Trial:
    """A plan that has been taken, and is still to prove itself."""

    began: int
    """iterations before it"""
    before_s: float
    """measured iteration time before it"""
    after_s: tuple[float, ...] = ()
    """measured iteration times since"""


@dataclass(frozen=True)
class ReplanState:
    """What is known of earlier searches."""

    wait: int
    """iterations until the next search, if the next one brings nothing"""
    alarm: float = ALARM
    """how many times the gain the predicted time has to change while searches wait"""
    quiet_until: int = 0
    """no search before so many iterations are done"""
    trial: Trial | None = None


def is_worth_it(policy: ReplanPolicy, offer: Offer) -> bool:
    """Whether a plan is to be taken."""
    saved_s = offer.current_s - offer.candidate_s
    return saved_s >= policy.gain * offer.current_s and saved_s * offer.iterations >= PAYBACK * offer.change_s


def may_search(policy: ReplanPolicy, state: ReplanState, iteration: int, planned: Outlook, now: Outlook) -> bool:
    """Whether to look for another plan after an iteration.

    Args:
        policy: what makes a change worth it.
        state: of earlier searches.
        iteration: iterations done.
        planned: what the plan in use was to take, when it was last compared with others.
        now: what it is to take on the cluster as it is now.

    """
    if state.trial is not None:
        return False
    least = math.log1p(policy.gain) * (1.0 if iteration >= state.quiet_until else state.alarm)
    # Twice as long counts as much as half as long.
    of_iteration, of_routes = (abs(math.log(after / before)) for before, after in zip(planned, now, strict=True))
    return of_iteration >= least or of_routes >= DILUTED * least


def after_nothing(state: ReplanState, iteration: int) -> ReplanState:
    """After a search that found nothing."""
    return ReplanState(2 * state.wait, state.alarm, iteration + state.wait)


def after_change(state: ReplanState, iteration: int, before: Sequence[float]) -> ReplanState:
    """After a change of plans; `before` are the measured seconds of the latest iterations."""
    return dataclasses.replace(state, trial=Trial(iteration, statistics.median(before[-TRIAL:])))


def after_iteration(policy: ReplanPolicy, state: ReplanState, iteration: int, measured_s: float) -> ReplanState:
    """After any iteration: a trial may end with it.

    One that has proved itself leaves the waiting time as it is, and does not shorten it: noise may prove anything once.
    """
    if state.trial is None:
        return state
    trial = dataclasses.replace(state.trial, after_s=(*state.trial.after_s, measured_s))
    if len(trial.after_s) < TRIAL:
        return dataclasses.replace(state, trial=trial)
    if statistics.median(trial.after_s) <= (1 - policy.gain / 2) * trial.before_s:
        return ReplanState(state.wait, state.alarm, iteration + state.wait)
    return ReplanState(2 * state.wait, 2 * state.alarm, iteration + state.wait)
