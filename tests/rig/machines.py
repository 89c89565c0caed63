"""A `skippipe node` on each host of a network, started as a user would."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rig.network import Direction, Network
from train.jobs import TINY, prepared_text

if TYPE_CHECKING:
    import subprocess

PORT = 29_400
BEGINS_S, ENDS_S = 400.0, 300.0
"""For machines to write what is waited for, and to end: on a busy machine each process takes long to import torch."""
JOB = [
    *TINY, "cluster.file=cluster.json", "schedule.stages=2", "schedule.skip_ratio=0", "schedule.max_swaps=0",
    "runtime.calibrate=false", "train.validate_every=null", "folder=run",
]  # fmt: skip


class Host(NamedTuple):
    """What a machine has to know of its own network."""

    address: str
    interface: str


class Machines:
    """The commands, by host; the first host serves the rendezvous."""

    def __init__(
        self, network: Network, folder: Path, *settings: str, link: Direction, hosts: Mapping[str, Host] | None = None
    ) -> None:
        """Start them in `folder`, over addresses of `hosts` if they are not those of the network."""
        self.folder = folder
        hosts = hosts or {host: Host(network.address(host), network.interface(host)) for host in network.hosts}
        write_cluster(folder / "cluster.json", network.hosts, link)
        rendezvous = f"rendezvous={hosts[network.hosts[0]].address}:{PORT}"
        text = f"data.prepared={prepared_text()}"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for name, host in hosts.items():
            words = [*JOB, text, rendezvous, f"runtime.node={name}", *settings]
            with (folder / f"{name}.out").open("w") as out, (folder / f"{name}.err").open("w") as err:
                self.processes[name] = network.start(
                    name, [sys.executable, "-m", "skippipe", "node", *words], cwd=folder, stdout=out, stderr=err,
                    env=os.environ | {"GLOO_SOCKET_IFNAME": host.interface},
                )  # fmt: skip

    def out(self, host: str) -> str:
        """Standard output so far."""
        return (self.folder / f"{host}.out").read_text()

    def err(self, host: str) -> str:
        """Standard error so far."""
        return (self.folder / f"{host}.err").read_text()

    def until(self, sign: str, host: str) -> None:
        """Wait until a host has written a text."""
        deadline = time.monotonic() + BEGINS_S
        while sign not in self.out(host):
            written = {each: self.out(each) + self.err(each) for each in self.processes}
            assert all(process.poll() is None for process in self.processes.values()), written
            assert time.monotonic() < deadline, written
            time.sleep(0.1)

    def end(self) -> dict[str, int | None]:
        """Exit status of each; None: it has not ended within `ENDS_S`."""
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline and any(process.poll() is None for process in self.processes.values()):
            time.sleep(0.1)
        return {host: process.poll() for host, process in self.processes.items()}


def write_cluster(path: Path, hosts: Sequence[str], link: Direction) -> None:
    """A cluster of these hosts, whose links are all alike."""
    node = {"forward_s": 0.004, "backward_s": 0.008, "loss_s": 0.002, "memory": 4}
    count = len(hosts)
    cluster = {
        "format": "skippipe.cluster/1",
        "nodes": [{"name": host, **node} for host in hosts],
        "latency_s": [[link.delay_s * (i != j) for j in range(count)] for i in range(count)],
        "bandwidth": [[link.bandwidth] * count for _ in hosts],
        "overhead_s": 0.0,
        "activation_bytes": 8192,
    }
    path.write_text(json.dumps(cluster))
