"""When other plans are searched and taken: what is worth it, and that noise changes plans no more than a few times."""

import itertools
import math
import random
from collections.abc import Callable

import pytest

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

POLICY = ReplanPolicy(gain=0.05, wait=4)
Seconds = Callable[[int, int], float]
"""True iteration time of a plan (0 or 1) in an iteration."""


def of(iteration_s: float, routes_s: float = 1.0) -> Outlook:
    return Outlook(iteration_s, routes_s)


def run(iterations: int, truth: Seconds, noise: Callable[[], float], policy: ReplanPolicy = POLICY) -> list[int]:
    """Train with two plans to choose from, times with noise; gives the plan of each iteration."""
    state, plan, measured, used = ReplanState(policy.wait), 0, list[float](), list[int]()
    planned_s = truth(0, 0)
    searching = False
    for iteration in range(1, iterations + 1):
        used.append(plan)
        seconds = truth(plan, iteration) * noise()
        measured.append(seconds)
        state = after_iteration(policy, state, iteration, seconds)
        if searching:  # a search takes an iteration
            searching = False
            offer = Offer(truth(plan, iteration) * noise(), truth(1 - plan, iteration) * noise(), 0.0, 100)
            if is_worth_it(policy, offer):
                plan, planned_s = 1 - plan, offer.candidate_s
                state = after_change(state, iteration, measured)
            else:
                state, planned_s = after_nothing(state, iteration), offer.current_s
        elif may_search(policy, state, iteration, of(planned_s), of(truth(plan, iteration) * noise())):
            searching = True
    return used


def noise_of(seed: int, spread: float) -> Callable[[], float]:
    generator = random.Random(seed)
    return lambda: math.exp(generator.gauss(0, spread))


def changes(used: list[int]) -> list[int]:
    """Iterations, from 1, before which the plan changed."""
    return [number for number in range(2, len(used) + 1) if used[number - 1] != used[number - 2]]


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1, 0.3])
def test_plans_that_are_alike_hardly_ever_change(spread: float) -> None:
    """Whatever noise says: no more often than with the logarithm of the run's length, on average of some seeds."""
    for iterations in (100, 1000, 4000):
        counts = []
        for seed in range(10):
            used = run(iterations, lambda _, __: 1.0, noise_of(seed, spread))
            counts.append(len(changes(used)))
        assert sum(counts) / len(counts) <= math.log2(iterations)
        assert max(counts) <= 2 * math.log2(iterations)
        assert spread > 0 or not any(counts)


def test_waiting_doubles_after_each_plan_that_brings_nothing() -> None:
    """An adversary: every prediction says that the other plan takes half of the time, no measurement does."""
    state, iteration, taken = ReplanState(POLICY.wait), 0, []
    while iteration < 5000:
        iteration += 1
        state = after_iteration(POLICY, state, iteration, 1.0)
        if may_search(POLICY, state, iteration, of(1.0), of(1.06)):
            assert is_worth_it(POLICY, Offer(1.06, 0.53, 0.0, 10))
            state = after_change(state, iteration, [1.0] * TRIAL)
            taken.append(iteration)
    gaps = [later - sooner for sooner, later in itertools.pairwise(taken)]
    assert len(taken) <= 2 + math.log2(5000 / POLICY.wait)
    assert all(later >= 2 * sooner - TRIAL for sooner, later in itertools.pairwise(gaps))


@pytest.mark.parametrize("spread", [0.0, 0.02])
@pytest.mark.parametrize("factor", [1.3, 4.0])
def test_a_lasting_change_is_answered_once(spread: float, factor: float) -> None:
    """Plan 0 becomes slower in the middle; afterwards plan 1 stays."""
    for seed in range(20):
        used = run(
            400,
            lambda plan, iteration: factor if plan == 0 and iteration > 200 else 1.0 if plan == 0 else 1.1,
            noise_of(seed, spread),
        )
        assert changes(used) == [203], "found in the first slow iteration, searched in the second"


def test_an_alarm_ends_the_waiting() -> None:
    """A small change has to wait, a large one has not; how large it must be grows with plans that brought nothing."""
    state = after_nothing(ReplanState(4), 10)
    assert not may_search(POLICY, state, 11, of(1.0), of(1.1))
    assert may_search(POLICY, state, 11, of(1.0), of(1.2))
    assert may_search(POLICY, state, 11, of(1.2), of(1.0)), "links that become faster"
    assert may_search(POLICY, state, 11, of(1.0, 1.06), of(1.0, 1.0)), "and lie on no critical path"
    assert not may_search(POLICY, state, 11, of(1.0, 1.04), of(1.0, 1.0))
    for _ in range(5):
        state = after_change(state, 11, [1.0])
        for _ in range(TRIAL):
            state = after_iteration(POLICY, state, 11, 1.0)
    assert not may_search(POLICY, state, 21, of(1.0), of(4.0))
    assert may_search(POLICY, state, state.quiet_until, of(1.0), of(1.1))


@pytest.mark.parametrize(
    ("offer", "worth"),
    [
        (Offer(1.0, 0.95, 0.0, 1), True),
        (Offer(1.0, 0.951, 0.0, 1000), False),
        (Offer(10.0, 5.0, 24.0, 10), True),
        (Offer(10.0, 5.0, 26.0, 10), False),
        (Offer(10.0, 11.0, 0.0, 10), False),
    ],
)
def test_a_plan_has_to_save_a_fraction_and_twice_what_the_change_costs(offer: Offer, worth: bool) -> None:
    assert is_worth_it(POLICY, offer) == worth


@pytest.mark.parametrize(("after", "wait", "quiet"), [(0.97, 4, 14), (0.98, 8, 14)])
def test_a_trial(after: float, wait: int, quiet: int) -> None:
    """Half of the gain has to be measured; the median counts, and until then nothing is searched."""
    state = after_change(ReplanState(4), 7, [9.0, 1.0, 1.1, 1.0])
    for number, seconds in enumerate([3.0, after, 0.9], 8):
        assert not may_search(POLICY, state, number, of(1.0), of(9.0))
        state = after_iteration(POLICY, state, number, seconds)
    assert (state.wait, state.quiet_until, state.trial) == (wait, quiet, None)
