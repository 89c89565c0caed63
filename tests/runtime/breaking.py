"""Two ranks whose connections break while a large message is under way; in a module of its own, for the workers."""

import threading
import time

import torch
from torch import distributed as dist

from skippipe.runtime.links.gloo import GlooLink, open_connections, shut_down

MESSAGE = 2**28
"""Bytes: on no machine all of it is on its way at once."""
TIMEOUT_S, NOTICED_AFTER_S = 20.0, 0.3
TAG = 8


def break_off(rank: int, breaker: int, pause_s: float) -> tuple[str, int]:
    """Send from rank 0 to rank 1 until `breaker` breaks the connection off, which both notice a little later.

    Gives the error of this rank, or an empty text, and how many bytes of the message are there.
    """
    before = open_connections()
    group = dist.new_group([0, 1], backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    link = GlooLink(group)
    message = torch.full([MESSAGE], 1 - rank, dtype=torch.uint8)
    dist.barrier()
    work = link.isend(message, 1, TAG) if rank == 0 else link.irecv(message, 0, TAG)
    own = open_connections() - before

    def notice() -> None:
        time.sleep(pause_s)
        if rank == breaker:
            shut_down(own)
        time.sleep(NOTICED_AFTER_S)
        shut_down(own)
        link.interrupt()

    noticing = threading.Thread(target=notice)
    noticing.start()
    error = ""
    try:
        work.wait(TIMEOUT_S)
    except ConnectionError as broken:
        error = str(broken)
    noticing.join()
    link.close()
    dist.barrier()
    return error, int(message.count_nonzero())
