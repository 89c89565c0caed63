"""The process that carries packets between the TUN devices of a network; see `network.py`.

It reads each packet from the sending device and writes it to the receiving one after the delay of that direction. A
packet leaves the sending device at the rate that `tbf` allows, so the delay counts from its last byte, as on a cable.
"""

import contextlib
import heapq
import json
import os
import select
import sys
import time
from dataclasses import dataclass

LARGEST_PACKET = 65_535
BATCH = 32
"""Packets read from one device before the others, so that none waits long."""


@dataclass
class Direction:
    """From one host to another."""

    sender: int
    """descriptor of the device on the sending host"""
    receiver: int
    """descriptor of the device on the receiving host"""
    delay_s: float
    is_cut: bool = False
    """packets are lost, those on the way too"""


class Bridge:
    """Packets on their way; the earliest due is the first."""

    def __init__(self, directions: list[Direction]) -> None:
        self._directions = {direction.sender: direction for direction in directions}
        self._packets: list[tuple[float, int, Direction, bytes]] = []
        self._count = 0

    def run(self, control: int) -> None:
        """Carry packets until the other end of `control` is closed; each of its lines changes a direction.

        Every line is answered on standard output once it holds.
        """
        readable = [control, *self._directions]
        with open(control, "rb", buffering=0, closefd=False) as lines:
            while True:
                wait_s = max(self._packets[0][0] - time.monotonic(), 0.0) if self._packets else None
                for descriptor in select.select(readable, [], [], wait_s)[0]:
                    if descriptor != control:
                        self._read(self._directions[descriptor])
                    elif line := lines.readline():
                        self._change(**json.loads(line))
                    else:
                        return
                self._deliver()

    def _read(self, direction: Direction) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH):
                packet = os.read(direction.sender, LARGEST_PACKET)
                if not direction.is_cut:
                    self._count += 1  # packets due at the same time keep their order
                    entry = (time.monotonic() + direction.delay_s, self._count, direction, packet)
                    heapq.heappush(self._packets, entry)

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._packets and self._packets[0][0] <= now:
            _, _, direction, packet = heapq.heappop(self._packets)
            if not direction.is_cut:
                os.write(direction.receiver, packet)

    def _change(self, sender: int, delay_s: float, is_cut: bool) -> None:
        direction = self._directions[sender]
        direction.delay_s, direction.is_cut = delay_s, is_cut
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # Packets must not wait until those who compute have had their turn.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    Bridge([Direction(**direction) for direction in json.loads(sys.argv[1])]).run(sys.stdin.fileno())
