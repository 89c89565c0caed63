"""What one rank works with during a run, whatever the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from skippipe.runtime.links import Link
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import Stage
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
    stages: Mapping[int, Stage]
    """those that this rank serves"""
    link: Link
    """to the other ranks"""
    message_spec: MessageSpec
    """shape and type of every message, and the device of the stages"""
    validation_microbatches: int
    """per validation"""
    vocabulary: int
    """tokens are below it"""

    @property
    def device(self) -> torch.device:
        """What the stages compute on."""
        return self.message_spec.device

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.message_spec.microbatch_size * self.message_spec.sequence

    def owner(self, stage: int) -> int:
        """The lowest rank that serves a stage; it speaks for all replicas."""
        return self.serving(stage)[0]

    def serving(self, stage: int) -> list[int]:
        """The ranks that serve a stage, in order."""
        return sorted({self.rank_of[node] for node in self.spec.layout.stages[stage]})

    def owned_stages(self) -> dict[int, Stage]:
        """The stages of which this rank is the owner."""
        return {number: stage for number, stage in self.stages.items() if self.owner(number) == self.rendezvous.rank}
