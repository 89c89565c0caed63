"""Streaming readers of the inputs: files, and datasets of the hub through `datasets` without its cache."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, Self

from skippipe.data.chunks import Chunk
from skippipe.data.config import DataConfig
from skippipe.data.corpus import Split
from skippipe.data.inputs import InputFile, Inputs, find_files
from skippipe.data.text_files import ARROW_TEXT, FIELD, json_texts, parquet_texts, plain_text
from skippipe.errors import InputError, first_line, from_origin, in_file, unexpected, unreadable

HUB_ROWS = 100
"""Records of the hub read at a time."""


class Reader:
    """Reads the inputs of a corpus; a context manager, since `datasets` needs a temporary folder."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._stack = ExitStack()
        self._folder = ""

    def __enter__(self) -> Self:
        if self._config.hub is not None:
            self._folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="skippipe-data-"))
            self._stack.enter_context(_without_torch())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def inputs(self) -> Inputs:
        """Find all inputs; raises `InputError` naming the key without a match."""
        if self._config.hub is None:
            return find_files(self._config)
        return {"training": self._hub_inputs("training"), "validation": self._hub_inputs("validation")}

    def revision(self) -> str | None:
        """Revision of the hub's dataset; None for files."""
        return None if self._config.hub is None else str(self._hub_builder.hash)

    def read(self, split: Split, inputs: Sequence[InputFile], first: int = 0) -> Iterator[tuple[int, Iterator[Chunk]]]:
        """Number and documents of each input from number `first` on; documents come in chunks, a text file is one.

        Raises:
            InputError: unreadable input; the message names the file.

        """
        stream = None if self._config.hub is None else self._hub_stream(split)
        for number in range(first, len(inputs)):
            shard = None if stream is None else stream.shard(len(inputs), number)
            yield number, self._documents(split, inputs[number], shard)

    def _documents(self, split: Split, file: InputFile, shard: Any) -> Iterator[Chunk]:
        """Documents of one input, in chunks; empty records are dropped."""
        try:
            if file.kind == "text":
                yield from plain_text(file.name)
            else:
                yield from (chunk for chunk in self._records(file, shard) if chunk.text)
        except InputError as error:
            raise from_origin(in_file(error, file.name), f"data.{split}") from None
        except Exception as error:  # noqa: BLE001 - errors of broken files depend on format and version
            raise from_origin(unreadable(file.name, first_line(error)), f"data.{split}") from None

    def _records(self, file: InputFile, shard: Any) -> Iterator[Chunk]:
        if file.kind == "json":
            return json_texts(file.name, self._config.field)
        if file.kind == "parquet":
            return parquet_texts(file.name, self._config.field)
        tables = shard.with_format("arrow").iter(batch_size=HUB_ROWS)
        return (Chunk(text, last=True) for table in tables for text in _texts(table, self._config.field))

    @cached_property
    def _hub_builder(self) -> Any:
        config = self._config
        try:
            return _datasets().load_dataset_builder(config.hub, config.hub_configuration, cache_dir=self._folder)
        except Exception as error:  # noqa: BLE001 - no network, no such name, no permission: of many kinds
            raise unreadable(str(config.hub), first_line(error), "data.hub") from None

    def _hub_stream(self, split: Split) -> Any:
        names = getattr(self._config, split)
        if not names or len(names) != 1:
            raise unexpected(f"data.{split}", names, f"the name of one split of data.hub, e.g. [{split}]")
        try:
            return self._hub_builder.as_streaming_dataset(split=names[0])
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            raise unreadable(f"{names[0]} of {self._config.hub}", first_line(error), f"data.{split}") from None

    def _hub_inputs(self, split: Split) -> list[InputFile]:
        name = f"{self._config.hub}:{(getattr(self._config, split) or ['?'])[0]}"
        return [InputFile(f"{name}[{i}]", "hub") for i in range(self._hub_stream(split).num_shards)]


def _texts(table: Any, column: str) -> list[str]:
    if column not in table.column_names:
        raise unexpected("data.field", column, f"one of {table.column_names}")
    kind = str(table.schema.field(column).type)
    if kind not in (*ARROW_TEXT, "null"):
        raise unexpected(column, kind, "strings", hint=FIELD)
    return [text for text in table.column(column).to_pylist() if text is not None]


@contextmanager
def _without_torch() -> Iterator[None]:
    """Keep `datasets` from importing torch for each stream, which takes seconds and 600 MB for nothing."""
    config = _datasets().config
    before = config.TORCH_AVAILABLE
    config.TORCH_AVAILABLE = before and "torch" in sys.modules
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = before


def _datasets() -> Any:
    # Imported late: it takes a second, which --help and local workers do without.
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415

    datasets.disable_progress_bars()
    return datasets
