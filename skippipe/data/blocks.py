"""Packed blocks of tokens and the order of their use. No torch: arrays in, arrays out."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Blocks:
    """Packed tokens: each block holds `sequence` inputs and their next tokens; blocks are disjoint."""

    tokens: Tokens
    """shape (blocks, sequence + 1), memory-mapped if from a file"""

    @property
    def sequence(self) -> int:
        """Input tokens per block; labels are shifted by one."""
        return int(self.tokens.shape[1]) - 1

    def __len__(self) -> int:
        return len(self.tokens)

    def subsample(self, count: int) -> "Blocks":
        """At most `count` blocks, evenly spaced: different parts of a corpus may differ."""
        if count >= len(self):
            return self
        return Blocks(self.tokens[np.arange(count) * len(self) // count])


def pack(stream: Tokens, sequence: int) -> Blocks:
    """Divide a token stream into blocks of `sequence` + 1 without copying; the remainder is dropped.

    The result may be empty.
    """
    blocks = len(stream) // (sequence + 1)
    return Blocks(stream[: blocks * (sequence + 1)].reshape(blocks, sequence + 1))


@dataclass(frozen=True)
class BlockOrder:
    """The endless sequence of blocks of a training: each epoch is a permutation drawn from the seed.

    The number of blocks consumed is the complete data position, whatever the number of sources and the microbatch size.
    """

    blocks: int
    """blocks of the corpus, at least 1"""
    seed: int

    def at(self, first: int, count: int) -> NDArray[np.int64]:
        """Block numbers at positions `first` to `first + count - 1`, shape (count,)."""
        positions = np.arange(first, first + count)
        epochs = positions // self.blocks
        chosen = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            within = epochs == epoch
            chosen[within] = _permutation(self.blocks, self.seed, int(epoch))[positions[within] % self.blocks]
        return chosen


@lru_cache(maxsize=2)  # a microbatch may span two epochs
def _permutation(blocks: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(blocks)
