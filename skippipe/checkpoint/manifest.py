"""The signed list of a checkpoint's files, verified before any of them is read.

The manifest carries an HMAC-SHA256 over the hashes of all files: only a holder of the key can write a checkpoint that
loads, so foreign weights are never trained on.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skippipe.errors import InputError, unexpected, unreadable
from skippipe.files import open_regular

FORMAT = "skippipe.checkpoint/2"
MANIFEST = "manifest.json"
"""file name within a checkpoint's folder"""
MAX_BYTES = 64 * 2**20
"""limit on the size of a manifest, enough for 100,000 ranks"""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileRecord:
    """Size and hash of one file."""

    bytes: int
    sha256: str


def parse_file_record(value: object) -> FileRecord:
    """Validate a record from another process; raises `InputError`."""
    if isinstance(value, dict) and value.keys() == {"bytes", "sha256"}:
        size, digest = value["bytes"], value["sha256"]
        if isinstance(size, int) and size >= 0 and isinstance(digest, str) and _SHA256.fullmatch(digest):
            return FileRecord(size, digest)
    raise InputError(expected="bytes and sha256 of a file", found=value)


@dataclass(frozen=True)
class Manifest:
    """Every file of a checkpoint but the manifest itself."""

    iteration: int
    """iterations completed"""
    files: Mapping[str, FileRecord]
    """by path within the folder, with forward slashes"""
    sha256: str = ""
    """hash of the manifest's own text once written; it identifies the checkpoint"""

    def signed(self, key: bytes) -> str:
        """Text of the file, with its signature."""
        files = {name: asdict(record) for name, record in self.files.items()}
        content = {"format": FORMAT, "iteration": self.iteration, "files": files}
        return json.dumps(content | {"hmac": _signature(content, key)}, indent=1, sort_keys=True) + "\n"


def hash_file(path: Path) -> FileRecord:
    """Compute size and hash of a file."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(file.tell(), digest.hexdigest())


def read_manifest(folder: Path, key: bytes) -> Manifest:
    """Read a checkpoint's manifest and verify its signature.

    Raises:
        InputError: missing, malformed or not signed with `key`; the message names the file.

    """
    path = folder / MANIFEST
    text = _read(path, MAX_BYTES)
    content = _content(text, path)
    signature = content.pop("hmac", None)
    expected = _signature(content, key)
    if not isinstance(signature, str) or not signature.isascii() or not hmac.compare_digest(signature, expected):
        raise InputError("signature mismatch: edited, or signed with another checkpoint.key", file=path)
    return _manifest(content, text)


def _content(text: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("invalid JSON: truncated or edited", file=path) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise unexpected("format", found, FORMAT, path)
    return content


def _manifest(content: Mapping[str, Any], text: bytes) -> Manifest:
    # The signature holds, so a holder of the key wrote it with `signed`: the rest is well-formed.
    files = {name: parse_file_record(record) for name, record in content["files"].items()}
    return Manifest(int(content["iteration"]), files, hashlib.sha256(text).hexdigest())


def read_checked(folder: Path, name: str, manifest: Manifest) -> bytes:
    """Read a file and verify exactly the bytes returned against the manifest."""
    path = folder / name
    record = manifest.files.get(name)
    if record is None or hashlib.sha256(content := _read(path, record.bytes)).hexdigest() != record.sha256:
        raise InputError("sha256 mismatch: damaged or edited", file=path)
    return content


def _read(path: Path, most: int) -> bytes:
    """Read a file up to one byte more than `most`."""
    try:
        with open_regular(path) as file:
            return file.read(most + 1)
    except OSError as error:
        raise unreadable(path, error) from None


def check_files(folder: Path, manifest: Manifest) -> None:
    """Verify size and hash of every file of a checkpoint.

    Raises:
        InputError: a file is missing or differs from the manifest.

    """
    for name, record in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != record.bytes:
                raise InputError(file=path, expected=f"{record.bytes} bytes", found=size, hint="truncated or edited")
            if hash_file(path) != record:
                raise InputError("sha256 mismatch: damaged or edited", file=path)
        except OSError as error:
            raise unreadable(path, error) from None


def _signature(content: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
