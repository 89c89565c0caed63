"""Exchange of JSON messages of limited size over a process group.

The object collectives of torch.distributed unpickle what other ranks send, and unpickling executes code.
"""

import json
from typing import Any

import torch
import torch.distributed as dist

from skippipe.errors import unexpected

LIMIT_BYTES = 2**20
"""largest message of one rank"""


class ExchangeError(RuntimeError):
    """A rank sent an invalid message."""


def gather_json(value: object, group: dist.ProcessGroup) -> list[Any]:
    """Gather every rank's value, ordered by rank; a collective call.

    Args:
        value: JSON-serialisable.
        group: process group with a CPU backend.

    Raises:
        ExchangeError: a rank's value exceeds `LIMIT_BYTES` or is not JSON; raised on all ranks.

    """
    text = json.dumps(value).encode()
    world = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(text)]), group=group)
    lengths = [int(size) for size in sizes]
    for rank, length in enumerate(lengths):
        if not 0 <= length <= LIMIT_BYTES:
            raise ExchangeError(unexpected(f"rank {rank}", length, f"at most {LIMIT_BYTES} bytes"))
    longest = max(lengths)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    dist.all_gather(texts, padded, group=group)
    return [
        _parsed(bytes(received[:length].numpy()), rank)
        for rank, (received, length) in enumerate(zip(texts, lengths, strict=True))
    ]


def _parsed(text: bytes, rank: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ExchangeError(unexpected(f"rank {rank}", text[:40], "JSON")) from None
