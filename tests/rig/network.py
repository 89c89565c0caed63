"""Hosts on one machine, each in a network namespace of its own, joined by real TCP links of set delay and bandwidth.

The kernel's TCP runs from end to end. A host has one TUN device for each of its links. `tbf` limits the rate at which
packets leave it, and one process (`bridge.py`) carries them to the device at the other end, after the delay.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BRIDGE = Path(__file__).with_name("bridge.py")
TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
NAMESPACES = Path("/run/netns")
HEADER_BYTES = 52
"""Headers of IP and TCP in each packet."""
SMALLEST_MTU, LARGEST_MTU = 1_500, 60_000
PACKET_S = 0.0005
"""How long a packet is to occupy the link: few packets for the bridge, and a short wait for those behind it."""
BURST_S = 0.001
"""What `tbf` may make up for where it was woken late; after a pause that much is sent at once."""
QUEUE_BYTES = 64 << 20
SETTINGS = {
    # BBR, the default of some machines, estimates the rate; control by loss fills a link that loses nothing.
    "net.ipv4.tcp_congestion_control": "reno",
    # After a pause, as between two messages, a connection goes on at its rate.
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    # More than bandwidth x delay.
    "net.ipv4.tcp_rmem": "4096 16777216 67108864",
    "net.ipv4.tcp_wmem": "4096 4194304 67108864",
    # Little waits in front of `tbf`; else a short message would wait there behind a long one.
    "net.ipv4.tcp_limit_output_bytes": "131072",
}


class RigError(Exception):
    """The kernel or the user's rights do not allow a network of namespaces."""


@dataclass(frozen=True)
class Direction:
    """A link in one direction."""

    delay_s: float
    """one way"""
    bandwidth: float
    """bytes per second, of what TCP carries"""

    def shaping(self, mtu: int) -> list[str]:
        """Arguments of `tc` for packets of at most `mtu` bytes."""
        rate = self.bandwidth * mtu / (mtu - HEADER_BYTES)
        # `tbf` counts in ticks: with a burst of just one packet, rounding may keep a full packet waiting for ever.
        burst = int(max(rate * BURST_S, 1.1 * mtu))
        return ["tbf", "rate", f"{8 * rate:.0f}bit", "burst", str(burst), "limit", str(QUEUE_BYTES)]


def _mtu(forth: Direction, back: Direction) -> int:
    """Largest packet of a link, in bytes; TCP has the same for both directions."""
    typical = math.sqrt(forth.bandwidth * back.bandwidth)
    return min(max(int(typical * PACKET_S), SMALLEST_MTU), LARGEST_MTU)


@dataclass(frozen=True)
class _Device:
    """The TUN device of a host on its link to another."""

    namespace: str
    name: str
    descriptor: int
    """in the bridge; what is read from it is what the host sends"""
    mtu: int


class Network:
    """A context manager: within, the hosts exist; afterwards nothing of them is left, processes included."""

    def __init__(self, hosts: Sequence[str], links: Mapping[tuple[str, str], Direction]) -> None:
        """Describe a network; nothing is made yet.

        Args:
            hosts: their names, of at most 12 letters, digits or dashes.
            links: by sending and receiving host, each link in both directions.

        """
        assert all(re.fullmatch(r"[a-z0-9-]{1,12}", host) for host in hosts), hosts
        assert all(pair[::-1] in links for pair in links), "each link has two directions"
        self.hosts = tuple(hosts)
        self._links = dict(links)
        self._is_cut = dict.fromkeys(links, False)
        self._devices: dict[tuple[str, str], _Device] = {}
        self._bridge: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Make it; raises `RigError` with the reason if that is not possible."""
        _remove(dead_owners_only=True)
        try:
            for host in self.hosts:
                _ip("netns", "add", self.namespace(host))
                _ip("-n", self.namespace(host), "link", "set", "lo", "up")
                _run("ip", "netns", "exec", self.namespace(host), "sysctl", "-qw", *map("=".join, SETTINGS.items()))
            for sender, receiver in self._links:
                self._devices[sender, receiver] = self._make_device(sender, receiver)
            self._bridge = self._start_bridge()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bridge is not None:
            self._bridge.communicate()  # it ends where its input does
        else:
            for device in self._devices.values():
                os.close(device.descriptor)
        _remove(dead_owners_only=False)

    def namespace(self, host: str) -> str:
        """Name of its network namespace."""
        return f"rig-{os.getpid()}-{host}"

    def address(self, host: str) -> str:
        """The same on all of its links."""
        return f"10.77.0.{self.hosts.index(host) + 1}"

    def interface(self, host: str) -> str:
        """A network interface with its address."""
        return next(device.name for (sender, _), device in self._devices.items() if sender == host)

    def start(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process on a host; `options` are those of `subprocess.Popen`."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(host), *command], text=True, stdin=subprocess.DEVNULL, **options
        )

    def kill(self, host: str) -> None:
        """Kill all processes on a host, as if it had died; its links stay."""
        _kill(self.namespace(host))

    def direction(self, sender: str, receiver: str) -> Direction:
        """What holds now."""
        return self._links[sender, receiver]

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Lose all packets between two hosts, or only those from `a` to `b`."""
        for pair in ((a, b),) if one_way else ((a, b), (b, a)):
            self._is_cut[pair] = True
            self._tell_bridge(pair)

    def heal(self, a: str, b: str) -> None:
        """Let packets pass again, in both directions."""
        for pair in ((a, b), (b, a)):
            self._is_cut[pair] = False
            self._tell_bridge(pair)

    def slow(self, a: str, b: str, *, delay_s: float | None = None, bandwidth: float | None = None) -> None:
        """Change delay, bandwidth or both from `a` to `b`."""
        before, device = self._links[a, b], self._devices[a, b]
        changed = replace(
            before,
            delay_s=before.delay_s if delay_s is None else delay_s,
            bandwidth=before.bandwidth if bandwidth is None else bandwidth,
        )
        self._links[a, b] = changed
        shaping = changed.shaping(device.mtu)
        _run("tc", "-n", device.namespace, "qdisc", "change", "dev", device.name, "root", *shaping)
        self._tell_bridge((a, b))

    def _make_device(self, sender: str, receiver: str) -> _Device:
        """A device made here keeps its descriptor when it is moved into the namespace."""
        made_as, name, namespace = f"rig{os.getpid()}.{len(self._devices)}", f"to-{receiver}", self.namespace(sender)
        descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        try:
            fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", made_as.encode(), IFF_TUN | IFF_NO_PI))
            direction = self._links[sender, receiver]
            mtu = _mtu(direction, self._links[receiver, sender])
            _ip("link", "set", made_as, "netns", namespace, "name", name)
            _ip("-n", namespace, "addr", "add", self.address(sender), "peer", self.address(receiver), "dev", name)
            _run("tc", "-n", namespace, "qdisc", "add", "dev", name, "root", *direction.shaping(mtu))
            # Single packets only: `tbf` would hold a larger unit for ever once it may save up less than that.
            _ip("-n", namespace, "link", "set", name, "mtu", str(mtu), "gso_max_segs", "1", "addrgenmode", "none", "up")
        except BaseException:
            os.close(descriptor)
            raise
        return _Device(namespace, name, descriptor, mtu)

    def _start_bridge(self) -> subprocess.Popen[str]:
        directions = [
            {
                "sender": device.descriptor,
                "receiver": self._devices[receiver, sender].descriptor,
                "delay_s": self._links[sender, receiver].delay_s,
            }
            for (sender, receiver), device in self._devices.items()
        ]
        descriptors = [device.descriptor for device in self._devices.values()]
        bridge = subprocess.Popen(
            [sys.executable, BRIDGE, json.dumps(directions)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=descriptors,
        )  # fmt: skip
        for descriptor in descriptors:
            os.close(descriptor)
        return bridge

    def _tell_bridge(self, pair: tuple[str, str]) -> None:
        """Have the bridge take on what holds for a direction, and wait until it has."""
        assert self._bridge is not None, "within the context"
        assert self._bridge.stdin is not None, "a pipe"
        assert self._bridge.stdout is not None, "a pipe"
        state = {
            "sender": self._devices[pair].descriptor,
            "delay_s": self._links[pair].delay_s,
            "is_cut": self._is_cut[pair],
        }
        self._bridge.stdin.write(f"{json.dumps(state)}\n")
        self._bridge.stdin.flush()
        assert self._bridge.stdout.readline(), "the bridge has ended"


def missing() -> str | None:
    """Why there can be no network here, in one sentence; None: there can be one, since one was made."""
    for tool in ("ip", "tc", "sysctl"):
        if shutil.which(tool) is None:
            return f"a network of namespaces needs `{tool}`, which is not installed."
    if not TUN.exists():
        return f"a network of namespaces needs {TUN}, which does not exist."
    if os.geteuid():
        return "a network of namespaces needs the rights of root."
    direction = Direction(0.001, 1e6)
    try:
        with Network(("a", "b"), {("a", "b"): direction, ("b", "a"): direction}):
            return None
    except (RigError, OSError) as error:
        return f"a network of namespaces cannot be made: {error}."


def _remove(*, dead_owners_only: bool) -> None:
    """Remove namespaces and the processes in them: our own, or those that a crash has left."""
    for path in NAMESPACES.glob("rig-*-*"):
        owner = int(path.name.split("-")[1])
        if Path(f"/proc/{owner}").exists() if dead_owners_only else owner != os.getpid():
            continue
        _kill(path.name)
        _ip("netns", "del", path.name)


def _kill(namespace: str) -> None:
    """Kill the processes in a namespace."""
    for process in _run("ip", "netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RigError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
