"""Bytes that a microbatch holds on a node, and how many bytes there are."""

import os
from pathlib import Path

import torch

from skippipe.measure.stages import random_microbatch
from skippipe.model.memory import saved_bytes
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.runtime.stage_graphs import GraphedStage, launched

SHARE = 0.9
"""Of what is available: the rest is for temporaries within layers, and for what the allocator cannot use."""
HELD = 2
"""Microbatches held at one time where a GPU's allocations are counted."""
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def held_bytes(stage: Stage, message_spec: MessageSpec, vocabulary: int, host_share: float | None = None) -> int:
    """Bytes that a microbatch holds from its forward to its backward, input and output of the stage included.

    On a GPU those that its allocator gives out, or CUDA graphs keep; on a CPU the tensors that autograd saves.
    `host_share` is as for `time_stage`.
    """
    _, hidden = random_microbatch(message_spec, vocabulary)
    stage.begin(1)
    if message_spec.device.type == "cuda":
        with launched(stage, message_spec, host_share, HELD) as compute:
            before = torch.cuda.memory_allocated(message_spec.device)
            for microbatch in range(HELD):
                compute.forward(microbatch, hidden.clone())
            found = (torch.cuda.memory_allocated(message_spec.device) - before) // HELD
            if isinstance(compute, GraphedStage):
                found = compute.slot_bytes or found
    else:
        saved = saved_bytes(lambda: stage.forward(0, hidden), [*stage.parameters, hidden])
        found = saved + 2 * hidden.nbytes  # the output is held even if nothing saves it; counted twice at worst
    stage.begin(1)
    return int(found)


def available_bytes(device: torch.device, sharing: int) -> int:
    """Bytes that one process may use of a GPU, or of the machine's memory if it has none.

    Args:
        device: what the stages compute on.
        sharing: processes that share it.

    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_on_host()
    return int(SHARE * free / sharing)


def _free_on_host() -> int:
    """Memory that can be had without swapping, as far as the control group of this process allows."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text(encoding="ascii").splitlines() if meminfo.exists() else []
    available = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    limits = [path.read_text(encoding="ascii").strip() for path in CGROUP_LIMITS if path.exists()]
    return min([total, *available, *(int(limit) for limit in limits if limit.isdecimal())])
