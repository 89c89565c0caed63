"""Copies of stages in the memory of other ranks: where they are, and what a lost stage is restored from."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from train.jobs import make_job

from skippipe.errors import InputError
from skippipe.model.memory import StageMemory
from skippipe.redundancy import copy_transfers, place_copies
from skippipe.train.launch.dry_run import copy_memory
from skippipe.train.loop.copies import youngest
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RedundancySpec


@st.composite
def held(draw: st.DrawFn) -> tuple[dict[int, frozenset[int]], list[int]]:
    """Who has which stages, each rank at least one; and the machine of each rank."""
    world, stages = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    served = [draw(st.sets(st.integers(0, stages - 1), min_size=1, max_size=2)) for _ in range(world)]
    current = {stage: frozenset(rank for rank, own in enumerate(served) if stage in own) for stage in range(stages)}
    return current, draw(st.lists(st.integers(0, 3), min_size=world, max_size=world))


@given(held(), st.integers(0, 3))
def test_who_keeps_copies(case: tuple[dict[int, frozenset[int]], list[int]], copies: int) -> None:
    """Never one that has the stage itself; on other machines, as long as there are any; as evenly as that allows."""
    current, machines = case
    kept = place_copies(current, machines, copies)
    assert 0 not in kept
    assert set(kept) == {stage for stage, ranks in current.items() if stage and ranks}
    load = Counter(rank for keepers in kept.values() for rank in keepers)
    for stage, keepers in kept.items():
        others = set(range(len(machines))) - current[stage]
        assert len(set(keepers)) == len(keepers) == min(copies, len(others))
        assert set(keepers) <= others
        own = {machines[rank] for rank in current[stage]}
        far = {machines[rank] for rank in others} - own
        assert len({machines[rank] for rank in keepers} - own) >= min(len(keepers), len(far)), "other machines first"
        for keeper in keepers:
            used = own | {machines[rank] for rank in keepers if rank != keeper}
            free = [rank for rank in others - set(keepers) if machines[rank] not in used or machines[keeper] in used]
            assert all(load[keeper] <= load[rank] + 1 for rank in free), "balanced"


@given(held(), st.integers(1, 3))
def test_transfers_of_copies(case: tuple[dict[int, frozenset[int]], list[int]], copies: int) -> None:
    """Each copy comes from a rank that has the stage."""
    current, machines = case
    kept, transfers = place_copies(current, machines, copies), copy_transfers(current, machines, copies)
    arriving = [(transfer.target, transfer.receiver) for transfer in transfers]
    assert sorted(arriving) == sorted((stage, rank) for stage, keepers in kept.items() for rank in keepers)
    assert all(t.source == t.target and t.sender in current[t.source] for t in transfers)


def test_copies_around_a_ring_take_two_rounds() -> None:
    """One rank for each stage: as many transfers at once as there are disjoint pairs."""
    transfers = copy_transfers({stage: frozenset({stage}) for stage in range(5)}, ["one machine"] * 5, 1)
    assert [(t.sender, t.receiver) for t in transfers] == [(1, 2), (3, 4), (2, 3), (4, 0)]


def test_memory_of_copies() -> None:
    """Twice where a copy is kept, and once where it comes from while it is sent."""
    sizes = [StageMemory(1, 10**stage, 0, 2 * 10**stage, 0, 0, 0) for stage in range(3)]
    held = [[0], [1], [2]]
    assert copy_transfers({stage: frozenset({stage}) for stage in range(3)}, "ttt", 1) == [(1, 1, 1, 2), (2, 2, 2, 0)]
    assert copy_memory(RedundancySpec(1, 10), held, sizes) == [2 * 300, 30, 2 * 30 + 300]
    assert copy_memory(RedundancySpec(0, 10), held, sizes) == [0, 0, 0]


def test_the_youngest_copy() -> None:
    """Whatever order ranks state theirs in, all choose the same one."""
    assert youngest([{1: 4, 2: 2}, {}, {1: 6}, {1: 6, 3: 0}]) == {1: (6, 2), 2: (2, 0), 3: (0, 3)}


@pytest.mark.parametrize(
    ("copies", "policy", "expected"),
    [(0, "copy", "at least 1 with runtime.lost_stage=copy"), (1, "average", "0 with runtime.lost_stage=average")],
)
def test_copies_that_nobody_uses(copies: int, policy: str, expected: str) -> None:
    job = make_job(train__redundancy=copies, runtime__lost_stage=policy)
    with pytest.raises(InputError, match=f"train.redundancy: expected {expected}, got {copies}"):
        resolve(job)
