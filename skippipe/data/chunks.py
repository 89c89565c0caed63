"""Documents split into chunks that can be tokenised separately, so that memory stays bounded."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

CHUNK_CHARACTERS = 16_384
"""Long enough to amortise a call, short enough to balance threads."""


class Chunk(NamedTuple):
    """A part of a document."""

    text: str
    last: bool
    """whether it ends the document"""


def split_chunks(chunks: Iterable[Chunk], limit: int | None = CHUNK_CHARACTERS) -> Iterator[Chunk]:
    """Split documents, given as chunks of any size, into chunks of at most `limit` characters.

    Documents are split only after a single newline between two non-blank characters, where byte-level tokenizers start
    a new word. Without such a position a chunk exceeds `limit`; None: documents are not split. The result does not
    depend on the input's chunks. Empty documents are dropped.
    """
    held, begun, searched = "", False, 0
    for chunk in chunks:
        held += chunk.text
        start = 0
        while limit is not None and (end := _split_position(held, start, limit, searched)) is not None:
            yield Chunk(held[start:end], last=False)
            start, begun, searched = end, True, 0
        held = held[start:]
        if limit is not None and len(held) > limit:
            searched = len(held) - 1  # no split position before the last character, whose successor is unknown
        if chunk.last:
            if held or begun:
                yield Chunk(held, last=True)
            held, begun, searched = "", False, 0


_ALONE = re.compile(r"(?<=\S)\n(?=\S)")


def _split_position(text: str, start: int, limit: int, searched: int) -> int | None:
    """End of the chunk that starts at `start`: the last split position within `limit`, else the first after it.

    There is known to be none before `searched`.
    """
    end = start + limit
    if len(text) <= end:
        return None
    newline = text.rfind("\n", start + 1, end) if searched < end else -1
    while newline >= 0:
        if _is_single(text, newline):
            return newline + 1
        newline = text.rfind("\n", start + 1, newline)
    found = _ALONE.search(text, max(end, searched))
    return None if found is None else found.end()


def _is_single(text: str, newline: int) -> bool:
    return not text[newline - 1].isspace() and not text[newline + 1].isspace()
