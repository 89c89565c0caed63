"""Chunks give the text and tokens of the document, however it was read."""

from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from skippipe.data.chunks import Chunk, split_chunks

WORDS = [
    "\n",
    "\n",
    " ",
    "\t",
    "\r",
    "a",
    "The end",
    "'s",
    "é",
    "…",
    "12",
    ".",
    "\n\n",
    "\u00a0",
    "\u3000",
    "😀",
    "\x1c",
    "x\n",
    "-",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=60).map("".join)
LLAMA_3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Llama 3's pre-tokenizer, which differs from GPT-2's at line ends."""


def gpt_2() -> Tokenizer:
    return Tokenizer.from_str((resources.files("skippipe.data") / "tokenizer.json").read_text(encoding="utf-8"))


def llama_3() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["The end.\n\nThe end's 12\n" * 50, ".\n.\n\n. \n" * 50], trainer)
    return made


TOKENIZERS = {"gpt_2": gpt_2(), "llama_3": llama_3()}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(derandomize=True, database=None, deadline=None)
@given(text=TEXTS, limit=st.integers(1, 20))
def test_chunks_have_the_tokens_of_the_document(name: str, text: str, limit: int) -> None:
    chunks = list(split_chunks([Chunk(text, last=True)], limit))
    assert "".join(chunk.text for chunk in chunks) == text
    assert [chunk.last for chunk in chunks] == ([False] * (len(chunks) - 1) + [True] if text else [])
    encode = TOKENIZERS[name].encode
    assert [x for chunk in chunks for x in encode(chunk.text).ids] == encode(text).ids


@settings(derandomize=True, database=None, deadline=None)
@given(documents=st.lists(TEXTS, max_size=4), limit=st.integers(1, 20), size=st.integers(1, 9))
def test_chunks_do_not_depend_on_the_input_chunks(documents: list[str], limit: int, size: int) -> None:
    chunked = [
        Chunk(text[i : i + size], last=i + size >= len(text))
        for text in documents
        for i in range(0, max(len(text), 1), size)
    ]
    assert list(split_chunks(chunked, limit)) == list(
        split_chunks([Chunk(text, last=True) for text in documents], limit)
    )


def test_chunks_are_short_if_lines_are() -> None:
    text = "\n".join(f"line {i} of a long text" for i in range(1000))
    assert max(len(chunk.text) for chunk in split_chunks([Chunk(text, last=True)], 100)) <= 100
    assert len(list(split_chunks([Chunk(text, last=True)], None))) == 1


def test_a_long_line_is_one_chunk() -> None:
    long = "word " * 100
    chunks = list(split_chunks([Chunk(f"a\nb\n{long}x\nc\nd\ne", last=True)], 4))
    assert [chunk.text for chunk in chunks] == ["a\nb\n", f"{long}x\n", "c\nd\n", "e"]
