"""The key that signs checkpoints."""

import os
import stat
import threading
from pathlib import Path

import pytest

from skippipe.checkpoint.key import default_path, load_key
from skippipe.errors import InputError


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_default_key_is_generated_once_and_private() -> None:
    first = load_key(None)
    assert load_key(None) == first
    assert len(first) == 64
    assert stat.S_IMODE(default_path().stat().st_mode) == 0o600
    assert list(default_path().parent.iterdir()) == [default_path()]


def test_concurrent_processes_get_the_same_key() -> None:
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(load_key(None))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 16
    assert len(set(got)) == 1


def test_key_file_given(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("sixteen bytes at least\n")
    path.chmod(0o600)
    assert load_key(str(path)) == b"sixteen bytes at least"
    path.write_text("short")
    with pytest.raises(InputError, match=f"{path}: checkpoint.key: expected 16 to 4096 bytes, got 5"):
        load_key(str(path))
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        load_key(str(tmp_path / "nothing"))


def test_default_key_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("no folder")
    with pytest.raises(InputError, match=r"checkpoint\.key: .*/checkpoint\.key cannot be written: Not a directory"):
        load_key(None)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o610, 0o777])
def test_key_accessible_to_others_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a secret"
    path.write_text("sixteen bytes at least\n")
    path.chmod(mode)
    message = rf"{path}: checkpoint\.key: expected .* \(mode 600\), got mode {mode:o}; chmod 600 '{path}'"
    with pytest.raises(InputError, match=message):
        load_key(str(path))
    path.chmod(0o400)
    assert load_key(str(path)) == b"sixteen bytes at least"
    load_key(None)
    default_path().chmod(mode)
    with pytest.raises(InputError, match=rf"/checkpoint\.key: checkpoint\.key: .* got mode {mode:o}"):
        load_key(None)


def test_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("sixteen bytes at least\n")
    path.chmod(0o600)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert load_key(str(path)) == b"sixteen bytes at least"
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # whoever administers the machine may give secrets to its users
        assert load_key(str(path)) == b"sixteen bytes at least"
        os.chown(path, owner + 2, -1)
        owner += 2
    with pytest.raises(InputError, match=f"expected a file of your own, got one of user {owner}"):
        load_key(str(path))


def test_key_behind_a_link(tmp_path: Path) -> None:
    """The target's permissions count."""
    path, link = tmp_path / "secret", tmp_path / "link"
    path.write_text("sixteen bytes at least\n")
    path.chmod(0o644)
    link.symlink_to(path)
    with pytest.raises(InputError, match="got mode 644"):
        load_key(str(link))
    path.chmod(0o600)
    assert load_key(str(link)) == b"sixteen bytes at least"
    path.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        load_key(str(link))


def test_invalid_keys(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for content, held in ((b"", "0"), (b" \n\n", "0"), (b"x" * 15, "15"), (b"x" * 4097, "more than 4096")):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InputError, match=rf"expected 16 to 4096 bytes, got {held}"):
            load_key(str(path))
    path.unlink()
    os.mkfifo(path, 0o600)
    for odd in (path, tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=rf"{odd} cannot be read: no regular file"):
            load_key(str(odd))


def test_default_key_is_a_dangling_link(tmp_path: Path) -> None:
    """A key is not created at a location that somebody else chose."""
    default_path().parent.mkdir(parents=True)
    default_path().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        load_key(None)
    assert not (tmp_path / "elsewhere").exists()
