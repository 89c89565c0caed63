"""The model's tokenizer is the default, and others are detected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data.texts import shipped_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from skippipe.data.config import DataConfig
from skippipe.data.model_tokenizer import check_tokenizer, difference, with_tokenizer_of
from skippipe.data.prepare import prepare
from skippipe.errors import InputError

Content = dict[str, Any]


def swap_words(content: Content) -> None:
    swap(content, "a", "b")


def swap(content: Content, one: str, two: str) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]


def swap_merges(content: Content) -> None:
    merges = content["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def add(content: Content, number: int, *, special: bool, word: str = "<new>") -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({"id": number, "content": word, "special": special, **flags})


OTHERS: dict[str, tuple[Callable[[Content], Any], str]] = {
    "words": (swap_words, r"^'a' is token \d+ there and token \d+ here$"),
    "merges": (swap_merges, "^merges differ$"),
    "normalizer": (lambda content: content.update(normalizer={"type": "NFKC"}), "^normalizer differs$"),
    "pre_tokenizer": (
        lambda content: content["pre_tokenizer"].update(add_prefix_space=True),
        "^pre_tokenizer differs$",
    ),
    "model": (lambda content: content["model"].update(ignore_merges=True), "^model differs$"),
    "added word": (lambda content: add(content, 1024, special=False), "^'<new>' is token 1024 there and unknown here$"),
}
ALIKE: dict[str, Callable[[Content], Any]] = {
    "written otherwise": lambda content: content["model"].update(
        merges=[pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]]
    ),
    "cut and filled": lambda content: content.update(
        truncation={"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    ),
    "decoder": lambda content: content.update(decoder=None),
    "put around": lambda content: content.update(post_processor=None),
    "special token": lambda content: add(content, 1024, special=True, word="<pad>"),
}


def changed(change: Callable[[Content], Any]) -> str:
    content = json.loads(shipped_tokenizer().to_str())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize("case", OTHERS)
def test_different_tokenizers(case: str) -> None:
    change, message = OTHERS[case]
    found = difference(changed(change), shipped_tokenizer().to_str())
    assert found is not None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found)
    assert difference(shipped_tokenizer().to_str(), changed(change)) is not None


@pytest.mark.parametrize("case", ALIKE)
def test_equivalent_tokenizers(case: str) -> None:
    other = changed(ALIKE[case])
    assert other != shipped_tokenizer().to_str()
    assert difference(other, shipped_tokenizer().to_str()) is None


def test_scores_and_special_tokens_with_different_numbers() -> None:
    def unigram(score: float) -> str:
        made = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", score)], unk_id=0))
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        return made.to_str()

    assert difference(unigram(-1.0), unigram(-2.0)) == "model differs"
    other = changed(lambda content: swap(content, "<|endoftext|>", "~"))
    found = difference(other, shipped_tokenizer().to_str())
    assert found is not None
    assert found.startswith("'<|endoftext|>' is token ")


def test_corpus_settings_for_a_model(tmp_path: Path) -> None:
    own, alike, other = (str(tmp_path / name) for name in ("own.json", "alike.json", "other.json"))
    for name, change in ((own, dict), (alike, ALIKE["special token"]), (other, swap_merges)):
        Path(name).write_text(changed(change))
    plain = DataConfig()
    assert with_tokenizer_of(plain, own, "M") == DataConfig(tokenizer=own)
    for config in (DataConfig(tokenizer=own), DataConfig(tokenizer=alike), DataConfig(prepared="x")):
        assert with_tokenizer_of(config, own, "M") == config
    for config in (DataConfig(tokenizer=other), DataConfig(vocabulary=300), DataConfig(prepared="x")):
        assert with_tokenizer_of(config, None, "M") == config
    refused = {
        "data.tokenizer: not the tokenizer of M: merges differ; expected the model's own": DataConfig(tokenizer=other),
        "data.vocabulary: expected null, since M has its own tokenizer, got 300": DataConfig(vocabulary=300),
    }
    for message, config in refused.items():
        with pytest.raises(InputError, match=message):
            with_tokenizer_of(config, own, "M")
    with pytest.raises(
        InputError, match=r"data.tokenizer: expected the tokenizer of M, which comes without one, got null"
    ):
        with_tokenizer_of(plain, None, "M")


def test_a_prepared_corpus(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(changed(swap_merges))
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("Peace.\n")
    files: dict[str, Any] = {"training": [str(tmp_path / "a.txt")], "validation": [str(tmp_path / "b.txt")]}
    corpus = prepare(DataConfig(**files, tokenizer=str(tmp_path / "other.json")), tmp_path / "out")
    check_tokenizer(corpus, None, "M")
    check_tokenizer(corpus, corpus.tokenizer_json, "M")
    with pytest.raises(InputError, match=r"out: not the tokenizer of M: merges differ; .*data.prepared of a corpus"):
        check_tokenizer(corpus, shipped_tokenizer().to_str(), "M")
