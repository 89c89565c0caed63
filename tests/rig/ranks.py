"""Ranks on the hosts of a network, one each: forks, as warm workers are, with the variables that torchrun sets."""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn

import pool as pools
import torch
from rig.network import NAMESPACES, Network

from skippipe.cli import main

PORT = 29_400
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Ranks:
    """Processes by host, and what they have written."""

    processes: Mapping[str, ForkServerProcess]
    folder: Path

    def out(self, host: str) -> str:
        """Standard output so far."""
        return (self.folder / f"{host}.out").read_text()

    def err(self, host: str) -> str:
        """Standard error so far."""
        return (self.folder / f"{host}.err").read_text()

    def until(self, sign: str, host: str, timeout_s: float = 120.0) -> None:
        """Wait until a host has written a text."""
        deadline = time.monotonic() + timeout_s
        while sign not in self.out(host):
            written = {each: self.out(each) + self.err(each) for each in self.processes}
            assert all(process.exitcode is None for process in self.processes.values()), written
            assert time.monotonic() < deadline, written
            time.sleep(0.05)

    def end(self, timeout_s: float) -> dict[str, int | None]:
        """Exit status of each within a time; None: it has not ended by then."""
        deadline = time.monotonic() + timeout_s
        for process in self.processes.values():
            process.join(max(deadline - time.monotonic(), 0))
        return {host: process.exitcode for host, process in self.processes.items()}


@contextmanager
def ranks(network: Network, folder: Path, command: str, *arguments: str) -> Iterator[Ranks]:
    """Run `skippipe COMMAND` on all hosts, each of which is the node of its name; the first one is rank 0.

    Args:
        network: the hosts.
        folder: where all of them run.
        command: of ours.
        arguments: of it, the same on all hosts.

    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(pools.PRELOADED)
    store = network.address(network.hosts[0])
    processes = {}
    for rank, host in enumerate(network.hosts):
        for kind in ("out", "err"):
            (folder / f"{host}.{kind}").touch()
        environment = {
            "RANK": str(rank), "WORLD_SIZE": str(len(network.hosts)), "MASTER_ADDR": store, "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": network.interface(host), "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"],
        }  # fmt: skip
        namespace = NAMESPACES / network.namespace(host)
        words = [command, *arguments, f"runtime.node={host}"]
        processes[host] = context.Process(target=_be_rank, args=(namespace, folder, host, environment, words))
        processes[host].start()
    try:
        yield Ranks(processes, folder)
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def _be_rank(namespace: Path, folder: Path, host: str, environment: dict[str, str], words: Sequence[str]) -> NoReturn:
    status = 1
    try:
        _enter(namespace)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{host}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.environ.update(environment)
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)
        status = main(list(words))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(status)


def _enter(namespace: Path) -> None:
    """Move this process, which has one thread yet, into a network namespace; Python 3.12 has `os.setns`."""
    with namespace.open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
