"""What is kept of processes that a run loses."""

import subprocess
import sys
import time
from pathlib import Path

from skippipe.train.launch.failures import stacks_of

SLOW = """
import signal, sys, time
def write(number, frame):
    for line in range(8):
        print("  File", line, flush=True)
        time.sleep(0.04)
signal.signal(signal.SIGUSR2, write)
print("ready", flush=True)
while True:
    time.sleep(10)
"""


def test_stacks_are_read_to_their_end(tmp_path: Path) -> None:
    """Of a process that takes a while to write them; what stood in its log before is no part of them."""
    log = tmp_path / "log.txt"
    with log.open("wb") as file, subprocess.Popen([sys.executable, "-c", SLOW], stdout=file) as process:
        while "ready" not in log.read_text():
            time.sleep(0.01)
        (stack,) = stacks_of([(process.pid, log)])
        process.kill()
    assert stack.splitlines() == ["File 0", *(f"  File {line}" for line in range(1, 8))]


def test_a_process_that_has_ended_has_no_stack(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("wb") as file, subprocess.Popen([sys.executable, "-c", ""], stdout=file) as process:
        process.wait()
    assert stacks_of([(process.pid, log)]) == [""]
