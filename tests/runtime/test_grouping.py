"""Grouping of microbatches: routes are kept, and passes are within the limit."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from skippipe.runtime.grouping import even_parts, group_passes

ROUTES = st.dictionaries(
    st.integers(0, 99), st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=6), min_size=1, max_size=24
)


@given(routes=ROUTES, most=st.integers(1, 30))
def test_every_microbatch_follows_its_route(routes: dict[int, list[int]], most: int) -> None:
    passes = group_passes(routes, most)
    gone: dict[int, list[int]] = {number: [] for number in routes}
    for part in passes:
        assert 1 <= len(part.microbatches) <= most
        assert len(set(part.microbatches)) == len(part.microbatches)
        for number in part.microbatches:
            gone[number].append(part.stage)
    assert gone == routes


@given(
    skipped=st.lists(st.sets(st.integers(1, 5)), min_size=1, max_size=24),
    most=st.integers(1, 30),
)
def test_increasing_routes_take_the_fewest_passes(skipped: list[set[int]], most: int) -> None:
    """Whichever stages they skip: one round per stage."""
    routes = {number: [s for s in range(6) if s not in left_out] for number, left_out in enumerate(skipped)}
    visits = Counter(stage for stages in routes.values() for stage in stages)
    assert len(group_passes(routes, most)) == sum(-(-count // most) for count in visits.values())


def test_one_swapped_route_costs_one_more_pass() -> None:
    routes = {0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [0, 2, 1, 3]}
    assert len(group_passes(routes, 8)) == 5


@given(count=st.integers(0, 40), most=st.integers(1, 12))
def test_parts_are_even(count: int, most: int) -> None:
    parts = even_parts(range(count), most)
    assert [number for part in parts for number in part] == list(range(count))
    assert len(parts) == -(-count // most)
    sizes = {len(part) for part in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1
