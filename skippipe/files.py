"""Files: text read with errors that name the file, files written atomically."""

import contextlib
import errno
import fcntl
import fnmatch
import io
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from skippipe.errors import InputError, in_file, printable, unexpected, unreadable, unwritable

MAX_TEXT_BYTES = 128 * 1024 * 1024
"""Limit for clusters and plans: 1,900 nodes with a full matrix or 20,000 microbatches through 20 stages stay below it;
reading them takes about four times the memory. Larger clusters need `region_of`: 10,000 nodes then take 1 MB."""
MAX_OBJECT_BYTES = 32 * 1024 * 1024
"""Limit for other files, which become Python objects: these need up to 30 times the memory."""
CHUNK_BYTES = 1024 * 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_text(path: str, most: int = MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 file without its byte order mark.

    Raises:
        InputError: it cannot be read, is no text, or has more than `most` bytes; the message names the file.

    """
    content = _read_bytes(path, most)
    text = content.removeprefix(BYTE_ORDER_MARK)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        first = error.start + len(content) - len(text)
        raise InputError(expected="UTF-8 text", found=f"byte {content[first]:#04x} at {first}", file=path) from None


def _read_bytes(path: str, most: int) -> bytearray:
    """Read in chunks: a file may be endless, and `most` bytes may exceed the memory."""
    if not path:
        raise InputError(expected="the name of a JSON file", found="")
    content = bytearray()
    try:
        with Path(path).open("rb") as file:
            while len(content) <= most and (piece := file.read(CHUNK_BYTES)):
                content += piece
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if len(content) > most:
        raise InputError(expected=f"at most {most} bytes", found="more", file=path)
    return content


def read_json_object(path: str) -> dict[str, Any]:
    """Read a JSON file with one object; raises `InputError` naming the file."""
    text = read_text(path, MAX_OBJECT_BYTES)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InputError("nested too deeply", file=path) from None
    except json.JSONDecodeError as error:
        raise InputError(f"invalid JSON: {error.msg}", file=path, position=(error.lineno, error.colno)) from None
    except InputError as error:
        raise in_file(error, path) from None
    except ValueError as error:
        raise InputError(f"invalid JSON: {error}", file=path) from None
    if not isinstance(value, dict):
        raise InputError(expected="a JSON object", found=f"a JSON {_json_type(value)}", file=path)
    return value


def check_writable(path: Path, key: str = "output") -> None:
    """Raise `InputError` unless a file can be written at `path`; called before the work whose result goes there.

    `key` is the setting that names the file.
    """
    target = _resolved(path, key)
    try:
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise unexpected(key, f"{path}, which is {kind}", "a file name")
        if mode is not None and not os.access(target, os.W_OK):
            raise unwritable(path, "no permission", key)
        if not target.parent.is_dir():
            raise unwritable(path, f"the folder {printable(str(target.parent))} does not exist", key)
        with _temporary_beside(target):
            pass
    except OSError as error:
        raise unwritable(path, error, key) from None


def write_text(path: Path, text: str, *, follow: bool = True) -> None:
    """Write `text` to `path` atomically: a reader finds the old file or the new one, never a part.

    A symbolic link is followed or, unless `follow`, replaced by the file. Characters that UTF-8 cannot encode, as in
    names of files, are escaped.

    Raises `OSError` if it cannot be written; the old file is then unchanged.
    """
    write_bytes(path, text.encode(errors="backslashreplace"), follow=follow)


def write_bytes(path: Path, content: bytes, *, follow: bool = True) -> None:
    """Write a binary file as `write_text` does."""
    target = _resolved(path) if follow else _resolved(path.parent) / path.name
    with _temporary_beside(target) as temporary:
        _write_synced(temporary, content)
        temporary.replace(target)
    sync_folder(target.parent)


def write_synced(path: Path, text: str) -> None:
    """Write a file and sync it to disk; raises `OSError`."""
    _write_synced(path, text.encode())


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _resolved(path: Path, key: str = "output") -> Path:
    """The target of symbolic links, so that a link is not replaced by a file."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise unwritable(path, error, key) from None


@contextlib.contextmanager
def _temporary_beside(target: Path) -> Iterator[Path]:
    """Create an empty file in the folder of `target`, removed at the end if it is still there."""
    temporary = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    # Opened as any new file is, so that the user's umask decides about its mode.
    temporary.unlink(missing_ok=True)
    temporary.touch(exist_ok=False)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str) -> None:
    """Remove temporary files of `name` left by a killed process."""
    for path in folder.glob(f".{name}.*.tmp"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path, busy: InputError) -> Iterator[None]:
    """Keep other processes from working in a folder; where one does, raise `busy`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError:  # a file system without locks: no exclusion
            pass
        yield
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make a new name survive a power failure, if the file system can sync folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_utf8(path: Path, key: str) -> None:
    """Raise `InputError` if the name of a folder is not UTF-8, which libraries for models do not support."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise unexpected(key, path, "a folder whose name is UTF-8") from None


def _refuse_constant(name: str) -> NoReturn:
    raise InputError(expected="finite numbers", found=name)


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; raises `OSError` for anything else, and never waits as for a named pipe."""
    return os.fdopen(_regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path), "rb")


def _regular(handle: int, path: Path) -> int:
    """The same descriptor; closes it and raises `OSError` where it is of no regular file."""
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "no regular file", str(path))


def open_own(path: Path) -> int:
    """Open a file in place for reading and writing, created if need be; its contents stay. Returns the descriptor.

    What is written goes into this very name: raises `OSError` where a symbolic link or no regular file is there, and
    makes a copy first where the file has a second name (a hard link), which keeps what it has.
    """
    handle = _open_own(path)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        write_bytes(path, path.read_bytes(), follow=False)
        handle = _open_own(path)
    return handle


def _open_own(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path)) from None
        raise
    return _regular(handle, path)


def open_new(path: Path) -> int:
    """Create an empty file in place of whatever has the name, open for writing; returns the descriptor."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def check_plain(folder: Path, files: Sequence[str], folders: Sequence[str]) -> None:
    """Raise `InputError` if a file to be written within a folder leads out of it: links, devices, named pipes.

    Args:
        folder: where files and folders may be; it may be reached through links itself.
        files: names of files within, with wildcards.
        folders: the same of folders; everything below them is looked at.

    """
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            for patterns, expected in ((files, "a regular file"), (folders, "a folder")):
                if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
                    _check_entry(entry, expected)


def _check_entry(entry: os.DirEntry[str], expected: str) -> None:
    mode = entry.stat(follow_symlinks=False).st_mode
    found = next((kind for test, kind in _KINDS if test(mode)), "something else")
    if found not in expected:
        raise InputError(file=entry.path, expected=expected, found=found, hint="nothing is written through it")
    if found == "a folder":
        with os.scandir(entry.path) as entries:
            for inner in sorted(entries, key=lambda inner: inner.name):
                _check_entry(inner, "a regular file or a folder")


_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISREG, "a regular file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


TAIL_BYTES = 2**20
"""Bytes read at a time in the search for the last line end."""


def cut_to_lines(descriptor: int) -> None:
    """Truncate a file after its last line end: a killed process or a full disk may leave an incomplete line."""
    end = size = os.lseek(descriptor, 0, os.SEEK_END)
    while end:
        begin = max(end - TAIL_BYTES, 0)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        os.ftruncate(descriptor, end)
