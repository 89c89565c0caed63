"""Settings of the text: files, tokenizer, sequences."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from skippipe.config import AT_LEAST_1, Range, setting

FORMATS = ("text", "json", "parquet")
VERIFICATIONS = ("sample", "whole")
CORPORA = ("sotu", "fiction", "debian_docs", "rfc", "linux_source", "python_code")
LEAST_VOCABULARY = 257
"""Every byte and the end of a text."""


@dataclass
class DataConfig:
    """The text for training and validation."""

    prepared: str | None = None
    """a folder written by `skippipe data prepare`, which provides text and tokenizer"""
    training: list[str] | None = None
    """files or patterns such as [texts/*.txt]; with data.hub, names of splits; null: the text in the package"""
    validation: list[str] | None = None
    """the same for the validation text, which is never trained on; null: some of the files of data.training"""
    format: str | None = setting(None, choices=FORMATS)
    """text, json or parquet; null: by file name: .txt, .json, .jsonl, .parquet, the first three also with .gz, .bz2
    or .xz"""
    field: str = "text"
    """field with the text, in json and parquet"""
    hub: str | None = None
    """a data set of the Hugging Face hub, streamed; needs a network"""
    hub_configuration: str | None = None
    """configuration of that data set"""
    tokenizer: str | None = None
    """a tokenizer.json, a transformers folder or a name on the hub; null: data.vocabulary, else that of the package"""
    vocabulary: int | None = setting(None, within=Range(LEAST_VOCABULARY))
    """train a byte-level BPE tokenizer of this vocabulary size on the training text; null: data.tokenizer"""
    corpora: str = "corpora"
    """folder of the corpora of `skippipe data fetch`, used by data=sotu and the like"""
    fetch: str | None = None
    """the command that fetches the files, shown if they are missing"""
    verify: str = setting("sample", choices=VERIFICATIONS)
    """how much of a prepared text is checked against its recorded hashes: whole, or a sample of files above 256 MiB"""
    sequence: int = setting(128, within=AT_LEAST_1)
    """tokens per sequence"""
    validation_blocks: int = setting(128, within=AT_LEAST_1)
    """maximum number of sequences to validate on: always the same ones, evenly spaced over the text"""


@dataclass
class PrepareJob:
    """Settings of `skippipe data prepare`."""

    data: DataConfig = field(default_factory=DataConfig)
    """the text"""
    output: str = MISSING
    """output folder; an unfinished preparation of the same text is resumed"""
    workers: int | None = setting(None, within=Range(1, 1024))
    """tokenizer threads; null: one per processor"""


@dataclass
class FetchJob:
    """Settings of `skippipe data fetch`."""

    corpus: str = setting(choices=CORPORA)
    """the corpus to fetch"""
    folder: str = "corpora"
    """parent folder; the corpus goes to a subfolder of its name"""
