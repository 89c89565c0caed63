"""The text of a run, checked against the model, as tensors of token ids per microbatch."""

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
from skippipe.data.model_tokenizer import check_tokenizer, own_encoder
from skippipe.errors import unexpected
from skippipe.model.folder import own_tokenizer
from skippipe.train.resolve.spec import RunSpec


@dataclass(frozen=True)
class TokenBatches:
    """What a rank with a source reads."""

    corpus: Corpus
    training: Blocks
    validation: Blocks
    """as many as fill complete microbatches"""
    microbatch_size: int
    """sequences"""
    seed: int
    """of the order of the text"""

    @property
    def validation_microbatches(self) -> int:
        """Microbatches per validation."""
        return len(self.validation) // self.microbatch_size

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
        """Equal where the training text consists of the same blocks, so that positions in it mean the same."""
        facts = [self.corpus.tokenizer_sha256, self.corpus.splits["training"].sha256, self.training.sequence]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def training_batch(self, position: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels, each (b, s) int64, of one microbatch of blocks from `position` on in shuffled order.

        Positions count all blocks that the training has used, from 0; see `BlockOrder`.
        """
        return self.training_batches(position, 1)[0]

    def training_batches(self, position: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """So many consecutive microbatches, as `training_batch` gives them, read at once."""
        chosen = BlockOrder(len(self.training), self.seed).at(position, count * self.microbatch_size)
        tokens, labels = self._tensors("training", self.training.tokens[chosen])
        return list(zip(tokens.chunk(count), labels.chunk(count), strict=True))

    def validation_batch(self, microbatch: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels of a microbatch of the validation, each (b, s) int64."""
        rows = self.validation.tokens[microbatch * self.microbatch_size : (microbatch + 1) * self.microbatch_size]
        return self._tensors("validation", rows)

    def _tensors(self, split: Split, rows: Tokens) -> tuple[Tensor, Tensor]:
        # Of a large text only a sample has been checked so far, and a token beyond the embedding would end the process.
        self.corpus.check_tokens(rows, self.corpus.folder / f"{split}.tokens")
        blocks = torch.from_numpy(rows.astype(np.int64))
        return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()


class ReadAhead:
    """Reads the next iteration's microbatches in a thread while one is trained."""

    def __init__(self, read: Callable[[int], list[tuple[Tensor, Tensor]]]) -> None:
        """Have `read` called with the number of an iteration."""
        self._read = read
        self._thread = ThreadPoolExecutor(1, "read ahead")
        self._next: tuple[int, Future[list[tuple[Tensor, Tensor]]]] | None = None

    def get(self, iteration: int) -> list[tuple[Tensor, Tensor]]:
        """Microbatches of an iteration; begins to read those of the next one."""
        ready = self._next
        found = ready[1].result() if ready is not None and ready[0] == iteration else self._read(iteration)
        self._next = (iteration + 1, self._thread.submit(self._read, iteration + 1))
        return found

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def open_batches(spec: RunSpec, vocabulary: int, positions: int, folder: Path) -> TokenBatches:
    """Open the text of a run.

    Args:
        spec: the run.
        vocabulary: size of the model's vocabulary.
        positions: the longest sequence that the model takes.
        folder: of the prepared text, as `skippipe.data.prepare.corpus_folder` gives it.

    Raises:
        InputError: the folder cannot be used, or the text does not fit the model.

    """
    corpus = open_corpus(folder)
    own = None if spec.model.folder is None else own_tokenizer(spec.model.folder)
    if own is not None:
        check_tokenizer(corpus, own_encoder(own).json, f"model.folder={spec.model.folder}")
    if corpus.vocabulary > vocabulary:
        raise unexpected("model.vocab_size", vocabulary, f"at least the {corpus.vocabulary} entries of the tokenizer")
    data, size = spec.data, spec.data.microbatch_size
    if data.sequence > positions:
        raise unexpected("data.sequence", data.sequence, f"at most model.max_position_embeddings ({positions})")
    corpus.verify(whole=data.text.verify == "whole")
    training = corpus.training(data.sequence)
    validation = corpus.validation(data.sequence, data.text.validation_blocks)
    complete = len(validation) // size * size
    if not complete:
        expected = f"at least one microbatch of {size} sequences (train.microbatch_size)"
        raise unexpected("data.validation", f"{len(validation)} of {data.sequence} tokens", expected)
    return TokenBatches(corpus, training, validation.subsample(complete), size, spec.seed)
