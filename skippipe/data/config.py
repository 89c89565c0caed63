"""Settings of the corpus: files, tokenizer, sequence length."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import AT_LEAST_1, Range, setting

FORMATS = ("text", "json", "parquet")
VERIFICATIONS = ("sample", "whole")
CORPORA = ("sotu", "fiction", "debian_docs", "rfc", "linux_source", "python_code")
MIN_VOCABULARY = 257
"""Every byte, and the end of text."""


@dataclass
class DataConfig:
    """Training and validation text."""

    prepared: str | None = None
    """folder written by `skippipe data prepare`; provides corpus and tokenizer"""
    training: list[str] | None = None
    """training files or patterns, e.g. [texts/*.txt]; with data.hub names of splits; null: the bundled text"""
    validation: list[str] | None = None
    """the same for validation; never trained on; null: one file in 20 of data.training"""
    format: str | None = setting(None, choices=FORMATS)
    """text, json or parquet; null: by suffix: .txt, .json, .jsonl, .parquet, also .gz, .bz2, .xz of the first three"""
    field: str = "text"
    """field with the text in json and parquet"""
    hub: str | None = None
    """dataset of the Hugging Face hub, streamed; needs a network"""
    hub_configuration: str | None = None
    """configuration of the hub's dataset"""
    tokenizer: str | None = None
    """tokenizer.json, transformers folder or hub name; null: data.vocabulary, else the bundled tokenizer"""
    vocabulary: int | None = setting(None, within=Range(MIN_VOCABULARY))
    """vocabulary size of a byte-level BPE tokenizer to train on the training text; null: data.tokenizer"""
    corpora: str = "corpora"
    """folder of `skippipe data fetch`, used by data=sotu etc."""
    fetch: str | None = None
    """command that fetches the files, shown if they are missing"""
    verify: str = setting("sample", choices=VERIFICATIONS)
    """verification of a prepared corpus against its hashes: whole, or sample: only parts of files above 256 MiB"""
    sequence: int = setting(128, within=AT_LEAST_1)
    """tokens per sequence"""
    validation_blocks: int = setting(128, within=AT_LEAST_1)
    """maximum number of validation sequences, evenly spaced, always the same ones"""


@dataclass
class PrepareJob:
    """`skippipe data prepare`: tokenise a corpus once, into a folder for `data.prepared`."""

    data: DataConfig = field(default_factory=DataConfig)
    """the corpus"""
    output: str = MISSING
    """output folder; an unfinished preparation of the same corpus resumes"""
    workers: int | None = setting(None, within=Range(1, 1024))
    """tokeniser threads; null: one per processor"""


@dataclass
class FetchJob:
    """`skippipe data fetch`: fetch a corpus of free texts as plain text files, for `data=CORPUS`."""

    corpus: str = setting(choices=CORPORA)
    """name of the corpus"""
    folder: str = "corpora"
    """parent folder of the corpus folder"""
