"""How the clocks of the ranks differ, so that a message's departure and arrival can be compared."""

import time
from collections.abc import Callable

import torch

from skippipe.runtime.links import Link
from skippipe.runtime.links.addresses import machine_id
from skippipe.runtime.links.collectives import TIMES_TAG
from skippipe.train.connect.rendezvous import Rendezvous

TRIPS = 5
"""Round trips with each rank, of which the shortest counts."""


def clock_offset_s(
    rendezvous: Rendezvous,
    link: Link,
    machine: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Reading of the clock of rank 0 less that of this rank, in seconds. All ranks call this.

    Processes of one machine share the clock. Elsewhere rank 0 asks each rank for its reading, and takes it to have been
    read in the middle of the round trip: where the two directions differ, half of the difference is the error.

    Args:
        rendezvous: all ranks.
        link: to the other ranks, for tensors in the host's memory.
        machine: what identifies this rank's machine; None: `machine_id`.
        clock: of this rank.

    Raises:
        ActionError: another rank is gone.

    """
    machines = rendezvous.all_gather("clocks", machine_id() if machine is None else machine)
    away = [rank for rank, other in enumerate(machines) if other != machines[0]]
    timeout_s = rendezvous.timeout_s * (1 + len(away))
    reading, offset = (torch.zeros(1, dtype=torch.float64) for _ in range(2))
    with rendezvous.transferring("the comparison of clocks", range(rendezvous.world)):
        if rendezvous.rank == 0:
            for rank in away:
                trips = []
                for _ in range(TRIPS):
                    answer = link.irecv(reading, rank, TIMES_TAG)
                    asked = clock()
                    link.isend(offset, rank, TIMES_TAG).wait(timeout_s)
                    answer.wait(timeout_s)
                    answered = clock()
                    trips.append((answered - asked, (asked + answered) / 2 - float(reading)))
                link.isend(torch.tensor([min(trips)[1]], dtype=torch.float64), rank, TIMES_TAG).wait(timeout_s)
        elif rendezvous.rank in away:
            for _ in range(TRIPS):
                link.irecv(offset, 0, TIMES_TAG).wait(timeout_s)
                reading.fill_(clock())
                link.isend(reading, 0, TIMES_TAG).wait(timeout_s)
            link.irecv(offset, 0, TIMES_TAG).wait(timeout_s)
    return float(offset)
