"""Blocks of tokens, and the order in which they are used. No torch: arrays in, arrays out."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Blocks:
    """Packed text: every block is a run of `sequence` inputs and their next tokens, no token in two blocks."""

    tokens: Tokens
    """shape (blocks, sequence + 1), mapped into memory where it comes from a file"""

    @property
    def sequence(self) -> int:
        """Tokens that a model reads of a block; the labels are the same ones moved by one."""
        return int(self.tokens.shape[1]) - 1

    def __len__(self) -> int:
        return len(self.tokens)

    def spread(self, count: int) -> "Blocks":
        """At most `count` blocks, evenly spread: a text may consist of parts that differ."""
        if count >= len(self):
            return self
        return Blocks(self.tokens[np.arange(count) * len(self) // count])


def cut(stream: Tokens, sequence: int) -> Blocks:
    """Cut a stream of tokens into blocks of `sequence` + 1, without copying; what is left over at the end is dropped.

    There may be no block at all.
    """
    blocks = len(stream) // (sequence + 1)
    return Blocks(stream[: blocks * (sequence + 1)].reshape(blocks, sequence + 1))


@dataclass(frozen=True)
class Order:
    """The endless sequence of blocks that a training uses: in every epoch each once, in an order drawn from the seed.

    Places in it count from 0. How many of them a training has used is its whole position in the text, whatever the
    number of its sources and the size of its microbatches.
    """

    blocks: int
    """blocks of the text, at least 1"""
    seed: int

    def at(self, first: int, count: int) -> NDArray[np.int64]:
        """Block numbers at the places `first` to `first + count - 1`, shape (count,)."""
        places = np.arange(first, first + count)
        epochs = places // self.blocks
        chosen = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            chosen[here] = _permutation(self.blocks, self.seed, int(epoch))[places[here] % self.blocks]
        return chosen


@lru_cache(maxsize=2)  # a microbatch may lie across the end of an epoch
def _permutation(blocks: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(blocks)
