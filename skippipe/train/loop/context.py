"""What one rank works with during a run, whatever the plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from skippipe.ranks import holding_ranks, serving_ranks
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.connect.links import Links
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.resolve.spec import RunSpec


@dataclass(frozen=True)
class RankContext:
    """One rank of a run, prepared."""

    spec: RunSpec
    rendezvous: Rendezvous
    """all ranks"""
    rank_of: Sequence[int]
    """the rank that serves each node"""
    layers: Sequence[range]
    """numbers of the decoder layers of each stage"""
    stages: dict[int, Stage]
    """those that this rank serves in any phase; changes where a plan that is adopted has nodes serve others"""
    allocations: Sequence[Sequence[Sequence[int]]]
    """nodes of each stage, in all phases as the run begins"""
    links: Links
    """to the other ranks"""
    buffers: MessageBuffers
    """for messages"""
    validation_microbatches: int
    """per validation"""
    vocabulary: int
    """tokens are below it"""
    clock_offset_s: float
    """reading of the clock of rank 0 less that of this rank"""

    @property
    def message_spec(self) -> MessageSpec:
        """Shape and type of every message, and the device of the stages."""
        return self.buffers.message_spec

    @property
    def device(self) -> torch.device:
        """What the stages compute on."""
        return self.message_spec.device

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.message_spec.microbatch_size * self.message_spec.sequence

    def serving(self, stages: Sequence[Sequence[int]]) -> dict[int, frozenset[int]]:
        """The ranks that serve each stage that has nodes, by number."""
        return serving_ranks(stages, self.rank_of)

    def holding(self) -> dict[int, frozenset[int]]:
        """The ranks that serve each stage in any phase as the run begins, and so hold its weights."""
        return holding_ranks(self.allocations, self.rank_of)

    def owned_stages(self) -> dict[int, Stage]:
        """The stages for which this rank speaks: it is the lowest that holds them."""
        holding = self.holding()
        return {number: stage for number, stage in self.stages.items() if min(holding[number]) == self.rendezvous.rank}
