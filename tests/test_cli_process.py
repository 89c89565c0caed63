"""The command as a process: entry points, Ctrl-C, a reader that goes away, no torch."""

import contextlib
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skippipe.plan_file import load_plan

pytestmark = pytest.mark.usefixtures("fresh")
PYTHON_M = [sys.executable, "-m", "skippipe"]


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PYTHON_M, *arguments], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def cpu_s(process: int) -> float:
    """Seconds that a process has computed, on all its threads."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    """Seconds that all children which have ended had computed."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_python_m_and_the_command_are_one(tmp_path: Path) -> None:
    for command in (PYTHON_M, [str(Path(sys.executable).with_name("skippipe"))]):
        done = subprocess.run(
            [*command, "plan", "cluster=local4", "planner.time_limit_s=0.1"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "local-3" in done.stdout
        refused = subprocess.run([*command, "plan", "cluster=mars"], cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 2
        assert refused.stderr.startswith("skippipe plan: cluster: expected one of ")


def test_interrupt(tmp_path: Path) -> None:
    process = start(
        "plan", "cluster=synthetic", "cluster.nodes=60", "planner.time_limit_s=60",
        "output=plan.json", folder=tmp_path,
    )  # fmt: skip
    # Starting takes a second of computing, whatever else the machine does; then it plans.
    while cpu_s(process.pid) < 2.5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    ended_before, computed = children_cpu_s(), cpu_s(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert children_cpu_s() - ended_before - computed < 2.0, "of the processor: other work does not count"
    assert process.returncode == 130
    assert err == "interrupted\n"
    # What was found is shown and written; there is no half of a file.
    assert "plan written to plan.json" in out
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert load_plan(str(tmp_path / "plan.json")).predicted.iteration_s > 0


@pytest.mark.parametrize("arguments", [["plan", "cluster=local4", "planner.time_limit_s=0.1"], ["plan", "--help"]])
def test_a_reader_that_goes_away(arguments: list[str], tmp_path: Path) -> None:
    process = start(*arguments, folder=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.wait(timeout=30)
    process.stderr.close()
    assert process.returncode == 1
    assert err == ""


def test_a_full_disk_is_no_success(tmp_path: Path) -> None:
    """Standard output that takes nothing: the command must not end as if all had been said."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*PYTHON_M, "plan", "cluster=local4", "planner.time_limit_s=0.1"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


PLANNING = ["plan", "cluster=local4", "planner.time_limit_s=0.1", "output=plan.json"]


@pytest.mark.parametrize(
    ("arguments", "redirected", "status", "said"),
    [
        (PLANNING, ">&-", 1, "skippipe: standard output: Bad file descriptor\n"),
        (PLANNING, "<&- >&- 2>&-", 1, ""),
        (PLANNING, "2>&-", 0, ""),
        (["plan", "planner.seed=x"], "2>&-", 2, ""),
        (["plan", "planner.seed=x"], "2>/dev/full", 2, ""),
        (PLANNING, ">/dev/full", 1, "skippipe: standard output: No space left on device\n"),
        (["plan", "--help"], ">/dev/full", 1, "skippipe: standard output: No space left on device\n"),
    ],
)
def test_streams_that_take_nothing(
    arguments: list[str], redirected: str, status: int, said: str, tmp_path: Path
) -> None:
    """What was asked for is done all the same, and no file of ours takes the place of a closed stream."""
    line = " ".join([*PYTHON_M, *arguments, redirected])
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, said)
    if "output=plan.json" in arguments:
        assert load_plan(str(tmp_path / "plan.json")).check() == []


def limited(kilobytes: int, *arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command that may have so much address space."""
    line = f"ulimit -v {kilobytes}; exec {' '.join([*PYTHON_M, *arguments])}"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)


def test_reading_takes_memory_in_proportion(tmp_path: Path) -> None:
    """A small plan is read where there is little memory, and so is one with 24 MB in its solver."""
    assert subprocess.run([*PYTHON_M, *PLANNING], cwd=tmp_path, capture_output=True).returncode == 0
    small = limited(280_000, "simulate", "plan=plan.json", folder=tmp_path)
    assert small.returncode == 0, small.stderr
    text = (tmp_path / "plan.json").read_text()
    assert '"solver": {' in text
    (tmp_path / "large.json").write_text(
        text.replace('"solver": {', '"solver": {"long": [' + "{}," * 8_000_000 + "0],")
    )
    large = limited(450_000, "simulate", "plan=large.json", folder=tmp_path)
    assert large.returncode == 0, large.stderr
    assert large.stdout == small.stdout


def test_output_without_unicode(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [*PYTHON_M, "plan", "cluster=local4", "planner.time_limit_s=0.1", "compare=[full]"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout


def test_terminal_shows_progress_and_colours(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "90"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*PYTHON_M, "plan", "planner.time_limit_s=0.5"], cwd=tmp_path, env=environment, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(controller, 65536):
            shown += part
    os.close(controller)
    assert process.wait(timeout=30) == 0
    text = shown.decode()
    assert re.search(r"planning skippipe: 0\.\d s, best [\d.]+ s, lower bound [\d.]+ s, work [\d,]+", text)
    assert "\x1b[32m>" in text
    assert "\x1b[36m<" in text
    assert text.rstrip().rpartition("\n")[2].startswith("node utilization")


def test_planning_imports_no_torch() -> None:
    """Nor does the supervisor of a local run."""
    modules = ", ".join(f"skippipe.commands.{name}" for name in ("plan", "simulate", "report", "bench", "train"))
    code = f"import sys, {modules}; sys.exit(any(x in sys.modules for x in ('torch', 'transformers', 'datasets')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
