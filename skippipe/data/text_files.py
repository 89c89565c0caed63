"""Streaming readers of single files: plain text, JSON records, Parquet rows.

Only the requested field of each record is read: the contents and types of other fields, and the order of files, do not
matter. Strings are not modified.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import json
import lzma
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from skippipe.data.chunks import Chunk
from skippipe.errors import InputError, unexpected

READ_SIZE = 1 << 20
"""Characters of a text file, or bytes of JSON other than JSON Lines, read at a time."""
ROWS = 100
"""Parquet rows converted to Python strings at a time."""
HEAD_BYTES = 1 << 16
"""Bytes inspected to detect the kind of JSON."""
PACKED: tuple[tuple[str, re.Pattern[bytes], Any], ...] = (
    (".gz", re.compile(rb"\x1f\x8b"), gzip.GzipFile),
    (".bz2", re.compile(rb"BZh[1-9]1AY&SY"), bz2.BZ2File),
    (".xz", re.compile(rb"\xfd7zXZ\0"), lzma.LZMAFile),
)
"""Suffix, magic number and opener of compressed files."""
FIELD = "data.field names the field to read"
ARROW_TEXT = ("string", "large_string", "string_view")


def opened(path: str) -> BinaryIO:
    """Open a file, decompressed, after its byte order mark if any."""
    with Path(path).open("rb") as file:
        head = file.read(16)  # longer than any magic number
    by_content = (make for _, magic, make in PACKED if magic.match(head))
    by_name = (make for suffix, _, make in PACKED if path.lower().endswith(suffix))
    make = next(by_content, None) or next(by_name, None)
    unpacked: BinaryIO = Path(path).open("rb") if make is None else io.BufferedReader(make(path), READ_SIZE)  # noqa: SIM115
    try:
        unpacked.seek(len(codecs.BOM_UTF8) if unpacked.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0)
    except BaseException:
        unpacked.close()
        raise
    return unpacked


def plain_text(path: str) -> Iterator[Chunk]:
    """Chunks of a text file, which is one document; line ends are converted to newlines."""
    with io.TextIOWrapper(opened(path), encoding="utf-8") as file:
        while chunk := _decoded(file):
            yield Chunk(chunk, last=False)
    yield Chunk("", last=True)


def _decoded(file: io.TextIOWrapper) -> str:
    """Read the next characters; raises `InputError` naming the invalid byte."""
    try:
        return file.read(READ_SIZE)
    except UnicodeDecodeError as error:
        # The error's offset is relative to the part being decoded.
        byte = cast("io.BufferedIOBase", file.buffer).tell() - len(error.object) + error.start
        raise InputError(expected="UTF-8 text", found=f"byte {error.object[error.start]:#04x} at {byte}") from None


def json_texts(path: str, field: str) -> Iterator[Chunk]:
    """Texts of JSON Lines, of an array of records, or of concatenated records.

    Records that are null, lack the field or have null there are skipped; if all lack it, the field is wrong.

    Raises:
        InputError: invalid JSON, not a record or not a string; the message names the line.

    """
    records, found = 0, False
    fields: list[str] = []
    with contextlib.closing(_values(path)) as values:
        for line, record in values:
            if record is None:
                continue
            if not isinstance(record, dict):
                raise InputError(expected="a record (an object)", found=_kind(record), position=[line])
            if not records:
                fields = list(record)
            records += 1
            found |= field in record
            text = record.get(field)
            if text is not None:
                yield Chunk(_checked(text, field, line), last=True)
    if records and not found:
        raise _no_field(field, fields)


def parquet_texts(path: str, field: str) -> Iterator[Chunk]:
    """Texts of a string column; nulls are skipped, and no other column is read.

    Raises:
        InputError: no such column, or not strings.

    """
    # Imported late, like `datasets`: text and JSON do without.
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        if not file.metadata.num_rows:
            return
        schema = file.schema_arrow
        if schema.names.count(field) != 1:
            raise _no_field(field, schema.names)
        kind = schema.field(field).type
        is_dictionary = str(kind).startswith("dictionary<")
        if str(kind.value_type if is_dictionary else kind) not in (*ARROW_TEXT, "null"):
            raise unexpected(field, str(kind), "strings", hint=FIELD)
        for batch in file.iter_batches(ROWS, columns=[field], use_threads=False):
            for text in batch.column(0).to_pylist():
                if text is not None:
                    yield Chunk(text, last=True)


def _no_field(field: str, fields: list[str]) -> InputError:
    return unexpected("data.field", field, f"one of {fields}")


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names[type(value)]


def _checked(text: object, field: str, line: int) -> str:
    if not isinstance(text, str):
        raise InputError(key=field, expected="a string", found=_kind(text), hint=FIELD, position=[line])
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(key=field, expected="text", found="half of a surrogate pair", position=[line]) from None
    return text


_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)
"""Numbers are not text: they are not converted, however long."""


def _values(path: str) -> Generator[tuple[int, Any], None, None]:
    """Values of a JSON file, each with its first line."""
    with opened(path) as file:
        start = file.tell()
        first, _, more = file.read(HEAD_BYTES).lstrip().partition(b"\n")
        file.seek(start)
        # An array, or a multi-line record.
        yield from (_streamed(file) if first[:1] == b"[" or (more and _begins_only(first)) else _lines(file))


def _begins_only(line: bytes) -> bool:
    """Whether a line is the start of a multi-line value."""
    try:
        _DECODER.decode(line.decode())
    except json.JSONDecodeError as error:
        return error.pos >= len(error.doc.rstrip())
    except (UnicodeDecodeError, RecursionError):
        pass
    return False


def _lines(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if line.isspace():
            continue
        try:
            yield number, _DECODER.decode(line.decode())
        except json.JSONDecodeError as error:
            raise InputError(f"invalid JSON: {error.msg}", position=[number, error.colno]) from None
        except UnicodeDecodeError as error:
            raise InputError(expected="UTF-8 text", found=f"byte {line[error.start]:#04x}", position=[number]) from None
        except RecursionError:
            raise InputError("nested too deeply", position=[number]) from None


def _streamed(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    """Concatenated, possibly multi-line values, or those of one array."""
    held = _JsonBuffer(file)
    in_array = held.next() == "["
    held.at += in_array
    first = True
    while (sign := held.next()) != ("]" if in_array else ""):
        if in_array and not first:
            if sign != ",":
                raise held.error("expected ',' or ']'")
            held.at += 1
            held.next()
        first = False
        line = held.line()  # before `take` advances
        yield line, held.take()
    held.at += in_array
    if held.next():
        raise held.error("expected the end of the file")


class _JsonBuffer:
    """Buffer over a stream of JSON, large enough for one value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")()
        self._text, self._line, self._counted = "", 1, 0
        self.at = 0

    def line(self) -> int:
        """Line of the next character; lines are counted once."""
        self._line += self._text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def error(self, reason: str) -> InputError:
        return InputError(f"invalid JSON: {reason}", position=[self.line()])

    def next(self) -> str:
        """Advance to the next non-blank character and return it; empty at the end."""
        while True:
            while self.at < len(self._text):
                if not self._text[self.at].isspace():
                    return self._text[self.at]
                self.at += 1
            if not self._more():
                return ""

    def take(self) -> Any:
        """Take the value that starts here."""
        while True:
            try:
                value, self.at = _DECODER.raw_decode(self._text, self.at)
            except json.JSONDecodeError as error:
                # A truncated value fails at its end, but a string at its start.
                is_cut = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - 16
                if is_cut and self._more():
                    continue
                self.at = error.pos
                raise self.error(error.msg) from None
            except RecursionError:
                raise InputError("nested too deeply", position=[self.line()]) from None
            return value

    def _more(self) -> bool:
        """Double the buffer, so that long values are not retried too often."""
        read = self._file.read(max(READ_SIZE, len(self._text) - self.at))
        try:
            chunk = self._decoder.decode(read, final=not read)
        except UnicodeDecodeError as error:
            line = self._line + self._text.count("\n", self._counted) + error.object.count(b"\n", 0, error.start)
            found = f"byte {error.object[error.start]:#04x}"
            raise InputError(expected="UTF-8 text", found=found, position=[line]) from None
        self._line += self._text.count("\n", self._counted, self.at)
        self._text, self._counted, self.at = self._text[self.at :] + chunk, 0, 0
        return bool(read)
