"""Inputs read through `datasets`, always streaming: no copy of them in a cache, and memory for a part at a time."""

import glob
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import groupby
from typing import Any, Self

from skippipe.data.config import DataConfig
from skippipe.data.corpus import Split
from skippipe.data.pieces import Piece
from skippipe.data.sources import Source, Sources, find_files
from skippipe.errors import InputError

GROUP = 100
"""Files that `datasets` is given at a time: to single one out takes time in proportion to their number."""
SMALL_BYTES = 1 << 20
"""Text files of no more are read whole, ..."""
SMALL_FILES = 16
"""... so many at a time."""
ROWS = {"text": 1000, "json": 100, "parquet": 100, "hub": 100}
"""Lines or records that are read at a time."""


class Reader:
    """Reads the inputs of a text; a context manager, since `datasets` needs a folder for a lock."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._stack = ExitStack()
        self._folder = ""

    def __enter__(self) -> Self:
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="skippipe-data-"))
        self._stack.enter_context(_without_torch())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sources(self) -> Sources:
        """Find all inputs; raises `InputError` naming the key that stands for none."""
        if self._config.hub is None:
            return find_files(self._config)
        return {"training": self._hub_sources("training"), "validation": self._hub_sources("validation")}

    def revision(self) -> str | None:
        """What the hub calls the state of its data set; None for files."""
        return None if self._config.hub is None else str(self._hub_builder.hash)

    def read(self, split: Split, sources: Sequence[Source], first: int = 0) -> Iterator[tuple[int, Iterator[Piece]]]:
        """Number and documents of each source from number `first` on; documents come in chunks, a text file is one.

        Raises:
            InputError: what cannot be read; the message names the file.

        """
        if self._config.hub is not None:
            stream = self._hub_stream(split)
            for number in range(first, len(sources)):
                yield number, self._chunks(split, sources[number], stream.shard(len(sources), number))
            return
        for (kind, small), run in groupby(
            range(first, len(sources)), lambda i: (sources[i].kind, _is_small(sources[i]))
        ):
            numbers = list(run)
            for begin in range(0, len(numbers), GROUP):
                group = numbers[begin : begin + GROUP]
                yield from (self._small if small else self._large)(split, kind, group, sources)

    def _small(
        self, split: Split, kind: str, numbers: Sequence[int], sources: Sequence[Source]
    ) -> Iterator[tuple[int, Iterator[Piece]]]:
        """Many files in one stream, a row each: to begin a stream for each would take longer than to read it."""
        stream = self._stream(split, kind, [sources[number].name for number in numbers], sample_by="document")
        done = 0
        try:
            for table in stream.with_format("arrow").iter(batch_size=SMALL_FILES):
                for text in table.column("text").to_pylist():
                    yield numbers[done], iter([Piece(text, last=True)])
                    done += 1
        except Exception:  # noqa: BLE001 - of one of the next few, which is found where each is read by itself
            yield from self._large(split, kind, numbers[done:], sources)

    def _large(
        self, split: Split, kind: str, numbers: Sequence[int], sources: Sequence[Source]
    ) -> Iterator[tuple[int, Iterator[Piece]]]:
        """Files one by one, a part at a time."""
        options = {"keep_linebreaks": True} if kind == "text" else {}
        stream = self._stream(split, kind, [sources[number].name for number in numbers], **options)
        for place, number in enumerate(numbers):
            yield number, self._chunks(split, sources[number], stream.shard(len(numbers), place))

    def _stream(self, split: Split, kind: str, names: Sequence[str], **options: Any) -> Any:
        try:
            return _datasets().load_dataset(
                kind,
                data_files={"part": [glob.escape(name) for name in names]},
                split="part",
                streaming=True,
                cache_dir=self._folder,
                **options,
            )
        except Exception as error:  # noqa: BLE001 - what it raises depends on the format and on the version
            raise InputError(f"data.{split}: {first_line(error)} ({', '.join(names[:3])})") from None

    def _chunks(self, split: Split, source: Source, stream: Any) -> Iterator[Piece]:
        """Chunks of the documents of one source."""
        title, kind = f"data.{split}: {source.name}", source.kind
        column = "text" if kind == "text" else self._config.field
        tables = stream.with_format("arrow").iter(batch_size=ROWS[kind])
        try:
            for table in tables:
                texts = _texts(title, table, column)
                if kind == "text":
                    yield Piece("".join(texts), last=False)
                else:
                    yield from (Piece(text, last=True) for text in texts if text)
            if kind == "text":
                yield Piece("", last=True)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - what a broken file raises depends on the format and on the version
            raise InputError(f"{title}: cannot be read: {first_line(error)}") from None

    @cached_property
    def _hub_builder(self) -> Any:
        config = self._config
        try:
            return _datasets().load_dataset_builder(config.hub, config.hub_configuration, cache_dir=self._folder)
        except Exception as error:  # noqa: BLE001 - no network, no such name, no permission: of many kinds
            raise InputError(f"data.hub is {config.hub}: cannot be read: {first_line(error)}") from None

    def _hub_stream(self, split: Split) -> Any:
        names = getattr(self._config, split)
        if not names or len(names) != 1:
            raise InputError(f"data.{split} is {names}, the name of one split of data.hub is expected, e.g. [{split}]")
        try:
            return self._hub_builder.as_streaming_dataset(split=names[0])
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            raise InputError(f"data.{split} is {names} of {self._config.hub}: {first_line(error)}") from None

    def _hub_sources(self, split: Split) -> list[Source]:
        name = f"{self._config.hub}:{(getattr(self._config, split) or ['?'])[0]}"
        return [Source(f"{name}[{i}]", "hub") for i in range(self._hub_stream(split).num_shards)]


def _is_small(source: Source) -> bool:
    return source.text_bytes is not None and source.text_bytes <= SMALL_BYTES


def first_line(error: BaseException) -> str:
    """What an error says in one line, by its cause where there is one."""
    cause = error.__cause__ or error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def _texts(title: str, table: Any, column: str) -> list[str]:
    if column not in table.column_names:
        raise InputError(f"{title} has no field {column!r} (data.field), it has {table.column_names}")
    kind = str(table.schema.field(column).type)
    if kind not in ("string", "large_string", "string_view", "null"):
        raise InputError(f"{title}: field {column!r} (data.field) holds {kind}, text is expected")
    texts: list[str] = table.column(column).to_pylist()
    return texts


@contextmanager
def _without_torch() -> Iterator[None]:
    """Keep `datasets` from importing torch for each stream, which takes seconds and 600 MB, and is no use to us."""
    config = _datasets().config
    before = config.TORCH_AVAILABLE
    config.TORCH_AVAILABLE = before and "torch" in sys.modules
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = before


def _datasets() -> Any:
    # Imported late: it takes a second, which --help and the workers of a local run need not wait for.
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415

    datasets.disable_progress_bars()
    return datasets
