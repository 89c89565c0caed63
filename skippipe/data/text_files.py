"""Texts of one file each, a part at a time: plain text, records of JSON, rows of Parquet.

Only the field that is asked for is looked at, record by record: what other fields hold, which types they have and where
a file stands among others makes no difference. A string is taken as it stands.
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
from skippipe.errors import InputError

PART = 1 << 20
"""Characters of a text file, or bytes of JSON that is not one record a line, that are read at a time."""
ROWS = 100
"""Rows of Parquet that are held as Python strings at a time."""
HEAD_BYTES = 1 << 16
"""What is looked at to tell what a file is."""
PACKED: tuple[tuple[str, re.Pattern[bytes], Any], ...] = (
    (".gz", re.compile(rb"\x1f\x8b"), gzip.GzipFile),
    (".bz2", re.compile(rb"BZh[1-9]1AY&SY"), bz2.BZ2File),
    (".xz", re.compile(rb"\xfd7zXZ\0"), lzma.LZMAFile),
)
"""How a compressed file is called, what it begins with, and what opens it."""
ARROW_TEXT = ("string", "large_string", "string_view")


def opened(path: str) -> BinaryIO:
    """Open a file, unpacked, behind the byte order mark that it may begin with."""
    with Path(path).open("rb") as file:
        head = file.read(16)  # more than any of the patterns is long
    by_content = (make for _, magic, make in PACKED if magic.match(head))
    by_name = (make for suffix, _, make in PACKED if path.lower().endswith(suffix))
    make = next(by_content, None) or next(by_name, None)
    unpacked: BinaryIO = Path(path).open("rb") if make is None else io.BufferedReader(make(path), PART)  # noqa: SIM115
    try:
        unpacked.seek(len(codecs.BOM_UTF8) if unpacked.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0)
    except BaseException:
        unpacked.close()
        raise
    return unpacked


def plain_text(path: str) -> Iterator[Chunk]:
    """Chunks of a text file, which is one document; any kind of line end becomes a line feed."""
    with io.TextIOWrapper(opened(path), encoding="utf-8") as file:
        while chunk := _decoded(file):
            yield Chunk(chunk, last=False)
    yield Chunk("", last=True)


def _decoded(file: io.TextIOWrapper) -> str:
    """The next characters of a file; raises `InputError` that names the byte where it is no text."""
    try:
        return file.read(PART)
    except UnicodeDecodeError as error:
        # What is decoded at a time is a part of the file, and counts from its own beginning.
        byte = cast("io.BufferedIOBase", file.buffer).tell() - len(error.object) + error.start
        raise InputError(f"cannot be read: byte {byte}: no utf-8 text ({error.reason})") from None


def json_texts(path: str, field: str) -> Iterator[Chunk]:
    """Texts of JSON Lines, of one array of records, or of records one after another.

    A record that is null, lacks the field or has null there holds no text; where all lack it, the field is not what
    was meant.

    Raises:
        InputError: what is no JSON, no record or no string; the message names the line.

    """
    records, found = 0, False
    fields: list[str] = []
    with contextlib.closing(_values(path)) as values:
        for place, record in values:
            if record is None:
                continue
            if not isinstance(record, dict):
                raise InputError(f"{place}: expected a record (an object), got {_kind(record)}")
            if not records:
                fields = list(record)
            records += 1
            found |= field in record
            text = record.get(field)
            if text is not None:
                yield Chunk(_checked(text, f"{place}: field {field!r} (data.field)"), last=True)
    if records and not found:
        raise InputError(_no_field(field, fields))


def parquet_texts(path: str, field: str) -> Iterator[Chunk]:
    """Texts of a column of strings; null is no text, and no other column is read.

    Raises:
        InputError: there is no such column, or it holds something else.

    """
    # Imported late, as `datasets` is: it takes a moment, which text and JSON do without.
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        if not file.metadata.num_rows:
            return
        schema = file.schema_arrow
        if schema.names.count(field) != 1:
            raise InputError(_no_field(field, schema.names))
        kind = schema.field(field).type
        is_dictionary = str(kind).startswith("dictionary<")
        if str(kind.value_type if is_dictionary else kind) not in (*ARROW_TEXT, "null"):
            raise InputError(f"field {field!r} (data.field): expected strings, got {kind}")
        for batch in file.iter_batches(ROWS, columns=[field], use_threads=False):
            for text in batch.column(0).to_pylist():
                if text is not None:
                    yield Chunk(text, last=True)


def _no_field(field: str, fields: list[str]) -> str:
    return f"has no field {field!r} (data.field), it has {fields}"


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


def _checked(text: object, title: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{title}: expected a string, got {_kind(text)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{title}: expected text, got half of a surrogate pair") from None
    return text


_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)
"""Of numbers, which are no text, only that they are some is of interest, however long they are."""


def _values(path: str) -> Generator[tuple[str, Any], None, None]:
    """Values of a JSON file, each with the line where it begins."""
    with opened(path) as file:
        start = file.tell()
        first, _, more = file.read(HEAD_BYTES).lstrip().partition(b"\n")
        file.seek(start)
        # An array, or a record over several lines.
        yield from (_streamed(file) if first[:1] == b"[" or (more and _begins_only(first)) else _lines(file))


def _begins_only(line: bytes) -> bool:
    """Whether a line is the beginning of a value that ends on another one."""
    try:
        _DECODER.decode(line.decode())
    except json.JSONDecodeError as error:
        return error.pos >= len(error.doc.rstrip())
    except (UnicodeDecodeError, RecursionError):
        pass
    return False


def _lines(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(file, 1):
        if line.isspace():
            continue
        place = f"line {number}"
        try:
            yield place, _DECODER.decode(line.decode())
        except json.JSONDecodeError as error:
            raise InputError(f"cannot be read: {place}: {error.msg} (column {error.colno})") from None
        except UnicodeDecodeError as error:
            raise InputError(f"cannot be read: {place}: no utf-8 text (byte {error.start} of the line)") from None
        except RecursionError:
            raise InputError(f"cannot be read: {place}: nested too deeply") from None


def _streamed(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Values one after another, over as many lines as they like, or those of one array."""
    held = _Held(file)
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
        place = held.place()  # before what is taken moves on
        yield place, held.take()
    held.at += in_array
    if held.next():
        raise held.error("expected the end of the file")


class _Held:
    """What is held of a stream of JSON: enough for one value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")()
        self._text, self._line, self._counted = "", 1, 0
        self.at = 0

    def place(self) -> str:
        """Say on which line the next sign stands; lines are counted once."""
        self._line += self._text.count("\n", self._counted, self.at)
        self._counted = self.at
        return f"line {self._line}"

    def error(self, reason: str) -> InputError:
        return InputError(f"cannot be read: {self.place()}: {reason}")

    def next(self) -> str:
        """Go to the next sign that is no blank, and give it; empty at the end."""
        while True:
            while self.at < len(self._text):
                if not self._text[self.at].isspace():
                    return self._text[self.at]
                self.at += 1
            if not self._more():
                return ""

    def take(self) -> Any:
        """Take the value that begins here."""
        while True:
            try:
                value, self.at = _DECODER.raw_decode(self._text, self.at)
            except json.JSONDecodeError as error:
                # What is cut off fails at its end, but for a string, which fails at its beginning.
                is_cut = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - 16
                if is_cut and self._more():
                    continue
                self.at = error.pos
                raise self.error(error.msg) from None
            except RecursionError:
                raise self.error("nested too deeply") from None
            return value

    def _more(self) -> bool:
        """Read as much again as is held, so that a long value is not tried too often."""
        read = self._file.read(max(PART, len(self._text) - self.at))
        try:
            chunk = self._decoder.decode(read, final=not read)
        except UnicodeDecodeError as error:
            place = self._line + self._text.count("\n", self._counted) + error.object.count(b"\n", 0, error.start)
            raise InputError(f"cannot be read: line {place}: no utf-8 text ({error.reason})") from None
        self._line += self._text.count("\n", self._counted, self.at)
        self._text, self._counted, self.at = self._text[self.at :] + chunk, 0, 0
        return bool(read)
