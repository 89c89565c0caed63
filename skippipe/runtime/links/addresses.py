"""Where Gloo takes connections; without torch."""

import os
import socket
from collections.abc import Mapping

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable that names the network interface at which Gloo listens."""


def listening_address(environment: Mapping[str, str] = os.environ) -> str | None:
    """Where Gloo takes connections, by its own rule: the first address of the host's name that it can listen at.

    None where the environment names an interface.
    """
    if environment.get(INTERFACE):
        return None
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as door:
            try:
                door.bind(target)
            except OSError:
                continue
            return str(target[0])
    return "127.0.0.1"  # what Gloo falls back to


def interfaces() -> list[str]:
    """Names of this machine's network interfaces but for the loopback one."""
    return [name for _, name in socket.if_nameindex() if name != "lo"]
