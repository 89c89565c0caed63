"""Which rank is so slow that the others are better off without it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skippipe.train.loop.slow_nodes import SlowRank, slowest_rank

STAGES = [[0, 1], [2, 3]]
EACH = [0, 1, 2, 3]
FACTORS = st.floats(0.1, 100.0)
NODES = st.lists(FACTORS, min_size=4, max_size=4)


@given(NODES, st.floats(1.01, 50.0))
def test_it_is_far_from_the_usual_one(factors: list[float], most: float) -> None:
    found = slowest_rank(dict(enumerate(factors)), STAGES, EACH, most)
    usual = sorted(factors)[1]
    if found is None:
        assert max(factors) / usual <= most
    else:
        assert factors[found.rank] == max(factors)
        assert found.slowdown == pytest.approx(max(factors) / usual)
        assert found.slowdown > most


@given(NODES, FACTORS, st.floats(1.01, 50.0))
def test_a_plan_that_is_wrong_for_all_says_nothing(factors: list[float], scale: float, most: float) -> None:
    scaled = {node: factor * scale for node, factor in enumerate(factors)}
    one, other = slowest_rank(dict(enumerate(factors)), STAGES, EACH, most), slowest_rank(scaled, STAGES, EACH, most)
    ratio = max(factors) / sorted(factors)[1]
    if not math.isclose(ratio, most):
        assert (one is None) == (other is None)
    assert slowest_rank(dict.fromkeys(EACH, scale), STAGES, EACH, most) is None


@pytest.mark.parametrize(
    ("stages", "rank_of", "found"),
    [
        (STAGES, EACH, SlowRank(3, 20.0)),
        ([[0, 1, 2], [3]], EACH, None),  # the only node of a stage
        (STAGES, [0, 1, 1, 1], None),  # the rank serves all nodes of a stage
        (STAGES, [0, 1, 0, 1], SlowRank(1, 20.0)),
        ([[0, 1], [], [2, 3]], EACH, SlowRank(3, 20.0)),  # a stage that is absent needs no node
    ],
)
def test_every_stage_keeps_a_node(stages: list[list[int]], rank_of: list[int], found: SlowRank | None) -> None:
    assert slowest_rank({0: 1.0, 1: 1.0, 2: 1.0, 3: 20.0}, stages, rank_of, 10.0) == found


def test_two_nodes() -> None:
    assert slowest_rank({0: 1.0, 1: 11.0}, [[0, 1]], [0, 1], 10.0) == SlowRank(1, 11.0)
    assert slowest_rank({}, STAGES, EACH, 10.0) is None
