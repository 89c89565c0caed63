"""What a stage that was lost is made of."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skippipe.remaining import taken_over
from skippipe.train.prepare.restoring import counterparts, neighbours, weights

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(SIZES, st.data())
def test_a_stage_is_taken_over(sizes: list[int], data: st.DataObject) -> None:
    """Every stage that had nodes has some, if there are enough; the others keep theirs; no node serves two."""
    numbers = iter(range(sum(sizes)))
    stages = [[next(numbers) for _ in range(size)] for size in sizes]
    lost = data.draw(st.sets(st.integers(0, max(sum(sizes) - 1, 0))))
    found = taken_over(stages, lost)
    left = [node for nodes in stages for node in nodes if node not in lost]
    assert sorted(node for nodes in found for node in nodes) == sorted(left)
    emptied = [s for s, nodes in enumerate(stages) if nodes and lost.issuperset(nodes)]
    spare = sum(max(len(set(nodes) - lost) - 1, 0) for nodes in stages)
    others = [stage for stage in emptied if stage]
    assert sum(bool(found[stage]) for stage in others) == min(len(others), spare)
    if 0 in emptied:
        assert not found[0]
    for stage, nodes in enumerate(stages):
        kept = [node for node in nodes if node not in lost]
        if stage not in emptied:
            assert found[stage] == kept[: len(found[stage])]
            assert bool(found[stage]) == bool(kept), "no stage is emptied for another"


@given(st.sets(st.integers(0, 9)), st.integers(0, 9))
def test_stages_beside_it(held: set[int], stage: int) -> None:
    found = neighbours(stage, sorted(held - {stage}))
    assert [other for other in found if other < stage] == sorted(o for o in held if o < stage)[-1:]
    assert [other for other in found if other > stage] == sorted(o for o in held if o > stage)[:1]


@given(st.integers(1, 12), st.integers(1, 12))
def test_layers_at_the_same_place(lost: int, other: int) -> None:
    found = counterparts(range(100, 100 + lost), range(other))
    assert list(found) == [*range(100, 100 + lost)]
    assert list(found.values()) == sorted(found.values())
    assert found[100] == 0
    if lost == other:
        assert list(found.values()) == [*range(other)]
    assert len(set(found.values())) == min(lost, other)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=2))
def test_weights_of_a_mean(squares: list[float]) -> None:
    found = weights(squares)
    assert sum(found) == pytest.approx(1.0)
    assert all(weight >= 0 for weight in found)
    if sum(squares) > 0:
        assert found == pytest.approx([square / sum(squares) for square in squares])


def test_norms_that_say_nothing() -> None:
    assert weights([0.0, 0.0]) == weights([math.inf, 1.0]) == weights([math.nan, 1.0]) == [0.5, 0.5]
