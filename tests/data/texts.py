"""Small texts in files, and their tokens by an independent implementation."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tokenizers import Tokenizer

PACKED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def shipped_tokenizer() -> Tokenizer:
    return Tokenizer.from_str((resources.files("skippipe.data") / "tokenizer.json").read_text(encoding="utf-8"))


def reference(documents: Sequence[str], tokenizer: Tokenizer | None = None) -> bytes:
    """Documents tokenised one by one, each with the end-of-text token, as uint16."""
    tokenizer = tokenizer or shipped_tokenizer()
    tokens = [x for text in documents if text for x in [*tokenizer.encode(text).ids, 0]]
    return np.array(tokens, dtype="<u2").tobytes()


def write_documents(path: Path, documents: Sequence[str], field: str = "text") -> None:
    """Write documents in the format of the file's suffix; a .txt file holds one."""
    if path.suffix == ".parquet":
        pq.write_table(
            pa.table({"number": list(range(len(documents))), field: list(documents)}), path, row_group_size=3
        )
        return
    if ".txt" in path.suffixes:
        (text,) = documents
    else:
        text = "".join(json.dumps({"number": i, field: document}) + "\n" for i, document in enumerate(documents))
    path.write_bytes(PACKED.get(path.suffix, bytes)(text.encode()))
