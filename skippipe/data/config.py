"""Settings of the text: which files, which tokenizer, how it is cut."""

from dataclasses import dataclass

from skippipe.config import AT_LEAST_1, setting


@dataclass
class DataConfig:
    """The text to train and to validate on."""

    training: list[str] | None = None
    """.txt, .json or .jsonl files or patterns such as [texts/*.txt]; null: messages of US presidents that ship"""
    validation: list[str] | None = None
    """files of the text to validate on, which is never trained on; null: three more messages that ship"""
    field: str = "text"
    """the field that holds the text in .json and .jsonl files"""
    tokenizer: str | None = None
    """a tokenizer.json; null: the one that ships, byte-level BPE with 1,024 entries"""
    sequence: int = setting(128, within=AT_LEAST_1)
    """tokens of one sequence"""
    validation_blocks: int = setting(128, within=AT_LEAST_1)
    """the most sequences to validate on: always the first ones"""
