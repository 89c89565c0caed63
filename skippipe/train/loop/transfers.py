"""Transfers of weights between ranks: layers that join, stages that change ranks, copies of stages in other ranks."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from skippipe.errors import SchedulerError
from skippipe.moves import Transfer
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import COPY_TAG
from skippipe.runtime.stage import Stage
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.optimizer import StageOptimizer

SLOWEST_BYTES_PER_S = 1e6
"""A transfer at this rate may still be a healthy one."""

Gather = Callable[[str, float], list[str]]
"""Gives the texts of all ranks, from that of this one; they may take so many seconds longer than usual."""


def stage_state(stage: Stage, optimizer: StageOptimizer, layers: Collection[int]) -> list[Tensor]:
    """Weights and optimizer state of some layers of a stage, in the same order on all ranks."""
    parameters = dict(sorted(stage.module.parameters_of(layers).items()))
    return [*(parameter.data for parameter in parameters.values()), *optimizer.tensors(parameters).values()]


def run_transfers(  # noqa: PLR0913, PLR0917 - of all ranks
    rendezvous: Rendezvous,
    link: Link,
    transfers: Sequence[Transfer],
    here: Mapping[int, Sequence[Tensor]],
    key: str,
    gather: Gather | None = None,
) -> None:
    """Transfer tensors one after the other, in the same order on all ranks, so that no two wait for each other.

    All ranks call this. What arrived is compared with what was sent, by hash.

    Args:
        rendezvous: all ranks.
        link: to the other ranks, for tensors in the host's memory.
        transfers: what is to be done.
        here: tensors of this rank by layer or stage, in the same order on all ranks; filled in place.
        key: what is transferred, for messages.
        gather: exchanges hashes; None: the rendezvous does, under `key`, which is used once in a job then.

    Raises:
        ActionError: a transfer failed.
        SchedulerError: tensors have changed on the way.

    """
    largest = max((sum(tensor.nbytes for tensor in tensors) for tensors in here.values()), default=0)
    allowance_s = len(transfers) * largest / SLOWEST_BYTES_PER_S
    hashes: dict[str, str] = {}
    with torch.no_grad(), rendezvous.transferring(key, range(rendezvous.world)):
        for number, transfer in enumerate(transfers):
            found = _run(transfer, here, rendezvous.rank, link, rendezvous.timeout_s + allowance_s)
            if rendezvous.rank == transfer.sender:
                hashes[f"{number} sent"] = found
            if rendezvous.rank == transfer.receiver:
                hashes[f"{number} arrived"] = found
    texts = (gather or partial(rendezvous.all_gather, key))(json.dumps(hashes), allowance_s)
    by_rank = [json.loads(text) for text in texts]
    for number, transfer in enumerate(transfers):
        if by_rank[transfer.sender][f"{number} sent"] != by_rank[transfer.receiver][f"{number} arrived"]:
            ends = f"{rendezvous.title(transfer.sender)} to {rendezvous.title(transfer.receiver)}"
            raise SchedulerError(f"{key}: weights of {transfer.source} have changed on the way from {ends}")


def _run(transfer: Transfer, here: Mapping[int, Sequence[Tensor]], rank: int, link: Link, timeout_s: float) -> str:
    """Do this rank's part of a transfer, if it has one, in one message: a message per tensor would pay every latency.

    Returns:
        Hash of the bytes sent or received; empty if the rank has no part.

    """
    if rank not in {transfer.sender, transfer.receiver}:
        return ""
    if rank == transfer.sender:
        packed = pack(here[transfer.source])
        if rank != transfer.receiver:
            link.isend(packed, transfer.receiver, COPY_TAG).wait(timeout_s)
    else:
        packed = torch.empty(sum(t.nbytes for t in here[transfer.target]), dtype=torch.uint8)
        link.irecv(packed, transfer.sender, COPY_TAG).wait(timeout_s)
    if rank == transfer.receiver:
        unpack(packed, here[transfer.target])
    return hashlib.sha256(packed.numpy().data).hexdigest()


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of some tensors, one after the other, in the host's memory; those of a single one may be its own."""
    parts = [_bytes(tensor) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat([torch.empty(0, dtype=torch.uint8), *parts])


def unpack(packed: Tensor, tensors: Sequence[Tensor]) -> None:
    """Fill tensors, in place, with the bytes of others of the same shapes."""
    parts = torch.split(packed, [tensor.nbytes for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            # A copy: parts need not begin where their type may.
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
