"""Warm programs against the same ones started anew."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from train.running import is_alive
from warm import Fresh, WarmPopen

WORKERS = [sys.executable, "-P", "-m", "skippipe.train.launch.workers"]
"""It waits for what its standard input says."""
OF_PROGRAMS = (1 << 31) - 1
"""Signals that are none of the C library's own."""
WAYS = (Fresh, WarmPopen)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--version"], 0), (["plan", "cluster=mars"], 2), (["plan", "--help"], 0)],
)
def test_programs_do_the_same(arguments: list[str], status: int, tmp_path: Path) -> None:
    found = []
    for way in WAYS:
        folder = tmp_path / way.__name__
        folder.mkdir()
        line = [sys.executable, "-m", "skippipe", *arguments]
        with way(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=60)
        found.append((process.returncode, out, err, {path.name: path.read_text() for path in folder.iterdir()}))
    assert found[0] == found[1]
    assert found[0][0] == status


def traits(process: int) -> dict[str, Any]:
    """What a process has from whoever started it."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        "descriptors": sorted(int(path.name) for path in Path(f"/proc/{process}/fd").iterdir()),
        "signals": [int(status[key], 16) & OF_PROGRAMS for key in ("SigBlk", "SigIgn", "SigCgt")],
        "threads": status["Threads"],
        "folder": Path(f"/proc/{process}/cwd").readlink(),
        "session": os.getsid(process) == process,
    }


@pytest.mark.parametrize("new_session", [False, True])
def test_a_program_finds_the_same_around_it(new_session: bool, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    found = []
    for way in WAYS:
        process = way(
            WORKERS, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[writing],
            start_new_session=new_session, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        with process:
            deadline = time.monotonic() + 60
            while Path(f"/proc/{process.pid}/syscall").read_text().split()[:2] != ["0", "0x0"]:  # reads standard input
                assert time.monotonic() < deadline
                time.sleep(0.01)
            found.append(traits(process.pid))
            assert process.poll() is None
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 1
    for descriptor in (reading, writing):
        os.close(descriptor)
    assert found[0] == found[1]


def test_signals_and_the_wait_for_the_end(tmp_path: Path) -> None:
    process = WarmPopen(WORKERS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
        assert not is_alive(process.pid)
        process.kill()  # of one that has ended does nothing
