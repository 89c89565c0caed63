"""The secret that checkpoints are signed with: one for each user, made when first needed."""

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
"""Permissions that nobody but the owner may have, as ssh has it for its keys."""


def load_key(path: str | None) -> bytes:
    """Read the secret in the file `path`; None: the user's own, which is made if there is none yet.

    Raises:
        InputError: the file cannot be read, holds too little, may be read by others, or cannot be made.

    """
    if path is None:
        return _own_key(default_path())
    return _read(Path(path), f"{path}, given as the secret of checkpoints")


def default_path() -> Path:
    """Where a user's own secret lies."""
    try:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:
        raise InputError("checkpoint.key is not set, and there is no home folder for one: a file is expected") from None
    return Path(base) / "skippipe" / "checkpoint.key"


def _own_key(path: Path) -> bytes:
    what = f"{path}, the secret of checkpoints where checkpoint.key names no other file"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(path)
        except OSError as error:
            raise InputError(f"{what}, cannot be made: {error.strerror}") from None
    return _read(path, what)


def _make(path: Path) -> None:
    """Write a new secret, whole and for this user only; where another process was faster, its own stands."""
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
    """Read a secret from a regular file, which a link may lead to, that nobody but its owner may read."""
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
            f"{what}: expected a file that only its owner may use (mode 600), got mode {mode:o}; "
            f"chmod 600 {shlex.quote(str(path))}, and make another secret if somebody else may have read it"
        )
    if not MIN_BYTES <= len(secret) <= MAX_BYTES:
        held = f"more than {MAX_BYTES}" if len(secret) > MAX_BYTES else str(len(secret))
        raise InputError(
            f"{what}: holds {held} bytes, a secret of at least {MIN_BYTES} is expected, and at most {MAX_BYTES}"
        )
    return secret
