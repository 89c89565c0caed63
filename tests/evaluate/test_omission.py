"""Omissions and their layer paths."""

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from skippipe.errors import InputError
from skippipe.evaluate.omission import LayerPath, Partition, draw

SIZES = (2, 1, 1, 2)
NODES = {"a": 0, "b": 2, "3": 1}


def paths(
    omission: str, sizes: tuple[int, ...] = SIZES, draws: int = 1000, **partition: object
) -> tuple[LayerPath, ...]:
    return draw(omission, Partition(sizes, stage_of_node=NODES, **partition), draws, 0).paths  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("omission", "path"),
    [
        ("none", (0, 1, 2, 3, 4, 5)),
        ("every:2", (0, 1, 2, 4)),  # the second layer is of stage 0 and stays
        ("every:3", (0, 1, 3, 4)),
        ("last:2", (0, 1, 2, 3)),
        ("last:5", (0,)),
        ("layers:0+5", (1, 2, 3, 4)),
        ("stages:1+3", (0, 1, 3)),
        ("stages:0", (2, 3, 4, 5)),
        ("lost:3", (0, 1, 3, 4, 5)),  # a node's name goes before a number
        ("lost:b", (0, 1, 2, 4, 5)),
        ("lost:2", (0, 1, 2, 4, 5)),
        ("swap:0", (2, 0, 1, 3, 4, 5)),
        ("swap:2", (0, 1, 2, 4, 5, 3)),
    ],
)
def test_omissions_with_one_path(omission: str, path: LayerPath) -> None:
    assert draw(omission, Partition(SIZES, stage_of_node=NODES), 20, 0).paths == (path,)


def test_omissions_that_count_stages() -> None:
    assert paths("every:2", unit="stages") == ((0, 1, 3),)
    assert paths("last:2", unit="stages") == ((0, 1, 2),)
    assert set(paths("random:0.5", unit="stages")) == {(0, 1, 2), (0, 1, 3), (0, 1, 4, 5)}
    assert paths("every:2", keep_first=False) == ((0, 2, 4),)


cuts = some.builds(
    Partition,
    some.lists(some.integers(1, 3), min_size=2, max_size=8).map(tuple),
    unit=some.sampled_from(["layers", "stages"]),
    keep_first=some.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(cuts, some.floats(0.01, 0.99), some.integers(1, 30), some.integers(0, 2**63 - 1))
def test_random_omissions(partition: Partition, share: float, draws: int, seed: int) -> None:
    count = math.floor(share * len(partition.units) + 0.5)
    omittable = [unit for unit in partition.units if not partition.keep_first or unit.start >= partition.sizes[0]]
    omission = f"random:{share}"
    if not 1 <= count <= min(len(omittable), len(partition.units) - 1):
        with pytest.raises(InputError, match=f"got random:{share}$"):
            draw(omission, partition, draws, seed)
        return
    drawn = draw(omission, partition, draws, seed)
    assert len(drawn.paths) == len(set(drawn.paths)) == min(draws, math.comb(len(omittable), count))
    assert drawn.complete == (math.comb(len(omittable), count) <= draws)
    possible = {
        tuple(sorted(set(range(partition.layers)) - {layer for unit in chosen for layer in unit}))
        for chosen in combinations(omittable, count)
    }
    assert set(drawn.paths) <= possible
    assert draw(omission, partition, draws, seed) == drawn
    if not drawn.complete and draws > 1:
        assert draw(omission, partition, draws - 1, seed).paths == drawn.paths[:-1], (
            "more draws begin with the same ones"
        )


def test_every_layer_is_skipped_equally_often() -> None:
    partition = Partition((1,) * 24)
    drawn = draw("random:0.25", partition, 2000, 5).paths
    omitted_layers = [sum(layer not in path for path in drawn) for layer in range(24)]
    expected = 2000 * 6 / 23
    assert omitted_layers[0] == 0
    assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in omitted_layers[1:])
    assert drawn[:50] != draw("random:0.25", partition, 50, 6).paths


@pytest.mark.parametrize("keep_first", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_swaps_of_neighbours(count: int, keep_first: bool) -> None:
    stages = 7
    pairs = range(int(keep_first), stages - 1)
    expected = set()
    for chosen in combinations(pairs, count):
        if all(after - before > 1 for before, after in pairwise(chosen)):
            order = list(range(stages))
            for stage in chosen:
                order[stage], order[stage + 1] = order[stage + 1], order[stage]
            expected.add(tuple(order))
    assert set(paths(f"swaps:{count}", (1,) * stages, keep_first=keep_first)) == expected
    few = paths(f"swaps:{count}", (1,) * stages, draws=3, keep_first=keep_first)
    assert set(few) <= expected
    assert len(set(few)) == min(3, len(expected))


@pytest.mark.parametrize(
    ("omission", "message"),
    [
        ("", "expected none, random:SHARE"),
        ("none:1", "expected none, random"),
        ("all", "expected none, random"),
        ("random", "expected none, random"),
        ("lost:", "expected none, random"),
        ("random:", "expected a share between 0 and 1, exclusive"),
        ("random:1", "expected a share between 0 and 1"),
        ("random:nan", "expected a share between 0 and 1"),
        ("random:0.01", "expected at least half of one of 6 layers"),
        ("random:0.9", "expected at most 4 of 6 layers to skip (keep_first=true exempts stage 0), got random:0.9"),
        ("every:1", "expected an integer of at least 2, got every:1"),
        ("every:9", "expected one of 6 layers to skip"),
        ("last:0", "an integer of at least 1"),
        ("last:6", "at most 5 of 6 layers"),
        ("layers:6", "expected layers from 0 to 5, got layers:6"),
        ("layers:1+", "expected an integer of at least 0, got layers:1+"),
        ("layers:-1", "an integer of at least 0"),
        ("layers:0+1+2+3+4+5", "expected at least one layer to run"),
        ("stages:4", "expected stages from 0 to 3, got stages:4"),
        ("lost:0", "expected another stage than 0, which holds embedding and head"),
        ("lost:a", "expected another stage than 0, which holds embedding and head"),
        ("lost:nobody", "expected a stage number or a node name (a, b, 3)"),
        ("swap:3", "expected stages from 0 to 2, got swap:3"),
        ("swaps:2", "expected at most 1 swaps of 4 stages (keep_first=true"),
        ("swaps:0", "an integer of at least 1"),
    ],
)
def test_invalid_omissions(omission: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        draw(omission, Partition(SIZES, stage_of_node=NODES), 5, 0)
    assert (refused.value.key, refused.value.found) == ("omit", omission or "''")
    assert message in str(refused.value)
