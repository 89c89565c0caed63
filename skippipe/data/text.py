"""Text files in, tokens out: read through `datasets`, split by file, written nowhere but a temporary folder."""

import glob
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer

from skippipe.data.blocks import Blocks, pack
from skippipe.data.config import DataConfig
from skippipe.errors import InputError

END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
"""What tokenizers call the token between two texts; the first that a tokenizer knows is used."""
FORMATS = {".txt": "text", ".json": "json", ".jsonl": "json"}


def load_training(config: DataConfig) -> Blocks:
    """Blocks to train on. Raises `InputError` naming the key and the file that cannot be used."""
    return _load(config, "data.training", config.training, "training")


def load_validation(config: DataConfig) -> Blocks:
    """Blocks to validate on, at most `data.validation_blocks`; raises as `load_training` does."""
    blocks = _load(config, "data.validation", config.validation, "validation")
    return Blocks(blocks.tokens[: config.validation_blocks])


def vocabulary(config: DataConfig) -> int:
    """How many entries the tokenizer has."""
    return _load_tokenizer(config.tokenizer).get_vocab_size()


def _load(config: DataConfig, key: str, patterns: Sequence[str] | None, shipped: str) -> Blocks:
    tokenizer = _load_tokenizer(config.tokenizer)
    end_of_text = next((x for x in map(tokenizer.token_to_id, END_OF_TEXT) if x is not None), None)
    if end_of_text is None:
        raise InputError(f"data.tokenizer={config.tokenizer} has no token that ends a text ({', '.join(END_OF_TEXT)})")
    files = text_files(key, patterns) if patterns is not None else _shipped_files(shipped)
    texts = _read(key, files, config.field)
    documents = [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return pack(documents, config.sequence, end_of_text, key)


def text_files(key: str, patterns: Sequence[str]) -> list[Path]:
    """Files that the names and patterns of a setting stand for, in order; each must stand for one at least."""
    found: list[Path] = []
    for i, pattern in enumerate(patterns):
        matches = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - absolute ones too
        if not matches:
            raise InputError(f"{key}[{i}] is {pattern}: there is no such file")
        for path in matches:
            if not path.is_file():
                raise InputError(f"{key}[{i}] is {pattern}: {path} is no file")
            if path.suffix not in FORMATS:
                raise InputError(f"{key}[{i}] is {pattern}: {path} ends in none of {', '.join(FORMATS)}")
        found += matches
    if not found:
        raise InputError(f"{key} is empty, at least one file is expected")
    return list(dict.fromkeys(found))


def _shipped_files(part: str) -> list[Path]:
    folder = Path(str(resources.files("skippipe.data") / "text" / part))
    return sorted(folder.glob("*.txt"))


def _read(key: str, files: Sequence[Path], field: str) -> list[str]:
    """One text for each `.txt` file and for each record of a `.json` or `.jsonl` file."""
    # Imported here: it takes a second, which --help and the workers of a local run need not wait for.
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415

    datasets.disable_progress_bars()
    texts: list[str] = []
    for kind in dict.fromkeys(FORMATS.values()):
        names = [str(path.resolve()) for path in files if FORMATS[path.suffix] == kind]
        if not names:
            continue
        options = {"sample_by": "document"} if kind == "text" else {}
        with tempfile.TemporaryDirectory(prefix="skippipe-data-") as cache:
            try:
                loaded = datasets.load_dataset(
                    kind, data_files={"part": names}, split="part", cache_dir=cache, keep_in_memory=True, **options
                )
            except Exception as error:  # noqa: BLE001 - what a broken file raises depends on the format and on the version
                raise InputError(f"{key}: {_first_line(error)} ({', '.join(names[:3])})") from None
        column = "text" if kind == "text" else field
        if column not in loaded.column_names:
            raise InputError(f"{key}: {names[0]} has no field {column!r} (data.field), it has {loaded.column_names}")
        texts += [text for text in loaded[column] if text]
    if not texts:
        raise InputError(f"{key}: {files[0]} and {len(files) - 1} more hold no text")
    return texts


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def _load_tokenizer(path: str | None) -> Tokenizer:
    if path is None:
        return Tokenizer.from_str((resources.files("skippipe.data") / "tokenizer.json").read_text(encoding="utf-8"))
    if not Path(path).is_file():
        raise InputError(f"data.tokenizer is {path}: there is no such file")
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - tokenizers raises no other kind
        raise InputError(f"data.tokenizer is {path}, a tokenizer.json is expected: {_first_line(error)}") from None
