"""The folder of a run before anything is written there: it may be from somebody else, and lead elsewhere."""

from collections.abc import Callable
from pathlib import Path

from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.manifest import Manifest, check_files
from skippipe.checkpoint.reading import read_named_manifest
from skippipe.errors import InputError
from skippipe.files import check_plain
from skippipe.train.config import CheckpointConfig
from skippipe.train.record import BOARD, METRICS, TRACE

LOGS = "log"
"""What each process prints, in a file of its own."""
FILES = ("config*.yaml", "plan*.json", "cluster*.json", METRICS, TRACE, ".*.tmp")
FOLDERS = (CHECKPOINTS, BOARD, LOGS, ".text-*")
"""Names of what a run writes into its folder, with wildcards."""


def check_folder(folder: Path, name: str, config: CheckpointConfig) -> None:
    """See that a run can be gone on with in a folder, before a single file of it is opened for writing.

    Nothing that is written leads out of the folder, and its checkpoints, if there are any, are of whoever has the
    secret: at least one of them is signed with it.

    Raises:
        InputError: it is not so; the message names the file.
        OSError: the folder cannot be read.

    """
    check_plain(folder, FILES, FOLDERS)
    _first_that(read_named_manifest, folder, name, config)


def check_checkpoints(folder: Path, name: str, config: CheckpointConfig) -> str | None:
    """Hold the files of the newest checkpoint against its manifest; where they do not fit, those of an older one.

    Returns:
        Hash of the manifest; None where there is no checkpoint.

    Raises:
        InputError: there are checkpoints, and none of them is whole; the message says what is wrong with each.

    """

    def whole(path: Path, secret: bytes) -> Manifest:
        manifest = read_named_manifest(path, secret)
        check_files(path, manifest)
        return manifest

    found = _first_that(whole, folder, name, config)
    return None if found is None else found.sha256


def _first_that(
    check: Callable[[Path, bytes], Manifest], folder: Path, name: str, config: CheckpointConfig
) -> Manifest | None:
    """Give what a check makes of the newest checkpoint that passes it; None where there is no checkpoint."""
    checkpoints = CheckpointDirectory(folder / CHECKPOINTS).all()
    secret = load_key(config.key) if checkpoints else b""
    reasons: list[str] = []
    for path in checkpoints:
        try:
            return check(path, secret)
        except InputError as error:
            reasons.append(str(error))
    if reasons:
        raise InputError(f"folder={name}: none of its checkpoints is whole: {'; '.join(reasons)}")
    return None
