"""What is kept of every process that a run loses: one JSON object a line, in `failures.jsonl` of the run's folder."""

import contextlib
import datetime as dt
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skippipe.files import cut_to_lines, open_own

FAILURES = "failures.jsonl"
STACK_SIGNAL = signal.SIGUSR2
"""Has a worker write the stacks of all its threads to its log."""
STACK_S = 2.0
"""How long they may take to appear."""
SETTLED_S = 0.1
"""What has not grown for so long is whole: stacks are written line by line, without an end mark."""


@dataclass(frozen=True)
class ProcessReport:
    """A process of a run when one of them was lost."""

    rank: int
    names: Sequence[str]
    """nodes that it serves"""
    process: int | None = None
    status: int | None = None
    """exit status, negative for a signal; None: it has not ended"""
    message: str | None = None
    """what it has reported, its last actions included"""
    stack: str | None = None
    """of its threads"""


def record_failure(folder: Path, outcome: str, lost: Sequence[ProcessReport], others: Sequence[ProcessReport]) -> None:
    """Add a failure to the record; a disk that is full is no reason to fail once more.

    Args:
        folder: of the run.
        outcome: `recovered`: the other processes go on; `ended`: they were ended.
        lost: the processes that explain the failure.
        others: those that waited for them.

    """
    content: dict[str, Any] = {
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "outcome": outcome,
        "lost": [_shown(report) for report in lost],
        "others": [_shown(report) for report in others],
    }
    with contextlib.suppress(OSError):
        descriptor = open_own(folder / FAILURES)
        try:
            cut_to_lines(descriptor)
            os.lseek(descriptor, 0, os.SEEK_END)
            os.write(descriptor, (json.dumps(content) + "\n").encode())
        finally:
            os.close(descriptor)


def _shown(report: ProcessReport) -> dict[str, Any]:
    content = {name: value for name, value in asdict(report).items() if value is not None}
    if report.status is not None and report.status < 0:
        content["signal"] = signal.Signals(-report.status).name
    return content


def stacks_of(processes: Sequence[tuple[int, Path]]) -> list[str]:
    """What living processes, given with their logs, are doing: the stacks of their threads; empty if one is silent.

    One that is stopped is continued for that, so this is for processes that are about to be ended.
    """
    if not processes:
        return []
    begins = [log.stat().st_size if log.exists() else 0 for _, log in processes]
    for process, _ in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, STACK_SIGNAL)
            os.kill(process, signal.SIGCONT)
    deadline = time.monotonic() + STACK_S
    found = [""] * len(processes)
    settled_at = deadline
    while time.monotonic() < min(settled_at, deadline):
        time.sleep(SETTLED_S / 4)
        now = [_from(log, begin) for (_, log), begin in zip(processes, begins, strict=True)]
        if now != found:
            found = now
            settled_at = time.monotonic() + SETTLED_S if all(found) else deadline
    return found


def _from(log: Path, begin: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
