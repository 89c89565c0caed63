"""Transfers of weights between ranks where a phase begins: copies for layers that join, stages that change ranks."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skippipe.errors import SchedulerError
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import COPY_TAG
from skippipe.train.connect.rendezvous import Rendezvous

SLOWEST_BYTES_PER_S = 1e6
"""A transfer at this rate may still be a healthy one."""


class Transfer(NamedTuple):
    """Tensors copied from one rank to one rank, possibly the same."""

    source: int
    """layer or stage"""
    sender: int
    """rank"""
    target: int
    """layer or stage, of the same shapes"""
    receiver: int
    """rank"""


def copy_sources(new: Collection[int], in_use: Collection[int]) -> dict[int, int]:
    """The layer that each new one copies: layer `l` takes the (l modulo n)-th of the n layers in use.

    (Stacking: Du et al., arXiv 2405.15319.)
    """
    trained = sorted(in_use)
    return {layer: trained[layer % len(trained)] for layer in sorted(new)} if trained else {}


def stage_moves(serving: Mapping[int, Collection[int]], current: Mapping[int, Collection[int]]) -> list[Transfer]:
    """The stages that ranks need before a phase, in an order that all ranks share.

    Args:
        serving: the ranks that serve each stage of the phase.
        current: the ranks that have each stage's current weights.

    """
    return [
        Transfer(stage, min(current[stage]), stage, rank)
        for stage, ranks in sorted(serving.items())
        for rank in sorted(set(ranks) - set(current[stage]))
    ]


def run_transfers(
    rendezvous: Rendezvous, link: Link, transfers: Sequence[Transfer], here: Mapping[int, Sequence[Tensor]], key: str
) -> None:
    """Transfer tensors one after the other, in the same order on all ranks, so that no two wait for each other.

    All ranks call this. What arrived is compared with what was sent, by hash.

    Args:
        rendezvous: all ranks.
        link: to the other ranks.
        transfers: what is to be done.
        here: tensors of this rank by layer or stage, in the same order on all ranks; filled in place.
        key: of the exchange of hashes, used once in a job.

    Raises:
        ActionError: a transfer failed.
        SchedulerError: tensors have changed on the way.

    """
    largest = max((sum(tensor.nbytes for tensor in tensors) for tensors in here.values()), default=0)
    allowance_s = len(transfers) * largest / SLOWEST_BYTES_PER_S
    hashes: dict[str, str] = {}
    link.connect(
        {(transfer.sender, transfer.receiver) for transfer in transfers if transfer.sender != transfer.receiver}
    )
    with torch.no_grad(), rendezvous.transferring(key, range(rendezvous.world)):
        for number, transfer in enumerate(transfers):
            _run(transfer, here, rendezvous.rank, link, rendezvous.timeout_s + allowance_s)
            if rendezvous.rank == transfer.sender:
                hashes[f"{number} sent"] = _sha256(here[transfer.source])
            if rendezvous.rank == transfer.receiver:
                hashes[f"{number} arrived"] = _sha256(here[transfer.target])
    by_rank = [json.loads(text) for text in rendezvous.all_gather(key, json.dumps(hashes), allowance_s)]
    for number, transfer in enumerate(transfers):
        if by_rank[transfer.sender][f"{number} sent"] != by_rank[transfer.receiver][f"{number} arrived"]:
            ends = f"{rendezvous.title(transfer.sender)} to {rendezvous.title(transfer.receiver)}"
            raise SchedulerError(f"{key}: weights of {transfer.source} have changed on the way from {ends}")


def _run(transfer: Transfer, here: Mapping[int, Sequence[Tensor]], rank: int, link: Link, timeout_s: float) -> None:
    """Do this rank's part of a transfer, if it has one."""
    if transfer.sender == transfer.receiver == rank:
        for ours, theirs in zip(here[transfer.target], here[transfer.source], strict=True):
            ours.copy_(theirs)
    elif rank == transfer.sender:
        for tensor in here[transfer.source]:
            link.isend(tensor, transfer.receiver, COPY_TAG).wait(timeout_s)
    elif rank == transfer.receiver:
        for tensor in here[transfer.target]:
            link.irecv(tensor, transfer.sender, COPY_TAG).wait(timeout_s)


def _sha256(tensors: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
