"""Documents in pieces that can be tokenised apart, so that memory is bounded where there are places to cut."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

PIECE_CHARACTERS = 16_384
"""Long enough for a call, short enough that threads share the work evenly."""


class Piece(NamedTuple):
    """A part of a document."""

    text: str
    last: bool
    """whether the document ends with it"""


def cut_pieces(chunks: Iterable[Piece], limit: int | None = PIECE_CHARACTERS) -> Iterator[Piece]:
    """Cut documents, which come in chunks of any size, into pieces of at most `limit` characters.

    A document is cut only after a line end that stands alone between two characters that are not blank; there the
    rules of byte-level tokenizers begin a word anew. Where that leaves no place, a piece is longer than `limit`; None:
    documents stay whole. Pieces do not depend on how a document was chunked. Empty documents vanish.
    """
    held, begun = "", False
    for chunk in chunks:
        held += chunk.text
        start = 0
        while limit is not None and (end := _cut_place(held, start, limit)) is not None:
            yield Piece(held[start:end], last=False)
            start, begun = end, True
        held = held[start:]
        if chunk.last:
            if held or begun:
                yield Piece(held, last=True)
            held, begun = "", False


def _cut_place(text: str, start: int, limit: int) -> int | None:
    """Where the piece that begins at `start` ends: the last place within `limit`, else the first one after it."""
    end = start + limit
    if len(text) <= end:
        return None
    place = text.rfind("\n", start + 1, end)
    while place >= 0:
        if _stands_alone(text, place):
            return place + 1
        place = text.rfind("\n", start + 1, place)
    place = text.find("\n", end)
    while 0 <= place < len(text) - 1:
        if _stands_alone(text, place):
            return place + 1
        place = text.find("\n", place + 1)
    return None


def _stands_alone(text: str, place: int) -> bool:
    return not text[place - 1].isspace() and not text[place + 1].isspace()
