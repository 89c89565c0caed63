"""The secret key that signs checkpoints: one per user, generated on first use."""

import contextlib
import os
import secrets
import shlex
import stat
import tempfile
from pathlib import Path

from skippipe.errors import InputError
from skippipe.files import open_regular

MIN_BYTES, MAX_BYTES = 16, 4096
OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Permission bits that must be clear, as for ssh keys."""


def load_key(path: str | None) -> bytes:
    """Read the key in the file `path`; None: the user's default key, generated if missing.

    Raises:
        InputError: the file cannot be read or created, has the wrong size, or is accessible to other users.

    """
    if path is None:
        return _own_key(default_path())
    return _read(Path(path), f"checkpoint.key={path}")


def default_path() -> Path:
    """Path of the user's default key."""
    try:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:
        raise InputError(
            "expected a file, got null, and no home folder for a default key", key="checkpoint.key"
        ) from None
    return Path(base) / "skippipe" / "checkpoint.key"


def _own_key(path: Path) -> bytes:
    what = f"{path} (default checkpoint.key)"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(path)
        except OSError as error:
            raise InputError(f"{what}: cannot be created: {error.strerror}") from None
    return _read(path, what)


def _make(path: Path) -> None:
    """Write a new key atomically, readable by its owner only; a key that another process has just written wins."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".checkpoint.key.")  # readable by its owner alone
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()


def _read(path: Path, what: str) -> bytes:
    """Read a key from a regular file (symbolic links are followed) that only its owner may read."""
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            secret = file.read(MAX_BYTES + 1).strip()
    except OSError as error:
        raise InputError(f"{what}: cannot be read: {error.strerror}") from None
    if found.st_uid not in (os.geteuid(), 0) and os.geteuid():  # root, as in a container, may use anybody's
        raise InputError(f"{what}: expected a file of your own, got one of user {found.st_uid}")
    if found.st_mode & OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise InputError(
            f"{what}: expected a file private to its owner (mode 600), got mode {mode:o}; "
            f"chmod 600 {shlex.quote(str(path))}, and generate a new key if someone else may have read it"
        )
    if not MIN_BYTES <= len(secret) <= MAX_BYTES:
        size = f"more than {MAX_BYTES}" if len(secret) > MAX_BYTES else str(len(secret))
        raise InputError(f"{what}: expected {MIN_BYTES} to {MAX_BYTES} bytes, got {size}")
    return secret
