"""Which tokenizer belongs to a model: its own where none is named, and no other one."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from skippipe.data.config import DataConfig
from skippipe.data.corpus import Corpus
from skippipe.data.tokenizer import Encoder, load_encoder
from skippipe.errors import InputError

EXPECTED = "the model's own tokenizer is expected: data.tokenizer=null, or data.prepared of a text prepared with it"


def with_tokenizer_of(config: DataConfig, own: str | None, model: str) -> DataConfig:
    """Settings of a text for a model: with its tokenizer, where they name none.

    Args:
        config: the settings as they were given.
        own: the model's tokenizer, as `data.tokenizer` names one; None: it has none.
        model: what the model is called in messages.

    Raises:
        InputError: they ask for another tokenizer, or name none for a model that has none.

    """
    if config.prepared is not None:  # a text that has its tokenizer: see `check_tokenizer`
        return config
    if own is None:
        if config.tokenizer is None and config.vocabulary is None:
            raise InputError(f"data.tokenizer: expected the tokenizer of {model}, which holds none itself, got null")
        return config
    if config.vocabulary is not None:
        raise InputError(
            f"data.vocabulary: expected null, since {model} has a tokenizer of its own, got {config.vocabulary}"
        )
    if config.tokenizer is None:
        return dataclasses.replace(config, tokenizer=own)
    named, found = load_encoder(config), own_encoder(own)
    _check(named.json, found.json, f"data.tokenizer is {config.tokenizer}, which", model)
    return config


def check_tokenizer(corpus: Corpus, tokenizer_json: str | None, model: str) -> None:
    """Raise `InputError` unless a text is tokenised as a model's tokenizer does; None: that is not known."""
    if tokenizer_json is not None:
        _check(corpus.tokenizer_json, tokenizer_json, f"{corpus.folder}: its tokenizer", model)


def own_encoder(own: str) -> Encoder:
    """Load the tokenizer of a model; raises as `load_encoder` does."""
    return load_encoder(DataConfig(tokenizer=own))


def _check(theirs: str, ours: str, what: str, model: str) -> None:
    found = difference(theirs, ours)
    if found is not None:
        raise InputError(f"{what} is not that of {model}: {found}; {EXPECTED}")


def difference(theirs: str, ours: str) -> str | None:
    """Say in what two tokenizers, as JSON, treat a text differently; None where in nothing.

    Special tokens never come from a text: one that only one of the two has makes no difference, one that has two
    numbers does. How they cut, fill or decode texts, and what they put around them, does not count.
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
    """What a tokenizer makes of a text."""

    entries: Mapping[str, int]
    special: frozenset[str]
    rules: Mapping[str, Any]


def _read(tokenizer_json: str) -> _Behaviour:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    content = json.loads(tokenizer.to_str())  # as this version writes it, whichever has written it
    model, added = content["model"], content["added_tokens"]
    merges = model.pop("merges", None)
    if isinstance(model.get("vocab"), dict):  # entries; else there are scores beside
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
