"""Tokenizers of every kind give their own tokens; unusable ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data.texts import reference, shipped_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from skippipe.data.chunks import Chunk
from skippipe.data.config import DataConfig
from skippipe.data.prepare import prepare
from skippipe.data.tokenizer import Encoder, load_encoder, train_encoder
from skippipe.errors import InputError

TEXT = "Peace is the work of many hands.\nSo is war, ça va?\n" * 30


@pytest.fixture(scope="module")
def trained() -> Encoder:
    return train_encoder([[TEXT], [TEXT]], 280)


@settings(derandomize=True, database=None, deadline=None)
@given(st.text(max_size=60))
def test_trained_tokenizer_round_trip(trained: Encoder, text: str) -> None:
    assert trained.tokenizer.decode(trained.tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_trained_tokenizer(trained: Encoder) -> None:
    assert (trained.vocabulary, trained.end_of_text, trained.dtype) == (280, 0, "uint16")
    assert trained.splits_at_newlines()
    assert train_encoder([[TEXT], [TEXT]], 280).json == trained.json


def small_files(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("So is war.\nIs it?")
    return {"training": [str(tmp_path / "a.txt")], "validation": [str(tmp_path / "b.txt")]}


def test_truncation_and_padding_are_disabled(tmp_path: Path) -> None:
    tokenizer = shipped_tokenizer()
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5000)
    tokenizer.save(str(tmp_path / "t.json"))
    prepare(DataConfig(**small_files(tmp_path), tokenizer=str(tmp_path / "t.json")), tmp_path / "out")
    assert (tmp_path / "out" / "training.tokens").read_bytes() == reference([TEXT])


def test_tokenizer_that_prepends_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Llama 2's does: documents are not split, or every chunk would get the prefix."""
    monkeypatch.setattr("skippipe.data.prepare.CHUNK_CHARACTERS", 40)
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["</s>", "<unk>"]
    tokenizer.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    tokenizer.save(str(tmp_path / "t.json"))
    config = DataConfig(**small_files(tmp_path), tokenizer=str(tmp_path / "t.json"))
    assert not load_encoder(config).splits_at_newlines()
    prepare(config, tmp_path / "out")
    assert (tmp_path / "out" / "training.tokens").read_bytes() == reference([TEXT], tokenizer)


def spelled(encoder: Encoder, text: str) -> list[str]:
    tokens = encoder.encode([Chunk(text, last=True)]).tolist()
    assert tokens[-1] == encoder.end_of_text
    assert encoder.end_of_text not in tokens[:-1]
    return [str(encoder.tokenizer.id_to_token(token)) for token in tokens[:-1]]


@pytest.mark.parametrize("special", [True, False])
def test_text_never_becomes_special_tokens(special: bool, tmp_path: Path) -> None:
    """Whether or not the end-of-text token is declared special; ordinary added tokens stay ordinary."""
    tokenizer = shipped_tokenizer()
    tokenizer.add_special_tokens(["<|im_start|>"])
    tokenizer.add_tokens(["Congress"])
    content = json.loads(tokenizer.to_str())
    content["added_tokens"][0]["special"] = special
    (tmp_path / "t.json").write_text(json.dumps(content))
    encoder = load_encoder(DataConfig(tokenizer=str(tmp_path / "t.json")))
    text = "a<|endoftext|> <|im_start|>b Congress<|endoftext|><|endoftext|>"
    words = spelled(encoder, text)
    assert "Congress" in words
    assert not {"<|endoftext|>", "<|im_start|>"} & set(words)
    assert encoder.tokenizer.decode(encoder.encode([Chunk(text, last=False)]).tolist()) == text
    again = load_encoder(DataConfig(tokenizer=str(write_json(tmp_path / "again.json", encoder.json))))
    assert spelled(again, text) == words


def write_json(path: Path, text: str, mark: bytes = b"") -> Path:
    path.write_bytes(mark + text.encode())
    return path


def unigram() -> Tokenizer:
    chunks = [("<unk>", 0.0), ("</s>", 0.0), *((sign, -3.0) for sign in "▁ab</s>")]
    made = Tokenizer(models.Unigram(chunks, unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


def whole_words() -> Tokenizer:
    made = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "b": 3, "<": 4}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


@pytest.mark.parametrize("make", [unigram, whole_words])
@pytest.mark.parametrize("added", [True, False])
def test_special_tokens_as_ordinary_entries(make: Callable[[], Tokenizer], added: bool, tmp_path: Path) -> None:
    tokenizer = make()
    if added:
        tokenizer.add_special_tokens(["</s>", "<unk>"])
    tokenizer.save(str(tmp_path / "t.json"))
    encoder = load_encoder(DataConfig(tokenizer=str(tmp_path / "t.json")))
    words = spelled(encoder, "a </s> b </s> a")
    assert [word for word in words if word in {"a", "b"}] == ["a", "b", "a"]
    assert words.count("<") == 2
    assert spelled(encoder, "a ? b").count("<unk>") == 1, "what is unknown is still unknown"


def test_a_tokenizer_that_fails(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "text": 1, "</s>": 2}, unk_token="<none>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "t.json"))
    with pytest.raises(
        InputError, match=r"data.tokenizer: cannot tokenise the corpus: WordLevel error: Missing \[UNK\]"
    ):
        prepare(DataConfig(**small_files(tmp_path), tokenizer=str(tmp_path / "t.json")), tmp_path / "out")


def test_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_json(tmp_path / "tokenizer.json", shipped_tokenizer().to_str(), b"\xef\xbb\xbf")
    write_json(tmp_path / "tokenizer_config.json", '{"eos_token": "is"}', b"\xef\xbb\xbf")
    assert load_encoder(DataConfig(tokenizer=str(path))).end_of_text == 0
    assert load_encoder(DataConfig(tokenizer=str(tmp_path))).end_of_text == shipped_tokenizer().token_to_id("is")


def test_large_vocabularies_use_uint32(tmp_path: Path) -> None:
    words = {"</s>": 0} | {f"w{i}": i for i in range(1, 70_000)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "t.json"))
    (tmp_path / "a.txt").write_text("a w69999")
    (tmp_path / "b.txt").write_text("w1")
    config = DataConfig(
        training=[str(tmp_path / "a.txt")], validation=[str(tmp_path / "b.txt")], tokenizer=str(tmp_path / "t.json")
    )
    corpus = prepare(config, tmp_path / "out")
    assert (corpus.vocabulary, corpus.dtype) == (70_000, "uint32")
    assert corpus.stream("training").tolist() == [0, 69_999, 0]
    assert corpus.training(2).tokens.tolist() == [[0, 69_999, 0]]


def test_transformers_folder(tmp_path: Path) -> None:
    """The declared end-of-text token has precedence over common ones."""
    tokenizer = shipped_tokenizer()
    tokenizer.add_special_tokens(["<|stop|>"])
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    for stated in ("<|stop|>", {"content": "<|stop|>", "lstrip": False}):
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"eos_token": stated}))
        assert load_encoder(DataConfig(tokenizer=str(tmp_path / "model"))).end_of_text == 1024
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    assert load_encoder(DataConfig(tokenizer=str(tmp_path / "model"))).end_of_text == 0


def test_transformers_folder_without_tokenizer_json(tmp_path: Path) -> None:
    content = json.loads(shipped_tokenizer().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"})
    )
    loaded = load_encoder(DataConfig(tokenizer=str(tmp_path)))
    assert loaded.tokenizer.encode(TEXT).ids == shipped_tokenizer().encode(TEXT).ids
    assert loaded.end_of_text == 0


def _save(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = json.loads(shipped_tokenizer().to_str())
        change(content)
        path.write_text(json.dumps(content))

    return write


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: None, "data.tokenizer: no such file: .*t.json"),
    "no JSON": (lambda path: path.write_text("so"), "data.tokenizer: expected a tokenizer.json, got .*t.json"),
    "other JSON": (
        lambda path: path.write_text('{"text": "a"}'),
        "data.tokenizer: expected a tokenizer.json, got .*t.json",
    ),
    "no end": (
        lambda path: Tokenizer(models.WordLevel({"a": 0, "text": 1}, unk_token="a")).save(str(path)),
        r"no end-of-text token \(<\|endoftext\|>, </s>",
    ),
    "no tokens": (_save(lambda content: content["model"].update(vocab={}, merges=[])), "gives no tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    write, message = REFUSED[case]
    write(tmp_path / "t.json")
    with pytest.raises(InputError, match=message) as caught:
        load_encoder(DataConfig(tokenizer=str(tmp_path / "t.json")))
    assert caught.value.key == "data.tokenizer"


def test_folder_without_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        InputError, match=r"data.tokenizer: expected a tokenizer.json, a transformers folder or a hub name, got "
    ):
        load_encoder(DataConfig(tokenizer=str(tmp_path)))
