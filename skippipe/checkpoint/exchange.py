"""What ranks tell each other beside tensors, over a process group: JSON of limited size, never a pickle.

The object collectives of torch.distributed unpickle what other ranks send, and to unpickle is to run it.
"""

import json
from typing import Any

import torch
import torch.distributed as dist

LIMIT_BYTES = 2**20
"""of what one rank may say at a time"""


class ExchangeError(RuntimeError):
    """A rank said what cannot be used."""


def gather_json(value: object, group: dist.ProcessGroup) -> list[Any]:
    """Give every rank's value, by rank; all ranks of the group call it together.

    Args:
        value: what JSON can hold.
        group: ranks that exchange tensors on the CPU.

    Raises:
        ExchangeError: a rank's value is larger than `LIMIT_BYTES`, or is no JSON; raised on all ranks.

    """
    text = json.dumps(value).encode()
    world = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(text)]), group=group)
    lengths = [int(size) for size in sizes]
    for rank, length in enumerate(lengths):
        if not 0 <= length <= LIMIT_BYTES:
            raise ExchangeError(f"rank {rank}: expected at most {LIMIT_BYTES} bytes, got {length}")
    longest = max(lengths)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    dist.all_gather(texts, padded, group=group)
    return [
        _parsed(bytes(said[:length].numpy()), rank)
        for rank, (said, length) in enumerate(zip(texts, lengths, strict=True))
    ]


def _parsed(text: bytes, rank: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ExchangeError(f"rank {rank}: expected JSON, got {text[:40]!r}") from None
