"""A rank that connects its GPU to one that does not come; in a module of its own, for the workers."""

import threading

import torch
from torch import distributed as dist

from skippipe.errors import ActionError
from skippipe.runtime.links.gloo import open_connections, shut_down
from skippipe.runtime.links.gpu import GpuLink


def connect_alone(rank: int, first: int, interrupted: bool) -> tuple[str, bool] | None:
    """Connect two ranks, of which only `first` does; gives its error, and whether that is of time."""
    if rank != first:
        dist.new_group([0, 1], backend="nccl")  # groups have the same numbers on both
        dist.barrier()
        return None
    before = open_connections()
    link = GpuLink(rank, torch.device("cuda", rank), connect_timeout_s=30.0 if interrupted else 2.0)
    if interrupted:
        threading.Timer(1.0, link.interrupt).start()
    try:
        link.connect([(0, 1)])
    except ActionError as error:
        return str(error), isinstance(error.__cause__, TimeoutError)
    finally:
        shut_down(open_connections() - before)  # as where ranks watch each other
        link.close()
        dist.barrier()
    return None
