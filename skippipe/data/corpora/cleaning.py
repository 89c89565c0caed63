"""Plain text from documentation formats, and deduplication of paragraphs. Pure functions."""

import hashlib
import re
import struct
from html.parser import HTMLParser

SKIPPED = frozenset({"script", "style", "head", "nav", "svg", "template"})
BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li",
    "main", "ol", "p", "pre", "section", "summary", "table", "tbody", "thead", "tr", "ul",
})  # fmt: skip
PERMALINK = "\N{PILCROW SIGN}"
"""Sphinx ends each heading with it."""
R_STRINGS = 16
"""Type number of a vector of strings in R's serialisation."""


def html_to_text(html: str) -> str:
    """Text of a page: one line per block, preformatted blocks unchanged."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    reader.end_paragraph()
    return "\n\n".join(reader.paragraphs).replace(PERMALINK, "")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[str] = []
        self._held: list[str] = []
        self._skipped: list[str] = []
        """open elements whose content is not text"""
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag == "body":  # elements of the head may be unclosed
            self._skipped.clear()
        if tag in SKIPPED:
            self._skipped.append(tag)
        elif tag in BLOCKS:
            self.end_paragraph()
            self._preformatted += tag == "pre"
        elif tag == "br":
            self._held.append("\n")
        elif tag in {"td", "th"}:
            self._held.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipped:
            del self._skipped[self._skipped.index(tag) :]
        elif tag in BLOCKS:
            self.end_paragraph()
            if tag == "pre":
                self._preformatted = max(self._preformatted - 1, 0)

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._held.append(data if self._preformatted else re.sub(r"\s+", " ", data))

    def end_paragraph(self) -> None:
        """End a paragraph: everything since the last block."""
        text = "".join(self._held)
        self._held.clear()
        if self._preformatted:
            text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
        else:
            text = "\n".join(" ".join(line.split()) for line in text.split("\n")).strip()
        if text.strip():
            self.paragraphs.append(text)


def pod_to_text(pod: str) -> str:
    """Text of Perl's plain old documentation, without commands and formatting codes."""
    paragraphs = []
    hidden = False
    for paragraph in re.split(r"\n\s*\n", pod):
        command = re.match(r"=(\w+)[ \t]*", paragraph)
        if command is None:
            kept = paragraph
        else:
            hidden = command[1] == "begin" or (hidden and command[1] != "end")
            kept = paragraph[command.end() :] if re.fullmatch(r"head\d|item", command[1]) else ""
        if hidden or kept.strip(" \n*") == "":
            continue
        paragraphs.append(kept if kept[0] in " \t" else _without_marks(kept))
    return "\n\n".join(text.strip("\n").rstrip() for text in paragraphs)


_MARK = re.compile(r"([A-Z])(?:<<+\s(.*?)\s>>+|<([^<>]*)>)", re.DOTALL)
_ESCAPES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/"}


def _without_marks(text: str) -> str:
    """Resolve `C<code>`, `L<text|target>`, `E<lt>` from the inside out."""

    def resolve(match: re.Match[str]) -> str:
        content = match[2] if match[2] is not None else match[3]
        if match[1] == "E":
            return _HIDDEN.get(content, content)
        if match[1] in {"X", "Z"}:
            return ""
        return content.partition("|")[0].replace("/", " ").strip() if match[1] == "L" else content

    before = ""
    while before != text:
        before, text = text, _MARK.sub(resolve, text)
    return text.translate(_SHOWN)


_HIDDEN = {name: chr(0xE000 + i) for i, name in enumerate(_ESCAPES)}
"""Placeholders of escaped brackets while formatting codes are resolved."""
_SHOWN = {0xE000 + i: sign for i, sign in enumerate(_ESCAPES.values())}


def rfc_to_text(text: str) -> str:
    """Text of an RFC without page headers and footers."""
    return re.sub(r"\n[^\n]*\[Page \w+\][ \t]*\n*(?:\f\n?)?(?:RFC \d+[^\n]*\n)?\n*", "\n\n", text).replace("\f", "")


def strings_of_r(data: bytes) -> list[str]:
    """Strings of a serialised R vector (big-endian, version 3); missing ones are empty.

    Raises:
        ValueError: not such a vector.

    """
    if data[:6] != b"X\n\0\0\0\3":
        raise ValueError("not a serialised R object of version 3")
    (encoding_bytes,) = struct.unpack_from(">i", data, 14)
    kind, count = struct.unpack_from(">ii", data, 18 + encoding_bytes)
    if kind & 0xFF != R_STRINGS:
        raise ValueError("not an R vector of strings")
    offset, strings = 26 + encoding_bytes, []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, offset + 4)
        offset += 8
        strings.append(data[offset : offset + max(length, 0)].decode("utf-8"))
        offset += max(length, 0)
    return strings


class Deduplication:
    """Drops repeated paragraphs of a corpus, ignoring white space."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def fresh(self, text: str) -> str:
        """Return the text without paragraphs seen before."""
        kept = []
        for paragraph in re.split(r"\n[ \t]*(?:\n[ \t]*)*\n", text):
            words = " ".join(paragraph.split())
            digest = hashlib.blake2b(words.encode(), digest_size=12).digest()
            if words and digest not in self._seen:
                self._seen.add(digest)
                kept.append(paragraph.strip("\n"))
        return "\n\n".join(kept)
