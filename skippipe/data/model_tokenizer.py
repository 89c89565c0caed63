"""The tokenizer for a model: its own by default, and no other."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from skippipe.data.config import DataConfig
from skippipe.data.corpus import Corpus
from skippipe.data.tokenizer import Encoder, load_encoder
from skippipe.errors import InputError, unexpected

EXPECTED = "expected the model's own tokenizer: data.tokenizer=null, or data.prepared of a corpus prepared with it"


def with_tokenizer_of(config: DataConfig, own: str | None, model: str) -> DataConfig:
    """Corpus settings for a model: with its tokenizer unless they name one.

    Args:
        config: the settings as given.
        own: the model's tokenizer, in the form of `data.tokenizer`; None: it has none.
        model: name of the model in messages.

    Raises:
        InputError: the settings name a different tokenizer, or none for a model without one.

    """
    if config.prepared is not None:  # has its own tokenizer: see `check_tokenizer`
        return config
    if own is None:
        if config.tokenizer is None and config.vocabulary is None:
            raise unexpected("data.tokenizer", None, f"the tokenizer of {model}, which comes without one")
        return config
    if config.vocabulary is not None:
        raise unexpected("data.vocabulary", config.vocabulary, f"null, since {model} has its own tokenizer")
    if config.tokenizer is None:
        return dataclasses.replace(config, tokenizer=own)
    named, found = load_encoder(config), own_encoder(own)
    _check(named.json, found.json, model, key="data.tokenizer")
    return config


def check_tokenizer(corpus: Corpus, tokenizer_json: str | None, model: str) -> None:
    """Raise `InputError` unless a corpus was tokenised with a tokenizer equivalent to the model's; None: unknown."""
    if tokenizer_json is not None:
        _check(corpus.tokenizer_json, tokenizer_json, model, file=str(corpus.folder))


def own_encoder(own: str) -> Encoder:
    """Load the tokenizer of a model; raises as `load_encoder` does."""
    return load_encoder(DataConfig(tokenizer=own))


def _check(theirs: str, ours: str, model: str, *, key: str | None = None, file: str | None = None) -> None:
    found = difference(theirs, ours)
    if found is not None:
        raise InputError(f"not the tokenizer of {model}: {found}", key=key, file=file, hint=EXPECTED)


def difference(theirs: str, ours: str) -> str | None:
    """Describe how two tokenizers, given as JSON, tokenise differently; None if they are equivalent.

    Special tokens never come from text: one that only one tokenizer has makes no difference, one with two different
    numbers does. Truncation, padding, decoding and post-processing are ignored.
    """
    if theirs == ours:
        return None
    first, second = (_read(text) for text in (theirs, ours))
    special = first.special | second.special
    for word in sorted(first.entries.keys() | second.entries.keys()):
        numbers = first.entries.get(word), second.entries.get(word)
        if numbers[0] != numbers[1] and (word not in special or None not in numbers):
            there, here = ("unknown" if number is None else f"token {number}" for number in numbers)
            return f"{word!r} is {there} there and {here} here"
    for part, value in first.rules.items():
        if second.rules.get(part) != value:
            return f"{part} differ" if part.endswith("s") else f"{part} differs"
    return None


@dataclasses.dataclass(frozen=True)
class _Behaviour:
    """Everything that determines how a tokenizer encodes text."""

    entries: Mapping[str, int]
    special: frozenset[str]
    rules: Mapping[str, Any]


def _read(tokenizer_json: str) -> _Behaviour:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    content = json.loads(tokenizer.to_str())  # normalised to this version's format
    model, added = content["model"], content["added_tokens"]
    merges = model.pop("merges", None)
    if isinstance(model.get("vocab"), dict):  # entries only; otherwise there are scores too
        del model["vocab"]
    ordinary = [{key: value for key, value in token.items() if key != "id"} for token in added if not token["special"]]
    return _Behaviour(
        tokenizer.get_vocab(with_added_tokens=True),
        frozenset(token["content"] for token in added if token["special"]),
        {
            "merges": merges,
            "model": model,
            "normalizer": content["normalizer"],
            "pre_tokenizer": content["pre_tokenizer"],
            "added tokens": sorted(ordinary, key=json.dumps),
        },
    )
