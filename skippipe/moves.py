"""What moves between ranks where a phase begins, and how long that takes. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOMENTS = 2
"""Tensors of AdamW of the size of the weights."""

TransferTime = Callable[[int, int, float], float]
"""Seconds that so many bytes take from one rank to another."""


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


@dataclass(frozen=True)
class Holding:
    """Who has which weights."""

    current: Mapping[int, frozenset[int]]
    """the ranks that have each stage's current weights"""
    joined: frozenset[int]
    """decoder layers that have joined"""


def renumbered(holding: Holding, new_rank: Mapping[int, int]) -> Holding:
    """Who has which weights of those that have a new rank; nobody may have those of some stage."""
    current = {
        stage: frozenset(new_rank[rank] for rank in ranks if rank in new_rank)
        for stage, ranks in holding.current.items()
    }
    return Holding(current, holding.joined)


@dataclass(frozen=True)
class PhaseChange:
    """What happens before the first iteration of a phase, in an order that all ranks share."""

    moves: Sequence[Transfer]
    """weights and optimizer state of stages, as far as their layers have joined"""
    copies: Sequence[Transfer]
    """weights of layers, after the moves"""
    new: frozenset[int]
    """layers that join"""
    before: Holding
    after: Holding


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of a model's weights."""

    of_layer: Sequence[float]
    """by decoder layer"""
    outside: float = 0.0
    """embedding, final norm and head, on stage 0"""

    def state(self, stage: int, layers: Iterable[int]) -> float:
        """Weights and moments of some layers of a stage, and of what it has outside of layers."""
        weights = sum(self.of_layer[layer] for layer in layers) + (self.outside if stage == 0 else 0.0)
        return (1 + MOMENTS) * weights


def change_phase(
    before: Holding,
    serving: Mapping[int, frozenset[int]],
    layers: Collection[int],
    stage_layers: Sequence[range],
    *,
    copy: bool,
) -> PhaseChange:
    """State what a phase needs.

    Args:
        before: the phase before it; at the start of a run, all ranks hold the weights of their stages.
        serving: the ranks that serve each stage of the phase.
        layers: in use.
        stage_layers: the layers of each stage.
        copy: whether layers that join become copies of others.

    """
    moves = stage_moves(serving, before.current)
    moved = {stage: ranks | serving.get(stage, frozenset()) for stage, ranks in before.current.items()}
    new = frozenset(layers) - before.joined
    stage_of = {layer: stage for stage, own in enumerate(stage_layers) for layer in own}
    copies: list[Transfer] = []
    for layer, source in copy_sources(new, before.joined, stage_layers).items() if copy else ():
        holders = moved[stage_of[source]]
        copies += [
            Transfer(source, rank if rank in holders else min(holders), layer, rank)
            for rank in sorted(serving[stage_of[layer]])
        ]
    after = Holding({**moved, **serving}, before.joined | new)  # soon only the ranks that serve it have a stage's
    return PhaseChange(moves, copies, new, before, after)


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


def copy_sources(new: Collection[int], in_use: Collection[int], stage_layers: Sequence[range] = ()) -> dict[int, int]:
    """The layer that each new one copies.

    Within a stage that is in use, the nearest layer in use before it, else after it: nothing has to be sent. Otherwise
    layer `l` takes the (l modulo n)-th of the n layers in use (stacking: Du et al., arXiv 2405.15319).
    """
    trained = sorted(in_use)
    if not trained:
        return {}
    sources: dict[int, int] = {}
    for layer in sorted(new):
        own = next((stage for stage in stage_layers if layer in stage), range(0))
        here = [other for other in trained if other in own]
        before = [other for other in here if other < layer]
        sources[layer] = before[-1] if before else here[0] if here else trained[layer % len(trained)]
    return sources


def change_s(change: PhaseChange, stage_layers: Sequence[range], weights: WeightBytes, transfer: TransferTime) -> float:
    """Predicted seconds of a change, without hashing: moves, then copies."""

    def state(stage: int) -> float:
        return weights.state(stage, change.before.joined.intersection(stage_layers[stage]))

    return transfers_s(change.moves, state, transfer) + transfers_s(
        change.copies, weights.of_layer.__getitem__, transfer
    )


def transfers_s(transfers: Iterable[Transfer], size: Callable[[int], float], transfer: TransferTime) -> float:
    """Seconds of transfers of which each begins when its two ranks have done theirs before it."""
    free_at: defaultdict[int, float] = defaultdict(float)
    for source, sender, _, receiver in transfers:
        if sender != receiver:
            end = max(free_at[sender], free_at[receiver]) + transfer(sender, receiver, size(source))
            free_at[sender] = free_at[receiver] = end
    return max(free_at.values(), default=0.0)
