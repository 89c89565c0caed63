"""What moves between ranks where phases change, and the time predicted for it."""

import json

import pytest

from skippipe import Cluster
from skippipe.moves import Holding, Transfer, WeightBytes, change_phase, change_s, copy_sources, transfers_s
from skippipe.ranks import transfer_time

STAGE_LAYERS = [range(2), range(2, 4), range(4, 6)]
WEIGHTS = WeightBytes([10.0, 10.0, 20.0, 20.0, 30.0, 30.0], outside=5.0)


def served(**ranks: set[int]) -> dict[int, frozenset[int]]:
    return {int(stage.removeprefix("s")): frozenset(own) for stage, own in ranks.items()}


def seconds(sender: int, receiver: int, size: float) -> float:
    return 1.0 + size / 100 + abs(sender - receiver) / 1000


def test_stages_move_once_and_wait_for_their_ranks() -> None:
    holding = Holding(served(s0={0}, s1={1, 2}, s2={2, 3}), frozenset(range(4)))
    change = change_phase(holding, served(s0={0}, s1={1}, s2={2, 3}), range(6), STAGE_LAYERS, copy=False)
    assert [*change.moves, *change.copies] == []
    assert change.new == {4, 5}
    back = change_phase(change.after, served(s0={0}, s1={1, 2, 3}), range(4), STAGE_LAYERS, copy=False)
    # Rank 2 was left out of stage 1 for a phase, so that its weights are old.
    assert back.moves == [Transfer(1, 1, 1, 2), Transfer(1, 1, 1, 3)]
    assert back.after.current == served(s0={0}, s1={1, 2, 3}, s2={2, 3})
    assert back.after.joined == frozenset(range(6))
    state = 3 * 40.0
    assert change_s(back, STAGE_LAYERS, WEIGHTS, seconds) == pytest.approx(
        seconds(1, 2, state) + seconds(1, 3, state)  # rank 1 sends one after the other
    )


def test_disjoint_pairs_move_at_once() -> None:
    pairs = [Transfer(1, 1, 1, 2), Transfer(2, 3, 2, 4), Transfer(0, 2, 0, 4)]
    sizes = {0: 100.0, 1: 200.0, 2: 900.0}
    assert transfers_s(pairs, sizes.__getitem__, seconds) == pytest.approx(seconds(3, 4, 900) + seconds(2, 4, 100))
    assert transfers_s([Transfer(1, 3, 2, 3)], sizes.__getitem__, seconds) == 0.0


def test_state_is_of_joined_layers_and_stage_0_has_more() -> None:
    assert WEIGHTS.state(1, [2]) == 60.0
    assert WEIGHTS.state(0, [0, 1]) == 75.0
    holding = Holding(served(s0={0}, s1={1}), frozenset({0, 2}))
    change = change_phase(holding, served(s0={0}, s1={1, 2}), range(4), STAGE_LAYERS[:2], copy=False)
    assert change_s(change, STAGE_LAYERS, WEIGHTS, seconds) == seconds(1, 2, 60.0)


def test_copies_stay_within_a_stage_that_is_in_use() -> None:
    holding = Holding(served(s0={0}, s1={1, 2}), frozenset({0, 2}))
    change = change_phase(holding, served(s0={0}, s1={1, 2}), range(4), STAGE_LAYERS[:2], copy=True)
    assert change.copies == [Transfer(0, 0, 1, 0), Transfer(2, 1, 3, 1), Transfer(2, 2, 3, 2)]
    assert change_s(change, STAGE_LAYERS, WEIGHTS, seconds) == 0.0
    lower = Holding(served(s0={0}, s1={1}), frozenset({0, 1}))
    change = change_phase(lower, served(s0={0}, s1={1}), range(4), STAGE_LAYERS[:2], copy=True)
    assert change.copies == [Transfer(0, 0, 2, 1), Transfer(1, 0, 3, 1)]
    assert change_s(change, STAGE_LAYERS, WEIGHTS, seconds) == 2 * seconds(0, 1, 10.0)


def test_which_layers_are_copied() -> None:
    assert copy_sources([4, 5, 6, 7], [0, 1, 2, 3]) == {4: 0, 5: 1, 6: 2, 7: 3}
    assert copy_sources([3, 4], [0, 1, 2]) == {3: 0, 4: 1}
    assert copy_sources([2, 3], [0, 1, 4, 5]) == {2: 4, 3: 5}
    assert copy_sources([0, 1], []) == {}
    assert copy_sources([0, 2, 3], [1], [range(4)]) == {0: 1, 2: 1, 3: 1}


def test_transfers_take_the_links_of_the_cluster() -> None:
    node = {"forward_s": 1.0, "backward_s": 1.0, "loss_s": 1.0, "memory": 1}
    content = {
        "format": "skippipe.cluster/1", "nodes": [{"name": f"n{i}"} | node for i in range(3)], "overhead_s": 0.5,
        "latency_s": [[0, 1, 2], [3, 0, 4], [5, 6, 0]], "bandwidth": [[1, 10, 20], [30, 1, 40], [50, 60, 1]],
        "activation_bytes": 1.0,
    }  # fmt: skip
    transfer = transfer_time(Cluster.from_json(json.dumps(content)), [1, 1, 0])
    assert transfer(1, 0, 100.0) == pytest.approx(0.5 + 2 + 100 / 20), "over the first node of each rank"
    assert transfer(0, 1, 100.0) == pytest.approx(0.5 + 5 + 100 / 50)
