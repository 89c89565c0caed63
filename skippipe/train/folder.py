"""The folder of a run before anything is written there: it may be from somebody else, and lead elsewhere."""

from pathlib import Path

from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.manifest import read_manifest
from skippipe.checkpoint.shelf import FOLDER, Shelf
from skippipe.errors import InputError
from skippipe.files import check_plain
from skippipe.train.config import CheckpointConfig
from skippipe.train.record import BOARD, METRICS, TRACE

LOGS = "log"
"""What each process prints, in a file of its own."""
FILES = ("config*.yaml", "plan*.json", "cluster*.json", METRICS, TRACE, ".*.tmp")
FOLDERS = (FOLDER, BOARD, LOGS, ".text-*")
"""Names of what a run writes into its folder, with wildcards."""


def check_folder(folder: Path, name: str, config: CheckpointConfig) -> None:
    """See that a run can be gone on with in a folder, before a single file of it is opened for writing.

    Nothing that is written leads out of the folder, and its checkpoints, if there are any, are of whoever has the
    secret: at least one of them is signed with it. Whether its files are whole is checked later, by rank 0.

    Raises:
        InputError: it is not so; the message names the file.
        OSError: the folder cannot be read.

    """
    check_plain(folder, FILES, FOLDERS)
    reasons: list[str] = []
    checkpoints = Shelf(folder / FOLDER).all()
    secret = load_key(config.key) if checkpoints else b""
    for path in checkpoints:
        try:
            read_manifest(path, secret)
        except InputError as error:
            reasons.append(str(error))
        else:
            return
    if reasons:
        raise InputError(f"folder={name}: none of its checkpoints is whole: {'; '.join(reasons)}")
