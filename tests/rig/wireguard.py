"""WireGuard between the hosts of a network: an interface on each, by the kernel's module or `wireguard-go`."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from rig.machines import Host
from rig.network import Network, RigError

UDP_PORT = 51_820
CONTROL = Path("/run/wireguard")
MADE_S = 30.0


def missing() -> str | None:
    """Why there can be no tunnel here, in one sentence; None: the tools are there."""
    for tool in ("wg", "wireguard-go"):
        if shutil.which(tool) is None:
            return f"a tunnel needs `{tool}`, which is not installed."
    return None


@contextlib.contextmanager
def tunnels(network: Network, folder: Path) -> Iterator[dict[str, Host]]:
    """Within: the hosts reach each other by addresses of the tunnel too; keys are kept in `folder`."""
    hosts = {
        host: Host(f"10.88.0.{number}", f"wg{os.getpid()}-{number}") for number, host in enumerate(network.hosts, 1)
    }
    public = {host: _make_key(folder / f"{host}.key") for host in hosts}
    with contextlib.ExitStack() as stack:
        for name, host in hosts.items():
            stack.enter_context(_interface(network, name, host.interface))
            words = ["listen-port", str(UDP_PORT), "private-key", str(folder / f"{name}.key")]
            for other in hosts.keys() - {name}:
                words += ["peer", public[other], "allowed-ips", f"{hosts[other].address}/32"]
                words += ["endpoint", f"{network.address(other)}:{UDP_PORT}"]
            _run(network, name, "wg", "set", host.interface, *words)
            _run(network, name, "ip", "addr", "add", f"{host.address}/24", "dev", host.interface)
            _run(network, name, "ip", "link", "set", host.interface, "up")
        yield hosts


@contextlib.contextmanager
def _interface(network: Network, host: str, name: str) -> Iterator[None]:
    """Within: a program on a host that serves its interface; its control socket lies where all hosts see it."""
    process = network.start(
        host, ["wireguard-go", "--foreground", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + MADE_S
        while not (CONTROL / f"{name}.sock").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RigError(f"wireguard-go makes no interface {name}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()  # it then removes the socket
        process.wait()


def _make_key(path: Path) -> str:
    """Make a private key; gives its public one."""
    made = subprocess.run(["wg", "genkey"], capture_output=True, text=True, check=True).stdout
    path.touch(mode=0o600)
    path.write_text(made)
    return subprocess.run(["wg", "pubkey"], input=made, capture_output=True, text=True, check=True).stdout.strip()


def _run(network: Network, host: str, *command: str) -> None:
    with network.start(host, command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, err = process.communicate()
    if process.returncode:
        raise RigError(f"{command[0]}: {err.strip()}")
