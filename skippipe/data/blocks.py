"""Blocks of tokens, and which of them each microbatch gets. No torch: arrays in, arrays out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skippipe.errors import InputError

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Blocks:
    """Packed text: every block is a run of `sequence` inputs and their next tokens, no token in two blocks."""

    tokens: Tokens
    """shape (blocks, sequence + 1)"""

    @property
    def sequence(self) -> int:
        """Tokens that a model reads of a block; the labels are the same ones moved by one."""
        return int(self.tokens.shape[1]) - 1

    def __len__(self) -> int:
        return len(self.tokens)

    def save(self, path: Path) -> None:
        """Write the blocks to a `.npy` file."""
        np.save(path, self.tokens, allow_pickle=False)

    @staticmethod
    def load(path: Path) -> "Blocks":
        """Map what `save` wrote into memory."""
        return Blocks(np.load(path, mmap_mode="r", allow_pickle=False))


def pack(documents: Sequence[Sequence[int]], sequence: int, end_of_text: int, what: str) -> Blocks:
    """Join documents, each ended by `end_of_text`, and cut them into blocks of `sequence` + 1 tokens.

    What is left over at the end is dropped. `what` names the documents where they do not fill a single block.
    """
    joined = np.concatenate([np.array([*document, end_of_text], dtype=np.int32) for document in documents])
    blocks = len(joined) // (sequence + 1)
    if not blocks:
        raise InputError(f"{what} holds {len(joined)} tokens, at least {sequence + 1} (data.sequence + 1) are expected")
    return Blocks(joined[: blocks * (sequence + 1)].reshape(blocks, sequence + 1))


@dataclass(frozen=True)
class Order:
    """Which blocks each microbatch trains on: in every epoch each block once, in an order drawn from the seed."""

    blocks: int
    """blocks of the text"""
    microbatches: int
    """microbatches of an iteration"""
    size: int
    """blocks of a microbatch"""
    seed: int

    def of(self, iteration: int, microbatch: int) -> NDArray[np.int64]:
        """Block numbers of a microbatch, shape (size,); `microbatch` counts from 0 within the iteration."""
        first = (iteration * self.microbatches + microbatch) * self.size
        places = np.arange(first, first + self.size)
        chosen = np.empty(self.size, dtype=np.int64)
        for epoch in np.unique(places // self.blocks):
            here = places // self.blocks == epoch
            chosen[here] = self._permutation(int(epoch))[places[here] % self.blocks]
        return chosen

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        return np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(self.blocks)
