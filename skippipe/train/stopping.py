"""A request to stop, by a signal: noted, and heeded when the iteration is done."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TypeVar

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""What asks a run to stop; SIGHUP comes where a terminal is closed, SIGUSR1 from Slurm before its time is over."""


def heeded_signals() -> list[signal.Signals]:
    """Signals that this process heeds: all of them but a hangup that `nohup` has it ignore."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class StopRequest:
    """Within: a signal that asks this process to end is noted, nothing more. Only the main thread can do so."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """the first one that came"""
        self.heeded = False
        """whether the process ends because of one, and none that comes later is to disturb it"""
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in heeded_signals()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.heeded and error is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)


T = TypeVar("T")


def outlasting_terminal(tell: Callable[[T], None]) -> Callable[[T], None]:
    """The same, for what shows things; once its terminal is closed, which SIGHUP tells of, they go nowhere."""

    def told(what: T) -> None:
        try:
            tell(what)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere, stream.fileno())
            os.close(nowhere)

    return told


def end_torchrun(environment: Mapping[str, str] = os.environ) -> None:
    """End the torchrun that has started this rank, where several of them run a job together.

    To be called last by every rank of a job that was asked to stop. Where Ctrl-C has ended the torchrun of one
    machine, those of the others would wait five minutes for it, deaf to signals, once their ranks have ended.
    """
    if int(environment.get("GROUP_WORLD_SIZE", "1")) > 1 and "TORCHELASTIC_RUN_ID" in environment:
        parent = os.getppid()
        if _is_torchrun(parent):
            os.kill(parent, signal.SIGTERM)


def _is_torchrun(process: int) -> bool:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith((b"torchrun", b"torch.distributed.run", b"torch/distributed/run.py")) for word in words)
