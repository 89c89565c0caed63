"""The secret key that signs checkpoints: one per user, generated on first use."""

import contextlib
import os
import secrets
import shlex
import stat
import tempfile
from pathlib import Path

from skippipe.errors import unexpected, unreadable, unwritable
from skippipe.files import open_regular

KEY = "checkpoint.key"
"""The setting that names the file."""
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
    return _read(Path(path))


def default_path() -> Path:
    """Path of the user's default key."""
    try:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:
        raise unexpected(KEY, "null, and no home folder for a default key", "a file") from None
    return Path(base) / "skippipe" / "checkpoint.key"


def _own_key(path: Path) -> bytes:
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(path)
        except OSError as error:
            raise unwritable(path, error, KEY) from None
    return _read(path)


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


def _read(path: Path) -> bytes:
    """Read a key from a regular file (symbolic links are followed) that only its owner may read."""
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            secret = file.read(MAX_BYTES + 1).strip()
    except OSError as error:
        raise unreadable(path, error, KEY) from None
    if found.st_uid not in (os.geteuid(), 0) and os.geteuid():  # root, as in a container, may use anybody's
        raise unexpected(KEY, f"one of user {found.st_uid}", "a file of your own", path)
    if found.st_mode & OTHERS:
        mode, hint = stat.S_IMODE(found.st_mode), "generate a new key if someone else may have read it"
        hint = f"chmod 600 {shlex.quote(str(path))}, and {hint}"
        raise unexpected(KEY, f"mode {mode:o}", "a file private to its owner (mode 600)", path, hint)
    if not MIN_BYTES <= len(secret) <= MAX_BYTES:
        size = f"more than {MAX_BYTES}" if len(secret) > MAX_BYTES else str(len(secret))
        raise unexpected(KEY, size, f"{MIN_BYTES} to {MAX_BYTES} bytes", path)
    return secret
