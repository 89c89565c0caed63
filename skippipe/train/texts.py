"""The blocks of text of a run, checked against the model, as tensors for each microbatch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skippipe.data.blocks import Blocks, Order, Tokens
from skippipe.data.text import load_training, load_validation, vocabulary
from skippipe.errors import InputError
from skippipe.train.config import TrainJob


@dataclass(frozen=True)
class Texts:
    """What a rank with a source reads."""

    training: Blocks
    validation: Blocks
    """as many as fill whole microbatches"""
    size: int
    """sequences of a microbatch"""

    @property
    def validation_microbatches(self) -> int:
        """Microbatches of one validation."""
        return len(self.validation) // self.size

    def sha256(self) -> str:
        """Hash of all blocks: equal where two ranks read the same."""
        digest = hashlib.sha256(np.ascontiguousarray(self.training.tokens).tobytes())
        digest.update(np.ascontiguousarray(self.validation.tokens).tobytes())
        return digest.hexdigest()

    def training_batch(self, order: Order, iteration: int, microbatch: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels of a microbatch, each (b, s) int64; both numbers count from 0."""
        return _tensors(self.training.tokens[order.of(iteration, microbatch)])

    def validation_batch(self, microbatch: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels of a microbatch of the validation, each (b, s) int64."""
        return _tensors(self.validation.tokens[microbatch * self.size : (microbatch + 1) * self.size])


def load_texts(job: TrainJob, vocabulary_size: int, positions: int, ready: Path | None = None) -> Texts:
    """Read the text of a job.

    Args:
        job: the settings.
        vocabulary_size: tokens that the model knows.
        positions: the longest sequence that it takes.
        ready: a folder with `training.npy` and `validation.npy` if they have been read already.

    Raises:
        InputError: files that cannot be used, or that do not fit the model.

    """
    known = vocabulary(job.data)
    if known > vocabulary_size:
        raise InputError(
            f"model.vocab_size is {vocabulary_size}, at least the {known} entries of the tokenizer are expected"
        )
    if job.data.sequence > positions:
        raise InputError(
            f"data.sequence is {job.data.sequence}, at most model.max_position_embeddings ({positions}) is expected"
        )
    size = job.train.microbatch_size
    training, validation = (
        (load_training(job.data), load_validation(job.data))
        if ready is None
        else (Blocks.load(ready / "training.npy"), Blocks.load(ready / "validation.npy"))
    )
    whole = len(validation) // size * size
    if not whole:
        raise InputError(
            f"data.validation holds {len(validation)} sequences of {job.data.sequence} tokens, at least one "
            f"microbatch of {size} (train.microbatch_size) is expected"
        )
    return Texts(training, Blocks(validation.tokens[:whole]), size)


def _tensors(rows: Tokens | NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    blocks = torch.from_numpy(rows.astype(np.int64))
    return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()
