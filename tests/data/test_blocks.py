"""Blocks: nothing lost in between, nothing twice; every microbatch its own."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skippipe.data.blocks import Blocks, Order, pack
from skippipe.errors import InputError


@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.lists(st.integers(1, 50), max_size=40), min_size=1, max_size=8), st.integers(1, 12))
def test_pack_keeps_every_token_in_order(documents: list[list[int]], sequence: int) -> None:
    joined = [token for document in documents for token in [*document, 0]]
    whole = len(joined) // (sequence + 1) * (sequence + 1)
    if not whole:
        with pytest.raises(InputError, match=rf"text holds {len(joined)} tokens, at least {sequence + 1}"):
            pack(documents, sequence, 0, "text")
        return
    blocks = pack(documents, sequence, 0, "text")
    assert blocks.sequence == sequence
    assert blocks.tokens.reshape(-1).tolist() == joined[:whole]


def test_blocks_survive_a_file(tmp_path: Path) -> None:
    blocks = Blocks(np.arange(30, dtype=np.int32).reshape(5, 6))
    blocks.save(tmp_path / "blocks.npy")
    loaded = Blocks.load(tmp_path / "blocks.npy")
    assert len(loaded) == 5
    assert (loaded.tokens == blocks.tokens).all()


@settings(derandomize=True, database=None, deadline=None)
@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 5), st.integers(0, 3))
def test_every_epoch_has_every_block_once(blocks: int, microbatches: int, size: int, seed: int) -> None:
    order = Order(blocks, microbatches, size, seed)
    epochs = 3
    iterations = -(-epochs * blocks // (microbatches * size))
    drawn = [int(b) for i in range(iterations) for m in range(microbatches) for b in order.of(i, m)]
    for epoch in range(epochs):
        assert Counter(drawn[epoch * blocks : (epoch + 1) * blocks]) == Counter(range(blocks))


def test_order_depends_on_the_seed_and_on_nothing_else() -> None:
    first, again, other = (Order(100, 4, 2, seed) for seed in (0, 0, 1))
    assert first.of(3, 2).tolist() == again.of(3, 2).tolist()
    assert [first.of(0, m).tolist() for m in range(4)] != [other.of(0, m).tolist() for m in range(4)]
    assert first.of(0, 0).tolist() != first.of(1, 0).tolist()
