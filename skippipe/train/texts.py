"""The blocks of text of a run, checked against the model, as tensors for each microbatch."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from skippipe.data.blocks import BlockOrder, Blocks, Tokens
from skippipe.data.corpus import Corpus, Split, open_corpus
from skippipe.errors import InputError
from skippipe.train.config import TrainJob
from skippipe.train.tokenizer import check_text


@dataclass(frozen=True)
class Texts:
    """What a rank with a source reads."""

    corpus: Corpus
    training: Blocks
    validation: Blocks
    """as many as fill whole microbatches"""
    size: int
    """sequences of a microbatch"""
    seed: int
    """of the order of the text"""

    @property
    def validation_microbatches(self) -> int:
        """Microbatches of one validation."""
        return len(self.validation) // self.size

    @property
    def tokenizer_json(self) -> str:
        """The tokenizer, as `tokenizers` writes it."""
        return self.corpus.tokenizer_json

    @property
    def sha256(self) -> str:
        """Equal where two ranks read the same blocks; nothing is read for it."""
        facts = [self.corpus.sha256, self.training.sequence, len(self.training), len(self.validation)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def training_sha256(self) -> str:
        """Equal where the text to train on consists of the same blocks, so that a position in it means the same."""
        facts = [self.corpus.tokenizer_sha256, self.corpus.splits["training"].sha256, self.training.sequence]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def training_batch(self, place: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels, each (b, s) int64, of the `size` blocks from `place` on in the order of the text.

        Places count all blocks that the training has used, from 0; see `BlockOrder`.
        """
        return self.training_batches(place, 1)[0]

    def training_batches(self, place: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """So many microbatches one after the other, as `training_batch` gives them, read in one go."""
        chosen = BlockOrder(len(self.training), self.seed).at(place, count * self.size)
        tokens, labels = self._tensors("training", self.training.tokens[chosen])
        return list(zip(tokens.chunk(count), labels.chunk(count), strict=True))

    def validation_batch(self, microbatch: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels of a microbatch of the validation, each (b, s) int64."""
        rows = self.validation.tokens[microbatch * self.size : (microbatch + 1) * self.size]
        return self._tensors("validation", rows)

    def _tensors(self, split: Split, rows: Tokens) -> tuple[Tensor, Tensor]:
        # Of a large text a sample has been looked at so far, and a token that no embedding has would end the process.
        self.corpus.check_tokens(rows, self.corpus.folder / f"{split}.tokens")
        blocks = torch.from_numpy(rows.astype(np.int64))
        return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()


class ReadAhead:
    """Reads the next iteration's microbatches in a thread of its own while one is trained."""

    def __init__(self, read: Callable[[int], list[tuple[Tensor, Tensor]]]) -> None:
        """Have `read` called with the number of an iteration."""
        self._read = read
        self._thread = ThreadPoolExecutor(1, "read ahead")
        self._next: tuple[int, Future[list[tuple[Tensor, Tensor]]]] | None = None

    def get(self, iteration: int) -> list[tuple[Tensor, Tensor]]:
        """Give what is read for an iteration, and begin with the one after it."""
        ready = self._next
        found = ready[1].result() if ready is not None and ready[0] == iteration else self._read(iteration)
        self._next = (iteration + 1, self._thread.submit(self._read, iteration + 1))
        return found

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def load_texts(job: TrainJob, vocabulary_size: int, positions: int, folder: Path) -> Texts:
    """Open the text of a job.

    Args:
        job: the settings.
        vocabulary_size: tokens that the model knows.
        positions: the longest sequence that it takes.
        folder: in which the text lies prepared; `skippipe.data.prepare.corpus_folder` gives it.

    Raises:
        InputError: a folder that cannot be used, or a text that does not fit the model.

    """
    corpus = open_corpus(folder)
    check_text(job, corpus)
    if corpus.vocabulary > vocabulary_size:
        raise InputError(
            f"model.vocab_size is {vocabulary_size}, at least the {corpus.vocabulary} entries of the tokenizer are "
            f"expected"
        )
    if job.data.sequence > positions:
        raise InputError(
            f"data.sequence is {job.data.sequence}, at most model.max_position_embeddings ({positions}) is expected"
        )
    corpus.verify(whole=job.data.verify == "whole")
    size = job.train.microbatch_size
    training = corpus.training(job.data.sequence)
    validation = corpus.validation(job.data.sequence, job.data.validation_blocks)
    whole = len(validation) // size * size
    if not whole:
        raise InputError(
            f"data.validation holds {len(validation)} sequences of {job.data.sequence} tokens, at least one "
            f"microbatch of {size} (train.microbatch_size) is expected"
        )
    return Texts(corpus, training, validation.subsample(whole), size, job.train.seed)
