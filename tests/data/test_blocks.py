"""Blocks lose and repeat nothing; their order visits each once per epoch, whoever asks for which part."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from skippipe.data.blocks import BlockOrder, pack


@settings(derandomize=True, database=None, deadline=None)
@given(st.integers(0, 200), st.integers(1, 12))
def test_blocks_hold_every_token_in_order(tokens: int, sequence: int) -> None:
    stream = np.arange(tokens, dtype=np.uint16)
    blocks = pack(stream, sequence)
    assert blocks.sequence == sequence
    assert len(blocks) == tokens // (sequence + 1)
    assert blocks.tokens.reshape(-1).tolist() == list(range(len(blocks) * (sequence + 1)))


@settings(derandomize=True, database=None, deadline=None)
@given(st.integers(1, 200), st.integers(1, 250))
def test_subsample_is_evenly_spaced(blocks: int, count: int) -> None:
    """Starting at the first block, with gaps that differ by at most one."""
    taken = pack(np.arange(2 * blocks, dtype=np.uint16), 1).subsample(count).tokens[:, 0] // 2
    assert len(taken) == min(count, blocks)
    assert taken[0] == 0
    gaps = set(np.diff([*taken.tolist(), blocks]).tolist())
    assert max(gaps) - min(gaps) <= 1


@settings(derandomize=True, database=None, deadline=None)
@given(st.integers(1, 60), st.integers(0, 3), st.integers(1, 150))
def test_every_epoch_has_every_block_once(blocks: int, seed: int, at_a_time: int) -> None:
    order, epochs = BlockOrder(blocks, seed), 3
    drawn = [int(b) for first in range(0, epochs * blocks, at_a_time) for b in order.at(first, at_a_time)]
    for epoch in range(epochs):
        assert Counter(drawn[epoch * blocks : (epoch + 1) * blocks]) == Counter(range(blocks))


@settings(derandomize=True, database=None, deadline=None)
@given(
    blocks=st.integers(1, 40),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_sources_share_the_order_without_overlap(blocks: int, runs: list[tuple[int, int, int]]) -> None:
    """Each run: sources, microbatches per source, blocks per microbatch; the position carries over."""
    order, position = BlockOrder(blocks, 7), 0
    used: list[int] = []
    for sources, microbatches, size in runs:
        of_source = [
            {m: order.at(position + m * size, size) for m in range(s, sources * microbatches, sources)}
            for s in range(sources)
        ]
        together = {m: drawn for own in of_source for m, drawn in own.items()}
        assert len(together) == sum(map(len, of_source)) == sources * microbatches
        used += [int(b) for m in sorted(together) for b in together[m]]
        position += sources * microbatches * size
    assert used == BlockOrder(blocks, 7).at(0, position).tolist()


def test_order_depends_on_the_seed() -> None:
    first, again, other = (BlockOrder(100, seed) for seed in (0, 0, 1))
    assert first.at(30, 50).tolist() == again.at(30, 50).tolist()
    assert first.at(0, 100).tolist() != other.at(0, 100).tolist()
    assert first.at(0, 100).tolist() != first.at(100, 100).tolist()
