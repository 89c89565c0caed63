"""Requests to stop, by signal: noted at once, heeded after the iteration."""

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
"""Ask a run to stop; SIGHUP comes when a terminal closes, SIGUSR1 from Slurm before the time limit."""


def heeded_signals() -> list[signal.Signals]:
    """Signals that this process heeds: all but SIGHUP under `nohup`."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class StopRequest:
    """Within: a signal that asks this process to stop is only noted. Works in the main thread alone."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """the first one that came"""
        self.heeded = False
        """whether the process ends because of one; later ones are then still only noted"""
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


def outlasting_terminal(show: Callable[[T], None]) -> Callable[[T], None]:
    """The same, for a function that prints: once the terminal is closed, its output is discarded."""

    def shown(what: T) -> None:
        try:
            show(what)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere, stream.fileno())
            os.close(nowhere)

    return shown


def end_torchrun(environment: Mapping[str, str] = os.environ) -> None:
    """End the torchrun that has started this rank, if several of them run a job together.

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
