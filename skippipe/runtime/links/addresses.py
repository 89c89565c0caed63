"""Gloo's listening address, and what identifies this machine; without torch."""

import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable that names Gloo's network interface."""


def listening_address(environment: Mapping[str, str] = os.environ) -> str | None:
    """Address that Gloo listens on, by its own rule: the first address of the host name that it can bind.

    None if the environment names an interface.
    """
    if environment.get(INTERFACE):
        return None
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as listener:
            try:
                listener.bind(target)
            except OSError:
                continue
            return str(target[0])
    return "127.0.0.1"  # Gloo's fallback


def interfaces() -> list[str]:
    """Names of this machine's network interfaces without loopback."""
    return [name for _, name in socket.if_nameindex() if name != "lo"]


def machine_id() -> str:
    """What all processes that share this machine's clock, and no others, have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id")  # Linux; the same in all containers of a machine
    return boot.read_text(encoding="ascii").strip() if boot.exists() else platform.node()
