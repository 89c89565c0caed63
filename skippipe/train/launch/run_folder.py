"""The folder of a run: made, or taken over from an earlier attempt; locked while a process trains there."""

import contextlib
import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.manifest import Manifest, check_files
from skippipe.checkpoint.reading import read_named_manifest
from skippipe.context import Context
from skippipe.errors import InputError, unexpected, unwritable
from skippipe.files import check_plain, check_utf8, locked, remove_leftovers, write_text
from skippipe.train.launch.failures import FAILURES
from skippipe.train.observe.run_log import BOARD, METRICS, SETTINGS, TRACE
from skippipe.train.resolve.spec import RunSpec

LOGS = "log"
"""Output of each process, in a file of its own."""
FILES = ("config*.yaml", "plan*.json", "cluster*.json", METRICS, TRACE, FAILURES, ".*.tmp")
FOLDERS = (CHECKPOINTS, BOARD, LOGS, ".text-*")
"""Names of what a run writes into its folder, with wildcards."""


@contextlib.contextmanager
def run_folder(spec: RunSpec, context: Context) -> Iterator[Path]:
    """Make the folder of a run, or take over one that holds a run; for one process at a time.

    A run that fails before it has reported anything leaves no files.

    Raises:
        InputError: the folder cannot be used.

    """
    name = spec.launch.folder or f"runs/{dt.datetime.now():%Y-%m-%d_%H-%M-%S}"  # noqa: DTZ005 - for people: local time
    folder = context.folder / name
    check_utf8(folder, "folder")
    made = next((p for p in [*reversed(folder.parents), folder] if not p.exists()), None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(name, error, "folder") from None
    with locked(folder, unwritable(name, "another process trains there", "folder")):
        taken_over = _take_over(folder, name, spec)
        try:
            yield folder
        except BaseException:
            metrics = folder / METRICS
            if not taken_over and not (metrics.exists() and metrics.stat().st_size):
                _remove(folder, made)
            raise


def _take_over(folder: Path, name: str, spec: RunSpec) -> bool:
    """Write the settings into a new folder; whether it held a run already."""
    settings = folder / SETTINGS
    try:
        check_folder(folder, name, spec.checkpoints.key)
        taken_over = settings.exists()
        if not taken_over:
            remove_leftovers(folder, SETTINGS)
        if not taken_over and any(folder.iterdir()):
            raise unexpected("folder", f"{name} with other files in it", "a new folder or that of a run")
        if not taken_over or not os.access(folder, os.W_OK):
            write_text(settings, spec.settings_yaml, follow=False)
    except OSError as error:
        raise unwritable(name, error, "folder") from None
    return taken_over


def _remove(folder: Path, made: Path | None) -> None:
    """Remove what a run has written, and the folders that were made for it unless others use them by now."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for path in [folder, *folder.parents] if made is not None else []:
        with contextlib.suppress(OSError):
            path.rmdir()
        if path == made:
            break


def check_folder(folder: Path, name: str, key: str | None) -> None:
    """Check that a run can resume in a folder, which may be anybody's, before a file in it is opened for writing.

    Nothing that is written leads out of the folder, and at least one of its checkpoints, if there are any, is signed
    with the secret in the file `key`.

    Raises:
        InputError: it is not so; the message names the file.
        OSError: the folder cannot be read.

    """
    check_plain(folder, FILES, FOLDERS)
    _newest_that(read_named_manifest, folder, name, key)


def check_checkpoints(folder: Path, name: str, key: str | None) -> str | None:
    """Verify the files of the newest checkpoint against its manifest; if they do not match, those of an older one.

    Returns:
        Hash of the manifest; None: there is no checkpoint.

    Raises:
        InputError: there are checkpoints, and none is complete; the message says what is wrong with each.

    """

    def verify(path: Path, secret: bytes) -> Manifest:
        manifest = read_named_manifest(path, secret)
        check_files(path, manifest)
        return manifest

    found = _newest_that(verify, folder, name, key)
    return None if found is None else found.sha256


def _newest_that(check: Callable[[Path, bytes], Manifest], folder: Path, name: str, key: str | None) -> Manifest | None:
    """Manifest of the newest checkpoint that passes a check; None: there is no checkpoint."""
    checkpoints = CheckpointDirectory(folder / CHECKPOINTS).all()
    secret = load_key(key) if checkpoints else b""
    reasons: list[str] = []
    for path in checkpoints:
        try:
            return check(path, secret)
        except InputError as error:
            reasons.append(str(error))
    if reasons:
        raise InputError(f"none of the checkpoints in {name} is complete: {'; '.join(reasons)}", key="folder")
    return None
