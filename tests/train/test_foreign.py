"""Folders of runs that come from somebody else: nothing is written through them, nor before they have been checked."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Run
from train.alone import train_alone
from train.jobs import TINY, make_job

from skippipe.checkpoint import manifest, open_checkpoint
from skippipe.checkpoint.directory import CHECKPOINTS, CheckpointDirectory
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.reading import latest_complete
from skippipe.errors import InputError
from skippipe.files import open_new, open_own, write_text
from skippipe.train.launch.run_folder import check_checkpoints, check_folder

CANARY = "nobody writes here\n"
FILES = [
    "log/0.txt", "log/parent.txt", "metrics.jsonl", "trace.json", "plan.json", "plan_after_40.json", "cluster.json",
    "config.yaml", "config_after_3_2.yaml", "tensorboard/events.out.tfevents.1", ".config.yaml.77.tmp",
    "checkpoints/iteration-000001", "checkpoints/.iteration-000002.new", "checkpoints/iteration-000003/state.json",
    "checkpoints/iteration-000003/tensors/rank-00000.safetensors",
]  # fmt: skip
FOLDERS = ["log", "tensorboard", "checkpoints", "checkpoints/iteration-000003", ".text-abc"]


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Have what waits for a named pipe fail."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A folder with a file that is none of the run's business."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "canary").write_text(CANARY)
    return folder


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A run's folder with the settings of some run."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("folder: run\n")
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything in a folder: when it was changed, and what it holds."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *sorted(folder.rglob("*"))]
        if not path.is_fifo()
    }


def make_way(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def check_refused(foreign: Path, name: str, found: str, run: Run | None) -> None:
    before = snapshot(foreign)
    with pytest.raises(InputError, match=rf"/{name}: expected .*, got {found}; nothing is written through it"):
        check_folder(foreign, "run", None)
    assert snapshot(foreign) == before
    if run is None:
        return
    result = run("train", *TINY, "folder=run")
    assert (result.status, result.out) == (2, "")
    assert f"run/{name}: expected a" in result.err
    assert f", got {found};" in result.err
    assert snapshot(foreign) == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_place_of_a_file(name: str, exists: bool, foreign: Path, canary: Path, run: Run) -> None:
    make_way(foreign / name).symlink_to(canary / ("canary" if exists else "new"))
    check_refused(foreign, name, "a symbolic link", run if exists else None)
    assert {path.name: path.read_text() for path in canary.iterdir()} == {"canary": CANARY}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_in_place_of_a_folder(name: str, foreign: Path, canary: Path, run: Run) -> None:
    make_way(foreign / name).symlink_to(canary)
    check_refused(foreign, name, "a symbolic link", run)
    assert {path.name: path.read_text() for path in canary.iterdir()} == {"canary": CANARY}


@pytest.mark.parametrize("name", ["metrics.jsonl", "log/1.txt", "plan.json", "checkpoints/iteration-000001/state.json"])
def test_a_named_pipe(name: str, foreign: Path, run: Run) -> None:
    os.mkfifo(make_way(foreign / name))
    check_refused(foreign, name, "a named pipe", run)


@pytest.mark.parametrize(("name", "found"), [("log", "a regular file"), ("metrics.jsonl", "a folder")])
def test_a_file_for_a_folder(name: str, found: str, foreign: Path, run: Run) -> None:
    (foreign / name).write_text("x") if found == "a regular file" else (foreign / name).mkdir()
    check_refused(foreign, name, found, run)


def test_what_is_no_part_of_a_run_is_left_alone(foreign: Path, canary: Path) -> None:
    (foreign / "notes").symlink_to(canary)
    (foreign / "latest.txt").symlink_to(canary / "canary")
    (foreign.parent / "link").symlink_to(foreign)
    check_folder(foreign.parent / "link", "link", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with checkpoints of ours."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    folder.mkdir()
    train_alone(make_job(train__iterations=1), folder)
    return folder


def test_nothing_is_opened_before_checkpoints_are_checked(trained: Path, foreign: Path, run: Run) -> None:
    """Signed by somebody else, they are refused, and not a byte has changed; one of ours is enough to go on."""
    shutil.copytree(trained, foreign, dirs_exist_ok=True)
    (foreign / "log").mkdir()
    for name in ("log/0.txt", "log/parent.txt", ".config.yaml.77.tmp"):
        (foreign / name).write_text("from before\n")
    checkpoints = sorted((foreign / CHECKPOINTS).iterdir())
    for path in checkpoints:
        known = open_checkpoint(path).manifest
        (path / manifest.MANIFEST).write_text(known.signed(b"the secret of somebody else"))
    before = snapshot(foreign)
    result = run("train", *TINY, "folder=run")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("skippipe train: folder: none of the checkpoints in run is complete: ")
    assert result.err.count("signature mismatch") == len(checkpoints) == 2
    assert snapshot(foreign) == before
    shutil.copytree(trained / CHECKPOINTS, foreign / CHECKPOINTS, dirs_exist_ok=True)
    check_folder(foreign, "run", None)
    for path in checkpoints:  # ours, with the weights of somebody else
        file = next((path / "tensors").iterdir())
        file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    check_folder(foreign, "run", None)
    before = snapshot(foreign)
    result = run("train", *TINY, "folder=run")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("skippipe train: folder: none of the checkpoints in run is complete: ")
    assert result.err.count("sha256 mismatch") == 2
    assert snapshot(foreign) == before


def test_files_are_hashed_once(trained: Path, tmp_path: Path) -> None:
    """What the supervisor has checked, rank 0 takes as it is; and nothing else."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    checked = check_checkpoints(copy, "copy", None)
    directory, secret = CheckpointDirectory(copy / CHECKPOINTS), load_key(None)
    newest = directory.all()[0]
    file = next((newest / "tensors").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    assert checked is not None
    for given, found in ((checked, newest), (None, directory.all()[1]), ("0" * 64, directory.all()[1])):
        checkpoint, damaged = latest_complete(directory, secret, given)
        assert checkpoint is not None
        assert checkpoint.path == found
        assert len(damaged) == (found != newest)
    older = check_checkpoints(copy, "copy", None)
    assert older not in {None, checked}
    shutil.rmtree(copy / CHECKPOINTS)
    assert check_checkpoints(copy, "copy", None) is None


@pytest.mark.parametrize("name", [manifest.MANIFEST, "state.json", "tensors/rank-00000.safetensors"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_reading_does_not_wait(name: str, make: Callable[[Path], None], trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    for path in (copy / CHECKPOINTS).iterdir():
        make(make_way(path / name))
        with pytest.raises(InputError, match=rf"{name}: (cannot be read: no regular file|expected \d+ bytes, got 0)"):
            open_checkpoint(path)


def test_files_that_are_opened_for_writing(canary: Path, tmp_path: Path) -> None:
    """Also where a link appears after the folder has been looked at."""
    for name in ("canary", "new"):
        link = tmp_path / name
        link.symlink_to(canary / name)
        with pytest.raises(OSError, match="a symbolic link, which is not followed"):
            open_own(link)
        os.close(open_new(link))
        assert not link.is_symlink()
        link.unlink()
        link.symlink_to(canary / name)
        write_text(link, "text", follow=False)
        assert (link.is_symlink(), link.read_text()) == (False, "text")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        open_own(pipe)
    assert {path.name: path.read_text() for path in canary.iterdir()} == {"canary": CANARY}
