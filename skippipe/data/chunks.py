"""Documents in pieces that can be tokenised apart, so that memory is bounded where there are places to cut."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

CHUNK_CHARACTERS = 16_384
"""Long enough for a call, short enough that threads share the work evenly."""


class Chunk(NamedTuple):
    """A part of a document."""

    text: str
    last: bool
    """whether the document ends with it"""


def split_chunks(chunks: Iterable[Chunk], limit: int | None = CHUNK_CHARACTERS) -> Iterator[Chunk]:
    """Cut documents, which come in chunks of any size, into pieces of at most `limit` characters.

    A document is cut only after a line end that stands alone between two characters that are not blank; there the
    rules of byte-level tokenizers begin a word anew. Where that leaves no place, a piece is longer than `limit`; None:
    documents stay whole. Pieces do not depend on how a document was chunked. Empty documents vanish.
    """
    held, begun, searched = "", False, 0
    for chunk in chunks:
        held += chunk.text
        start = 0
        while limit is not None and (end := _cut_place(held, start, limit, searched)) is not None:
            yield Chunk(held[start:end], last=False)
            start, begun, searched = end, True, 0
        held = held[start:]
        if limit is not None and len(held) > limit:
            searched = len(held) - 1  # there is no place before the last sign, of which the next one is not known
        if chunk.last:
            if held or begun:
                yield Chunk(held, last=True)
            held, begun, searched = "", False, 0


_ALONE = re.compile(r"(?<=\S)\n(?=\S)")


def _cut_place(text: str, start: int, limit: int, searched: int) -> int | None:
    """Where the piece that begins at `start` ends: the last place within `limit`, else the first one after it.

    Up to `searched` there is known to be none.
    """
    end = start + limit
    if len(text) <= end:
        return None
    place = text.rfind("\n", start + 1, end) if searched < end else -1
    while place >= 0:
        if _stands_alone(text, place):
            return place + 1
        place = text.rfind("\n", start + 1, place)
    found = _ALONE.search(text, max(end, searched))
    return None if found is None else found.end()


def _stands_alone(text: str, place: int) -> bool:
    return not text[place - 1].isspace() and not text[place + 1].isspace()
