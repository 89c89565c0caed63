"""Layers whose stage joins a run in a later phase: which layers they copy, and the transfer of the weights."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skippipe.errors import SchedulerError
from skippipe.runtime.links import Link
from skippipe.runtime.links.collectives import COPY_TAG
from skippipe.train.loop.context import RankContext

SLOWEST_BYTES_PER_S = 1e6
"""A transfer at this rate may still be a healthy one."""


class LayerCopy(NamedTuple):
    """A layer copied from one rank to one rank, possibly the same."""

    source: int
    """layer"""
    sender: int
    """rank"""
    layer: int
    """the new one"""
    receiver: int
    """rank"""


def copy_sources(new: Collection[int], in_use: Collection[int]) -> dict[int, int]:
    """The layer that each new one copies: layer `l` takes the (l modulo n)-th of the n layers in use.

    (Stacking: Du et al., arXiv 2405.15319.)
    """
    trained = sorted(in_use)
    return {layer: trained[layer % len(trained)] for layer in sorted(new)} if trained else {}


def copy_layers(context: RankContext, sources: Mapping[int, int], iteration: int) -> None:
    """Fill the weights of layers, on all ranks that serve them, from those of `sources`. All ranks call this.

    Layers go one after the other, to one rank after the other, in the same order everywhere: no two ranks wait for each
    other. Every rank compares the hash of what it has with that of the layer it copied.

    Args:
        context: what the rank works with.
        sources: the layer that each new one copies.
        iteration: the first one that uses the new layers.

    Raises:
        ActionError: a transfer failed.
        SchedulerError: weights have changed on the way.

    """
    rendezvous, rank, here = context.rendezvous, context.rendezvous.rank, _layers_here(context)
    stage_of = {layer: stage for stage, layers in enumerate(context.layers) for layer in layers}
    copies = [
        LayerCopy(source, context.owner(stage_of[source]), layer, receiver)
        for layer, source in sources.items()
        for receiver in context.serving(stage_of[layer])
    ]
    largest = max(sum(tensor.nbytes for tensor in weights) for weights in here.values())
    allowance_s = len(copies) * largest / SLOWEST_BYTES_PER_S
    hashes: dict[str, str] = {}
    with torch.no_grad(), rendezvous.transferring("copies of layers", range(rendezvous.world)):
        for copy in copies:
            _transfer(copy, here, rank, context.link, rendezvous.timeout_s + allowance_s)
            if rank == copy.sender:
                hashes[f"{copy.layer} sent"] = _sha256(here[copy.source])
            if rank == copy.receiver:
                hashes[f"{copy.layer} here"] = _sha256(here[copy.layer])
    gathered = rendezvous.all_gather(f"copied layers {iteration}", json.dumps(hashes), allowance_s)
    _check(context, copies, [json.loads(text) for text in gathered])


def _transfer(copy: LayerCopy, here: Mapping[int, list[Tensor]], rank: int, link: Link, timeout_s: float) -> None:
    """Do this rank's part of a copy, if it has one."""
    if copy.sender == copy.receiver == rank:
        for ours, theirs in zip(here[copy.layer], here[copy.source], strict=True):
            ours.copy_(theirs)
    elif rank == copy.sender:
        for tensor in here[copy.source]:
            link.isend(tensor, copy.receiver, COPY_TAG).wait(timeout_s)
    elif rank == copy.receiver:
        for tensor in here[copy.layer]:
            link.irecv(tensor, copy.sender, COPY_TAG).wait(timeout_s)


def _layers_here(context: RankContext) -> dict[int, list[Tensor]]:
    """Weights of the decoder layers that this rank holds, by number, in the order of their names."""
    found: dict[int, list[Tensor]] = {}
    for stage in context.stages.values():
        for name, parameter in sorted(stage.module.named_parameters()):
            layer = stage.module.layer_of(name)
            if layer is not None:
                found.setdefault(layer, []).append(parameter.data)
    return found


def _sha256(weights: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in weights:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _check(context: RankContext, copies: Iterable[LayerCopy], hashes: Sequence[Mapping[str, str]]) -> None:
    for copy in copies:
        if hashes[copy.receiver][f"{copy.layer} here"] != hashes[copy.sender][f"{copy.layer} sent"]:
            name = context.rendezvous.title(copy.receiver)
            raise SchedulerError(
                f"layer {copy.layer} on {name} differs from layer {copy.source}, of which it is a copy"
            )
