"""Tokenizers: the bundled one, a file, one of transformers or of the hub, or one trained on the corpus."""

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from skippipe.data.blocks import Tokens
from skippipe.data.chunks import Chunk
from skippipe.data.config import DataConfig
from skippipe.errors import InputError, first_line, unexpected

END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
"""Common end-of-text tokens, for tokenizers that do not declare one; the first known one is used."""
UINT16_ENTRIES = 2**16
TRIALS = ("the end.\n", "of", "A1\n", "12 b", '"x"\n', "(y)", "é…\n", "'s", "-\n", "<z>")
"""Line ends and line starts to test `splits_at_newlines`."""


@dataclass(frozen=True)
class Encoder:
    """A tokenizer with an end-of-text token."""

    tokenizer: Tokenizer
    end_of_text: int
    json: str
    """the tokenizer in its file format"""

    @cached_property
    def vocabulary(self) -> int:
        """Vocabulary size; all tokens are below it."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def dtype(self) -> str:
        """The smallest dtype that holds the tokens."""
        return "uint16" if self.vocabulary <= UINT16_ENTRIES else "uint32"

    def encode(self, chunks: Sequence[Chunk]) -> Tokens:
        """Tokens of the chunks, with the end-of-text token after each document.

        Text never becomes special tokens. Raises `InputError` if the tokenizer fails.
        """
        end = np.array([self.end_of_text], np.dtype(self.dtype))
        arrays: list[Tokens] = []
        for chunk, tokens in zip(chunks, self._tokens([chunk.text for chunk in chunks]), strict=True):
            if self._is_special[tokens].any():
                arrays += self._without_special(chunk.text, tokens)
            else:
                arrays.append(tokens)
            if chunk.last:
                arrays.append(end)
        return np.concatenate(arrays)

    def _tokens(self, texts: list[str]) -> list[Tokens]:
        try:
            encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # noqa: BLE001 - tokenizers raises no other kind
            raise InputError(f"cannot tokenise the corpus: {first_line(error)}", key="data.tokenizer") from None
        return [np.array(encoding.ids, np.dtype(self.dtype)) for encoding in encoded]

    @cached_property
    def _special(self) -> dict[int, str]:
        """Special tokens longer than a character, and their text."""
        known = self.tokenizer.get_added_tokens_decoder()
        written = {number: token.content for number, token in known.items() if token.special}
        written[self.end_of_text] = self.tokenizer.id_to_token(self.end_of_text) or ""
        return {number: word for number, word in written.items() if len(word) > 1}

    @cached_property
    def _is_special(self) -> NDArray[np.bool_]:
        """By number."""
        table = np.zeros(self.vocabulary, dtype=np.bool_)
        table[list(self._special)] = True
        return table

    def _without_special(self, text: str, tokens: Tokens) -> list[Tokens]:
        """Tokens of a text that contains the text of special tokens.

        Some models (Unigram, WordLevel) have them as ordinary entries; splitting the word avoids a match.
        """
        found = [self._special[number] for number in set(tokens[self._is_special[tokens]].tolist())]
        written = [re.escape(word) for word in sorted(found, key=len, reverse=True) if word in text]
        if not written:  # the unknown token
            return [tokens]
        cuts = [match.start() + 1 for match in re.finditer("|".join(written), text)]
        return self._tokens([text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])])

    def splits_at_newlines(self) -> bool:
        """Whether lines can be tokenised separately, as with byte-level tokenizers but not with a prepended prefix."""

        def ids(text: str) -> list[int]:
            return [int(token) for token in self._tokens([text])[0]]

        return all(
            ids(left + right) == ids(left) + ids(right) for left in TRIALS if left.endswith("\n") for right in TRIALS
        )


def load_encoder(config: DataConfig) -> Encoder:
    """Load the tokenizer of the settings; never unpickles or runs code of it.

    Raises:
        InputError: no such tokenizer, or an unusable one; the message names key and value.

    """
    name = config.tokenizer
    if name is None:
        return read_encoder(Path(str(resources.files("skippipe.data") / "tokenizer.json")))
    path = Path(name)
    if path.is_file():
        return read_encoder(path)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        return _checked(_from_file(path / "tokenizer.json"), _stated_end(path), name)
    check_tokenizer(config)
    return _from_transformers(name)


def read_encoder(path: Path) -> Encoder:
    """Read a tokenizer.json; raises as `load_encoder` does."""
    return _checked(_from_file(path), None, str(path))


def check_tokenizer(config: DataConfig) -> None:
    """Raise `InputError` if `data.tokenizer` names a missing file."""
    name = config.tokenizer
    if name is not None and not Path(name).exists() and (name.endswith(".json") or name.startswith((".", "/", "~"))):
        raise InputError(f"no such file: {name}", key="data.tokenizer")


def _checked(tokenizer: Tokenizer, end_of_text: str | None, name: str) -> Encoder:
    """Make an encoder of a tokenizer, without truncation and padding.

    `end_of_text` is its end-of-text token; None: one of `END_OF_TEXT`.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        tokens = tokenizer.encode("a text", add_special_tokens=False).ids
    except Exception as error:  # noqa: BLE001 - tokenizers raises no other kind
        raise InputError(f"{name} cannot tokenise text: {first_line(error)}", key="data.tokenizer") from None
    if not tokens:
        raise InputError(f"{name} gives no tokens", key="data.tokenizer")
    candidates = END_OF_TEXT if end_of_text is None else (end_of_text,)
    number = next((x for x in map(tokenizer.token_to_id, candidates) if x is not None), None)
    if number is None:
        raise InputError(f"{name} has no end-of-text token ({', '.join(candidates)})", key="data.tokenizer")
    added = tokenizer.get_added_tokens_decoder().get(number)
    if added is not None and not added.special:
        tokenizer.add_special_tokens([AddedToken(added.content, normalized=False)])
    tokenizer.encode_special_tokens = True  # special tokens in text are text
    return Encoder(tokenizer, number, tokenizer.to_str())


def train_encoder(texts: Iterable[Sequence[str]], entries: int) -> Encoder:
    """Train byte-level BPE with at most `entries` entries; entry 0 is end-of-text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=[END_OF_TEXT[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return _checked(tokenizer, None, "the trained one")


def _from_file(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))  # some editors add a byte order mark
    except Exception as error:  # noqa: BLE001 - tokenizers raises no other kind
        raise unexpected("data.tokenizer", path, "a tokenizer.json", hint=first_line(error)) from None


def _stated_end(folder: Path) -> str | None:
    """End-of-text token declared in `tokenizer_config.json`, if any."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stated: Any = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8-sig")).get("eos_token")
        stated = stated.get("content") if isinstance(stated, dict) else stated
        return stated if isinstance(stated, str) else None
    return None


def _from_transformers(name: str) -> Encoder:
    # Imported late: it takes seconds, and most tokenizers do without.
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        loaded: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        backend = loaded.backend_tokenizer
    except Exception as error:  # noqa: BLE001 - no file, no network, no such name, no fast tokenizer: of many kinds
        expected = "a tokenizer.json, a transformers folder or a hub name"
        raise unexpected("data.tokenizer", name, expected, hint=first_line(error)) from None
    return _checked(backend, loaded.eos_token, name)
