"""What a checkpoint consists of, signed: checked before anything of it is read.

The manifest carries a keyed hash (HMAC-SHA256) over the hashes of all files: only whoever has the key can make a
checkpoint that is read, and weights that somebody else has put in are not trained on.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skippipe.errors import InputError
from skippipe.files import open_regular

FORMAT = "skippipe.checkpoint/2"
MANIFEST = "manifest.json"
"""of the file within a checkpoint's folder"""
MAX_BYTES = 64 * 2**20
"""bytes that are read of a manifest; one of 100,000 ranks is smaller"""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileRecord:
    """What is known of one file."""

    bytes: int
    sha256: str


def parse_file_record(value: object) -> FileRecord:
    """Make sense of what another process says of a file; raises `ValueError` where it is no note."""
    if isinstance(value, dict) and value.keys() == {"bytes", "sha256"}:
        size, digest = value["bytes"], value["sha256"]
        if isinstance(size, int) and size >= 0 and isinstance(digest, str) and _SHA256.fullmatch(digest):
            return FileRecord(size, digest)
    raise ValueError(f"expected bytes and sha256 of a file, got {str(value)[:80]}")


@dataclass(frozen=True)
class Manifest:
    """Every file of a checkpoint but the manifest itself."""

    iteration: int
    """iterations that had been trained"""
    files: Mapping[str, FileRecord]
    """by name within the folder, with forward slashes"""
    sha256: str = ""
    """of the manifest's own text, once it is written: who sees the same one sees the same checkpoint"""

    def signed(self, key: bytes) -> str:
        """The text of the file."""
        files = {name: asdict(record) for name, record in self.files.items()}
        content = {"format": FORMAT, "iteration": self.iteration, "files": files}
        return json.dumps(content | {"hmac": _signature(content, key)}, indent=1, sort_keys=True) + "\n"


def hash_file(path: Path) -> FileRecord:
    """Hash a file."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(file.tell(), digest.hexdigest())


def read_manifest(folder: Path, key: bytes) -> Manifest:
    """Read the manifest of a checkpoint and check its signature.

    Raises:
        InputError: there is none, or it is no manifest, or not signed with `key`; the message names the file.

    """
    path = folder / MANIFEST
    text = _read(path, MAX_BYTES)
    content = _content(text, path)
    signature = content.pop("hmac", None)
    expected = _signature(content, key)
    if not isinstance(signature, str) or not signature.isascii() or not hmac.compare_digest(signature, expected):
        raise InputError(f"{path}: its signature does not fit: it was edited, or signed with another checkpoint.key")
    return _manifest(content, text)


def _content(text: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is no valid JSON, it is truncated or edited") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise InputError(f"{path}: format is {found!r}, {FORMAT!r} is expected")
    return content


def _manifest(content: Mapping[str, Any], text: bytes) -> Manifest:
    # Signed: whoever has the key wrote it with `signed`, so the rest has the right form.
    files = {name: parse_file_record(record) for name, record in content["files"].items()}
    return Manifest(int(content["iteration"]), files, hashlib.sha256(text).hexdigest())


def read_checked(folder: Path, name: str, manifest: Manifest) -> bytes:
    """Read a whole file, which is what its manifest says at the very moment that it is read."""
    path = folder / name
    record = manifest.files.get(name)
    if record is None or hashlib.sha256(content := _read(path, record.bytes)).hexdigest() != record.sha256:
        raise InputError(f"{path}: has other contents than when it was written: it is damaged or edited")
    return content


def _read(path: Path, most: int) -> bytes:
    """Read a file of at most so many bytes; of a larger one, one byte more."""
    try:
        with open_regular(path) as file:
            return file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def check_files(folder: Path, manifest: Manifest) -> None:
    """Hold every file of a checkpoint against its manifest.

    Raises:
        InputError: a file is missing, shorter or longer, or has other contents.

    """
    for name, record in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != record.bytes:
                raise InputError(f"{path}: has {size} bytes, {record.bytes} are expected: it is truncated or edited")
            if hash_file(path) != record:
                raise InputError(f"{path}: has other contents than when it was written: it is damaged or edited")
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _signature(content: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
