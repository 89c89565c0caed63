"""The secret that checkpoints are signed with."""

import stat
import threading
from pathlib import Path

import pytest

from skippipe.checkpoint.key import default_path, load_key
from skippipe.errors import InputError


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_made_once_and_for_its_user_alone() -> None:
    first = load_key(None)
    assert load_key(None) == first
    assert len(first) == 64
    assert stat.S_IMODE(default_path().stat().st_mode) == 0o600
    assert list(default_path().parent.iterdir()) == [default_path()]


def test_many_at_once_get_the_same() -> None:
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(load_key(None))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 16
    assert len(set(got)) == 1


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("sixteen bytes at least\n")
    assert load_key(str(path)) == b"sixteen bytes at least"
    path.write_text("short")
    with pytest.raises(
        InputError, match=f"{path}, given as the secret of checkpoints: holds 5 bytes, a secret of at least 16"
    ):
        load_key(str(path))
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        load_key(str(tmp_path / "nothing"))


def test_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("no folder")
    with pytest.raises(InputError, match=r"checkpoint\.key names no other file, cannot be made: Not a directory"):
        load_key(None)
